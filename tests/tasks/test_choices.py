"""The task that scores choices by the user's functions."""

import math
import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.execution import run_job
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.task import CandidateTraining, Score
from gflownet.graphs.assignment import Assignment
from tasks.choices import ChoicesTask, ChoicesTaskConfig

SETTING = Assignment.of({"width": 3})


class Pair(nn.Module):
    def forward(self, inputs: Any) -> tuple[Any, None]:
        return inputs, None


@pytest.fixture
def functions(monkeypatch) -> ModuleType:
    module = ModuleType("scored_choices")
    module.__dict__.update(
        number=lambda choices, seed: choices["width"] / 10 + seed / 100,
        whole=lambda choices, seed: Score(0.5, num_parameters=7, metrics={"depth": 2.0}),
        text=lambda choices, seed: "0.5",
        truth=lambda choices, seed: True,
        network=lambda choices: nn.Sequential(
            nn.Flatten(), nn.Linear(64, choices["width"]), nn.ReLU(), nn.Linear(choices["width"], 10)
        ),
        not_a_function=3,
        not_a_module=dict,
        lazy=lambda choices: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)),
        narrow=lambda choices: nn.Sequential(nn.Flatten(), nn.Linear(64, 7)),
        pair=lambda choices: Pair(),
    )
    monkeypatch.setitem(sys.modules, "scored_choices", module)
    return module


def make_task(**options: str) -> ChoicesTask:
    overrides: list[Any] = [f"task_options.{name}={value}" for name, value in options.items()]
    defaults = [f"task_options.{name}=''" for name in ("score", "test") if name not in options]
    config = load_config("choices", [*defaults, "evaluation.num_epochs=2", *overrides])
    return ChoicesTask(with_task_options(config, ChoicesTaskConfig))


def test_choices_task_scores_numbers_and_scores(functions):
    task = make_task(score="scored_choices:number", test="scored_choices:whole")
    assert math.isclose(task.evaluate(SETTING, seed=4).value, 0.34)
    assert task.test(SETTING, seed=4) == 0.5
    assert make_task(score="scored_choices:whole").evaluate(SETTING, seed=1).num_parameters == 7
    assert make_task(score="scored_choices:number").test(SETTING, seed=1) is None
    assert task.description(SETTING) == {}
    assert task.remarks() == ()


def test_choices_task_trains_the_modules_of_build(functions):
    task = make_task(build="scored_choices:network")
    first = task.evaluate(SETTING, seed=4)
    assert first.num_parameters == 64 * 3 + 3 + 3 * 10 + 10
    assert 0.1 < first.value < 1
    assert task.evaluate(SETTING, seed=4) == first
    assert 0 < (task.test(SETTING, seed=4) or 0) < 1
    (training,) = task.train_many([SETTING], seeds=[4], fidelity=2, schedule=2, states=[None])
    assert task.description(SETTING) == {"module": {"build": "scored_choices:network"}}
    assert isinstance(training, CandidateTraining)
    assert training.score() == first


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("build=scored_choices:narrow", r"a module with outputs \[2, 10\] for inputs \[2, 1, 8, 8\], got \[2, 7\]$"),
        ("build=scored_choices:pair", r"a module with outputs .*, got tuple$"),
        ("build=scored_choices:not_a_module", "an nn.Module, got dict"),
    ],
)
def test_choices_task_with_other_results_raises(functions, option, message):
    name, _, function = option.partition("=")
    with pytest.raises(ValueError, match=f"task_options.{name}: expected {message}"):
        make_task(**{name: function}).evaluate(SETTING, seed=0)


@pytest.mark.parametrize(("name", "value"), [("text", "'0.5'"), ("truth", "True")])
def test_choices_task_converts_no_score_to_a_number(functions, name, value):
    (outcome,) = run_job(make_task(score=f"scored_choices:{name}"), Job((SETTING,), (0,)))
    assert (outcome.status, outcome.error) == (EvaluationStatus.FAILED, f"score: expected a number, got {value}")
    task = make_task(score="scored_choices:number", test=f"scored_choices:{name}")
    (outcome,) = run_job(task, Job((SETTING,), (0,), tests=True))
    assert (outcome.status, outcome.test) == (EvaluationStatus.OK, None)
    assert outcome.test_error == f"test score: expected a number, got {value}"


def test_choices_task_has_a_test_where_a_function_or_a_module_measures_one(functions):
    scored = (
        make_task(score="scored_choices:number"),
        make_task(score="scored_choices:number", test="scored_choices:whole"),
    )
    assert [task.has_test for task in (*scored, make_task(build="scored_choices:network"))] == [False, True, True]


def test_choices_task_trains_lazy_layers(functions):
    score = make_task(build="scored_choices:lazy").evaluate(SETTING, seed=0)
    assert (score.num_parameters, score.value > 0.3) == (650, True)


def test_settings_move_to_a_device(functions, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros_like(self, device="cpu"))  # of the meta device
    task = make_task(build="scored_choices:lazy")
    task.to_device(torch.device("meta"))
    model = task.build_model(SETTING).to(task.device)
    (inputs, targets), *_ = task.train.in_order()
    assert {inputs.device, targets.device, model(inputs).device} == {task.device}
    scored = make_task(score="scored_choices:number")
    scored.to_device(torch.device("meta"))
    assert scored.device == task.device


def test_choices_task_standardises_numbers_and_columns(functions):
    task = make_task(build="scored_choices:network", data="diabetes", normalise="channel")
    assert abs(float(task.train.targets.mean())) < 1e-5
    assert float(task.train.inputs.std(0, correction=0).min()) == pytest.approx(1)


def test_choices_task_with_score_and_build_raises(functions):
    with pytest.raises(UserError, match=r"task_options: expected either score=.*, got both"):
        make_task(score="scored_choices:number", build="scored_choices:network")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("''", r"task_options: expected either score=module:function of \(choices, seed\) or build=.*, got none"),
        ("scored_choices", "task_options.score: expected module:function, got 'scored_choices'"),
        ("scored_choices:not_a_function", r"task_options.score: expected a function, .*did you mean scored_\w+:\w+"),
        ("no_such_module:f", "task_options.score: expected an importable module, got 'no_such_module'"),
    ],
)
def test_choices_task_with_invalid_function_raises(functions, score, message):
    with pytest.raises(UserError, match=message):
        make_task(score=score)


def test_choices_task_fingerprint_depends_on_the_code_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for number, body in enumerate(("return 0.5", "return 0.5  # a comment", "return 0.25")):
        (tmp_path / "edited_choices.py").write_text(f"def score(choices, seed):\n    {body}\n")
        os.utime(tmp_path / "edited_choices.py", (number, number))
        sys.modules.pop("edited_choices", None)
        digests.append(make_task(score="edited_choices:score").fingerprint())
    sys.modules.pop("edited_choices")
    assert digests[0] == digests[1] != digests[2]
