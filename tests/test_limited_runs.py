"""Runs whose policy is conditioned on a hard cap of the parameters: search, replay, local search, resume, samples."""

import json
from pathlib import Path

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.cli.sample_records import ExactProbability
from gflownet.learning.sampler import sample_forward
from gflownet.run.sampling import restore
from gflownet.train import main

SMALL = (
    *("task=gflownet.tasks.random_rewards:RandomRewardsTask", "env.name=operation_graph", "search.method=gflownet"),
    *("env.operation_graph.max_hidden_nodes=2", "env.operation_graph.max_edges=3"),
    "env.operation_graph.max_parameters=420",
    "env.operation_graph.choices={conv2d: {features: [4, 8], kernel_size: [1, 3], stride: 1, dilation: 1}}",
    *("evaluation.floor_score=0.000001", "cond.temperature.dist_params=[1]", "cond.limit.metric=parameters"),
    *("algo.num_from_policy=8", "algo.merge_isomorphic=true", "algo.train_random_action_prob=0.3"),
    *("replay.warmup=4", "replay.num_from_replay=4", "replay.num_batches=2"),
    *("model.num_emb=8", "model.num_layers=1", "wandb.mode=disabled", "report.every=null", "checkpoint_every=1"),
    "final.top=0",
)
WAYS = {
    "sequences": ("replay.resample=false", "local_search.num=2", "algo.method=subtb"),
    "resampled": ("replay.resample=true", "local_search.num=4"),
}


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("way", ["sequences", pytest.param("resampled", marks=pytest.mark.slow)])
def test_run_with_limits_resumes_exactly(way: str, tmp_path: Path) -> None:
    options = [*SMALL, *WAYS[way]]
    assert main([*options, "num_training_steps=2", f"log_dir={tmp_path / 'whole'}"]) == 0
    assert main([*options, "num_training_steps=1", f"log_dir={tmp_path / 'resumed'}"]) == 0
    assert main([*options, "num_training_steps=2", f"log_dir={tmp_path / 'resumed'}", "resume=true"]) == 0
    assert losses(tmp_path / "whole") == losses(tmp_path / "resumed")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited") / "run"
    assert main([*SMALL, "num_training_steps=2", "certify=true", f"log_dir={folder}"]) == 0
    return folder


def test_certificate_of_the_run_has_three_caps(run_folder: Path) -> None:
    content = json.loads((run_folder / "certificate.json").read_text())
    caps = [part["limits"]["parameters"] for part in content["certificates"]]
    assert caps == sorted(set(caps))
    assert len(caps) == 3
    assert content["errors"] == []
    spaces = [part["num_terminal"] for part in content["certificates"]]
    assert spaces == sorted(set(spaces))


def test_samples_of_the_run_keep_any_cap(run_folder: Path) -> None:
    restored = restore(run_folder)
    trainer, generator = restored.trainer, torch.Generator().manual_seed(0)
    for cap in (20, 33, 150, 420):
        conditioning = trainer.task.sample_conditioning(256, generator=generator)
        conditioning = trainer.task.override_conditioning(conditioning, limit=cap)
        batch = sample_forward(trainer.context, restored.policy, conditioning=conditioning, generator=generator)
        assert int(trainer.env.sizes(batch.terminal).max()) <= cap
    mixed = next(restored.batches(64, seed=1))
    assert bool((trainer.env.sizes(mixed.terminal) <= mixed.terminal.limit).all())
    assert len(mixed.terminal.limit.unique()) > 20


def test_exact_probabilities_are_those_under_the_cap_of_each_sample(run_folder: Path) -> None:
    restored = restore(run_folder)
    probability, env = ExactProbability(restored, max_states=1_000), restored.trainer.env
    batch = next(restored.batches(8, seed=1))
    assert all(-20 < each.value <= 0 for each in probability.log_probs(batch))
    whole = enumerate_states(env)
    for encoding, limit in zip(batch.conditioning, batch.terminal.limit, strict=True):
        distribution = probability._distribution(encoding, limit).exp()
        assert float(distribution.sum()) == pytest.approx(1)
        assert float(distribution[(env.sizes(whole.states) > limit).any(1)].sum()) == 0
