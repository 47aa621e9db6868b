"""Plans: the method of search.method=auto, and the division of all trainings."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gflownet.config import load_config
from gflownet.evaluation.task import GFNTask, Score
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.records.status import read_status
from gflownet.run.components import Builder
from gflownet.run.extensions import load_extensions, unused_line
from gflownet.run.plan import RunPlan, divided
from tests.small_run import run
from tests.toy_tasks import RewardsHiddenNodes

SMALL_DIGITS = ("task=digits", "model.num_emb=8", "model.num_layers=1", "env.max_hidden_nodes=1", "env.max_edges=3")
HYPERGRID = ("task=hypergrid", "env.name=hypergrid", "evaluation.floor_score=1e-6")


@functools.cache
def digits(objectives: tuple[str, ...]) -> GFNTask:
    return TASKS.load("digits")(load_config(None, [f"evaluation.objectives=[{','.join(objectives)}]"]))


def plan(*options: str) -> RunPlan:
    """Return the plan of a run, without its policy."""
    config, extensions = load_extensions(load_config(None, [*SMALL_DIGITS, *options]))
    task = digits(tuple(config.evaluation.objectives)) if config.task == "digits" else extensions.task(config)
    parts: Any = SimpleNamespace(config=config, extensions=extensions, task=task)
    return Builder._resolve_method(parts)


def test_options_that_a_search_does_not_use_are_named():
    options = ["opt.learning_rate=0.01", "replay.num_updates=2", "algo.num_from_policy=3"]
    named = "replay.num_updates, opt.learning_rate"
    for method, further, expected in (
        ("surrogate", [], named),
        ("surrogate", ["budget.evaluations=9"], f"algo.num_from_policy, {named}"),
        ("gflownet", [], ""),
    ):
        line = unused_line(load_config(None, [*options, *further, f"search.method={method}"]))
        start, _, keys = line.partition(": ")
        assert {*keys.split(", ")} == {*expected.split(", ")}
        assert start == (f"not used with search.method={method}" if expected else "")


@pytest.mark.parametrize(
    ("options", "method", "reason"),
    [
        ((), "surrogate", "scores depend on a training"),
        (
            ("num_workers=1",),
            "surrogate",
            "scores depend on a training; num_workers is not used, workers sample for search.method=gflownet",
        ),
        (("local_search.num=1",), "gflownet", "only it uses local_search.num"),
        (("algo.method=a2c",), "gflownet", "a surrogate does not work with algo.method=a2c"),
        (("evaluation.objectives=[accuracy,parameters]",), "surrogate", "scores depend on a training"),
        (
            ("task=hypergrid", "env.name=hypergrid", "evaluation.floor_score=1e-6"),
            "gflownet",
            "scores do not depend on a training",
        ),
        (("search.method=random",), "random", ""),
    ],
)
def test_auto_method_follows_task_and_options(options, method, reason):
    chosen = plan(*options)
    assert (chosen.method, chosen.reason) == (method, reason)


def test_divided_is_exact():
    assert divided(60, 0.25, most=50) == (45, 15)
    assert divided(400, 0.25, most=50) == (350, 50)
    assert divided(2, 0.25, most=50) == (1, 1)
    assert divided(1, 0.25, most=50) == (1, 0)
    assert divided(60, 0.0, most=50) == divided(60, 0.25, most=0) == (60, 0)


def test_plan_divides_budget_and_gives_random_as_many():
    chosen = plan("budget.evaluations=60", "budget.seconds=100")
    assert (chosen.num_search, chosen.num_verified, chosen.num_final) == (39, 6, 15)
    assert "39 evaluations of the search, 6 samples of the sampler, 15 final trainings" in chosen.words()
    assert (chosen.num_random, chosen.num_random_final) == (45, 15)
    assert chosen.final_seconds == 25
    assert "at most 0:01:40" in chosen.words()
    assert chosen.seconds_after(60.0) == 40 * chosen.num_places
    assert chosen.seconds_after(130.0) == 25 * chosen.num_places, "the training of a sampler does not take the share"
    assert plan("budget.evaluations=60").seconds_after(130.0) == math.inf
    unlimited = plan("num_training_steps=10", "algo.num_from_policy=3", "final.num_random=10")
    assert (unlimited.num_search, unlimited.num_verified, unlimited.num_final, unlimited.num_compared) == (
        26,
        4,
        10,
        10,
    )
    assert plan("budget.evaluations=900").num_verified == 8
    mostly_final = plan("budget.evaluations=10", "final.share=0.9")
    assert (mostly_final.num_search, mostly_final.num_verified, mostly_final.num_final) == (1, 0, 9)
    assert plan("budget.evaluations=900", "search.sampler.num_verified=0").num_verified == 0
    assert plan("budget.evaluations=60", "search.train_sampler=false").num_search == 45
    fronts = "evaluation.objectives=[accuracy,parameters]", "final.top=1", "final.num_seeds=2", "budget.evaluations=100"
    assert [plan(*fronts, f"final.caps={caps}").num_final for caps in ("[]", "[300,600]", "[300,300]")] == [8, 4, 2]
    assert plan(*fronts[1:]).num_final == 2, "one objective"


@pytest.mark.parametrize("options", [HYPERGRID, ("final.top=0",), ("final.share=0",)])
def test_plan_without_final_stage_leaves_all_to_the_search(options):
    chosen = plan(*options, "budget.evaluations=60")
    assert (chosen.num_search + chosen.num_verified, chosen.num_final, chosen.num_compared) == (60, 0, 0)
    assert chosen.num_tested == (0 if options is HYPERGRID else 10)
    assert ("10 evaluations for test scores" in chosen.words()) == bool(chosen.num_tested)
    assert plan("budget.evaluations=60").num_tested == 0


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            ("search.method=gflownet", "budget.evaluations=40"),
            "2 policy steps in 30 evaluations, fewer than 20; search.method=surrogate learns from 10",
        ),
        (("search.method=evolution", "search.options.population=50", "budget.evaluations=40"), "its population of 50"),
        (("budget.evaluations=12",), "search.num_initial=10 random candidates are all 9 evaluations"),
        (("budget.evaluations=60",), ""),
    ],
)
def test_plan_names_random_methods(options, warning):
    chosen = plan(*options)
    assert warning in chosen.warning
    assert bool(chosen.warning) == bool(warning)


class NoisyNodes(RewardsHiddenNodes):
    """Scores that depend on the seed."""

    is_cheap = False

    def evaluate(self, graph: ComputationGraph, *, seed: int) -> Score:
        score = super().evaluate(graph, seed=seed)
        return replace(score, value=score.value + seed % 100 / 5_000)


@pytest.mark.cpu_seconds(5)
def test_budget_holds_over_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Search and final stage together do no training beyond the budget, also when it grows."""
    folder = tmp_path / "run"
    options = (f"task={__name__}:NoisyNodes", "evaluation.executor=inline", "search.method=auto", "final.top=10")
    options += ("search.num_initial=50", "final.share=0.4", "search.train_sampler=false")
    for budget, resume in ((10, "false"), (15, "true")):
        assert run(folder, *options, f"budget.evaluations={budget}", f"resume={resume}") == 0
        shown = capsys.readouterr().out
        parts = [shown.partition(f"{name} ")[2].split()[0] for name in ("processes: search", ", final stage")]
        assert int(parts[0]) == 0.6 * budget
        assert 0 < int(parts[1]) <= 0.4 * budget
    assert "search.method=surrogate (auto: scores depend on a training); plan: 9 evaluations" in shown
    status = read_status(folder)
    assert status is not None
    assert status.plan["method"] == "surrogate"
    assert json.loads((folder / "run.json").read_text())["config"]["search"]["method"] == "auto"
    monkeypatch.setattr(NoisyNodes, "is_cheap", True)
    assert run(folder, *options, "resume=true") == 2
    assert "expected options with which auto is surrogate" in capsys.readouterr().err
