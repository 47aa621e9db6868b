"""gflownet.sample: conditioning, moving average, errors."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import gflownet
from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.task import GFNTask
from gflownet.learning.sampler import sample_forward
from gflownet.run.folder import last_checkpoint
from gflownet.run.trainer import GFNTrainer
from gflownet.train import main
from tests.tiny_run import TINY_RUN

ONE_SCORE = (
    *TINY_RUN,
    "task=tests.toy_tasks:RewardsHiddenNodes",
    "evaluation.floor_score=0.01",
    "cond.temperature.sample_dist=uniform",
    "cond.temperature.dist_params=[0,8]",
    "env.max_hidden_nodes=3",
    "env.max_edges=6",
)
SEVERAL = (
    *ONE_SCORE,
    "task=tests.toy_tasks:RewardsNodesOrEdges",
    "evaluation.objectives=[nodes,edges]",
    "cond.focus.use=true",
    "algo.sampling_tau=0.9",
)


def score_of_width(choices, seed):
    """Return the score of a setting."""
    return choices["width"] / 4


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "run"
    assert main([*SEVERAL, f"log_dir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def task(several) -> GFNTask:
    return GFNTrainer(load_config(str(several / "config.yaml"))).task


def fixed_conditioning(task: GFNTask, num: int, **given: Any) -> Conditioning:
    return task.override_conditioning(task.sample_conditioning(num, generator=torch.Generator()), **given)


@pytest.fixture
def asked(monkeypatch) -> list[dict]:
    """Record the arguments of `sample_forward`."""
    calls: list[dict] = []

    def watched(context, policy, **given):
        calls.append({"policy": policy, **given})
        return sample_forward(context, policy, **given)

    monkeypatch.setattr("gflownet.run.sampling.sample_forward", watched)
    return calls


def test_run_on_gpus_is_sampled_without_one(several, tmp_path):
    folder = shutil.copytree(several, tmp_path / "run")
    text = (folder / "config.yaml").read_text().replace("executor: inline", "executor: pool")
    (folder / "config.yaml").write_text(re.sub(r"(?m)^( *device): \w+$", r"\1: cuda:0", text))
    assert len(gflownet.sample(folder, 2)) == 2


def test_sample_conditioning_reaches_policy(several, task, asked):
    graphs = gflownet.sample(several, 5, beta=6, preferences=[3, 1], focus=[1, 2])
    assert [graph.config["translation"] for graph in graphs] == [task.translation_settings] * 5
    expected = fixed_conditioning(task, 5, beta=6.0, preferences=[3, 1], focus=[1, 2])
    assert torch.equal(asked[0]["conditioning"].encoding, expected.encoding)
    assert torch.equal(asked[0]["conditioning"].beta, expected.beta)


@pytest.mark.parametrize("given", [{}, {"beta": 2.5}, {"preferences": [1, 1]}, {"focus": [0, 1]}])
def test_sample_default_conditioning_as_in_training(several, task, asked, given):
    gflownet.sample(several, 4, seed=3, **given)
    found = asked[0]["conditioning"]
    drawn = task.sample_conditioning(4, generator=torch.Generator().manual_seed(3))
    fixed = fixed_conditioning(task, 4, **{"beta": 1.0, "preferences": [1, 1], "focus": [1, 1], **given})
    assert torch.equal(found.beta, fixed.beta if "beta" in given else drawn.beta)
    names = ("beta", "preferences", "focus")
    parts = [conditioning.encoding.split([8, 2, 2], 1) for conditioning in (found, fixed, drawn)]
    for name, ours, chosen, random in zip(names, *parts, strict=True):
        assert torch.equal(ours, chosen if name in given else random), name
        assert len(random.unique(dim=0)) == 4, "else the draws would show nothing"


def test_sample_from_moving_average(several, asked):
    gflownet.sample(several, 1)
    checkpoint = last_checkpoint(several, option="run")
    found, stored = asked[0]["policy"].policy.state_dict(), checkpoint.state
    assert all(torch.equal(value, stored["sampling_policy"][name]) for name, value in found.items())
    assert any(not torch.equal(value, stored["policy"][name]) for name, value in found.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta": 9}, r"beta: expected a number in \[0, 8\], by cond.temperature, got 9"),
        ({"beta": float("nan")}, r"beta: expected a number in \[0, 8\], .* got nan"),
        ({"preferences": [1, 1, 1]}, r"preferences: expected 2 numbers, got \[1, 1, 1\]"),
        ({"preferences": [1, -1]}, r"preferences: expected numbers >= 0, one of them > 0, got .*"),
        ({"focus": [0, 0]}, r"focus: expected numbers >= 0, one of them > 0, got .*"),
    ],
)
def test_sample_unused_conditioning_raises(several, given, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        gflownet.sample(several, 2, **given)


def test_sample_choices_scored_by_a_function(tmp_path, capsys, asked):
    """Such a task has no training data, so no translation settings."""
    folder = tmp_path / "run"
    config = {
        "task": "choices",
        "task_options": {"score": "tests.test_sampling:score_of_width"},
        "env": {"name": "choices", "choices": {"places": {"width": [1, 2, 3, 4], "depth": [1, 2, 3, 4, 5, 6]}}},
    }
    (tmp_path / "widths.yaml").write_text(json.dumps(config))  # YAML contains JSON
    assert main(["--config", str(tmp_path / "widths.yaml"), *TINY_RUN, "final.top=0", f"log_dir={folder}"]) == 0
    capsys.readouterr()
    known = gflownet.sample(folder, 4, varied=True, seed=1)
    assert [set(setting.as_dict()) for setting in known] == [{"width", "depth"}] * 4
    assert capsys.readouterr().err == ""
    new = gflownet.sample(folder, 25, seed=1)
    assert 0 < len(new) < 24, "of 24 architectures some are evaluated"
    found = f"{len(new)} new architecture{'' if len(new) == 1 else 's'} of 25 found"
    assert capsys.readouterr().err == f"{found}; varied (--varied) gives known ones, too\n"

    best = gflownet.sample(folder, 1, seed=1)

    def samples_again(seed):
        asked.clear()
        return gflownet.sample(folder, 1, seed=seed) != best or len(asked) > 0

    assert [samples_again(seed) for seed in (1, 2, 1, 1)] == [False, True, True, False]
    os.utime(last_checkpoint(folder, option="run").path, ns=(0, 0))
    assert samples_again(1), "other files"
