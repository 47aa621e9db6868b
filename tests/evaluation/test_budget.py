"""Budgets of the dispatcher: exact numbers of evaluations, seconds, refused candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore
from gflownet.evaluation.task import Cost
from tests.evaluation.candidates import StubCandidate, StubTask, config_with, dispatcher_of

OK, FAILED, REFUSED = EvaluationStatus.OK, EvaluationStatus.FAILED, EvaluationStatus.REFUSED


class SizedTask(StubTask):
    """The size of a candidate is given by the table `sizes`: a Cost, None, or an exception to raise."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__(dict.fromkeys(sizes, 0.5))
        self.sizes = sizes

    def cost(self, graph: StubCandidate) -> Cost | None:
        size = self.sizes[graph.key]
        if isinstance(size, Exception):
            raise size
        return size


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EvaluationStore]:
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        yield store


Build = Callable[..., Dispatcher]


@pytest.fixture
def build(store: EvaluationStore) -> Build:
    def build(task: StubTask, limits: BudgetConfig, **options: Any) -> Dispatcher:
        num = store.num_evaluations(run="mine")
        return dispatcher_of(task, store, budget=limits, num_evaluated=num, **options)

    return build


def evaluate(dispatcher: Dispatcher, keys: str, *, step: int = 1) -> list[Evaluation]:
    return dispatcher.evaluate([StubCandidate(key) for key in keys], step=step)


def test_budget_evaluations_are_all_used_and_never_exceeded(build: Build, store: EvaluationStore) -> None:
    task, limits = StubTask(dict.fromkeys("abcdefgh", 0.5)), BudgetConfig(evaluations=5)
    dispatcher = build(task, limits)
    evaluate(dispatcher, "abac")
    with pytest.raises(EvaluationStoppedError, match=r"^budget\.evaluations=5 is spent$"):
        evaluate(dispatcher, "adefg", step=2)
    assert ([key for key, _ in task.calls], store.count()) == (list("abcde"), 5)
    resumed = build(task, limits)
    assert [each.cached for each in evaluate(resumed, "de", step=2)] == [False, False], "known ones cost nothing"
    with pytest.raises(EvaluationStoppedError):
        evaluate(resumed, "df", step=2)
    assert len(evaluate(build(task, BudgetConfig(evaluations=7)), "adefg", step=2)) == 5
    assert ([key for key, _ in task.calls], store.count()) == (list("abcdefg"), 7)


def test_budget_counts_retries_once(build: Build, store: EvaluationStore) -> None:
    task = StubTask({"a": ConnectionError("gone"), "b": 0.5, "c": 0.5})
    with pytest.raises(EvaluationStoppedError):
        evaluate(build(task, BudgetConfig(evaluations=2)), "abc")
    assert ([key for key, _ in task.calls], store.count()) == (["a", "b", "a"], 2)


def test_budget_excludes_rows_of_other_runs_and_seeds(build: Build, store: EvaluationStore) -> None:
    task = StubTask(dict.fromkeys("abcd", 0.5))
    evaluate(dispatcher_of(task, store, run="other"), "ab")
    assert store.num_evaluations(run="mine") == 0
    assert len(evaluate(build(task, BudgetConfig(evaluations=2)), "abcd")) == 4


def test_budget_seconds_end_the_run(build: Build) -> None:
    task = StubTask(dict.fromkeys("ab", 0.5))
    dispatcher = build(task, BudgetConfig(seconds=3600.0), seconds=3000.0)
    assert len(evaluate(dispatcher, "a")) == 1
    assert 3000 < dispatcher.budget.seconds < 3600
    spent = build(task, BudgetConfig(seconds=3600.0), seconds=3600.0)
    assert [each.score for each in evaluate(spent, "a")] == [0.5], "known candidates cost no time"
    with pytest.raises(EvaluationStoppedError, match=r"^budget\.seconds=3600 is spent$"):
        evaluate(spent, "ab")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (BudgetConfig(parameters=10), "expected at most 10 parameters (budget.parameters), got 11"),
        (BudgetConfig(flops=99), "expected at most 99 FLOPs per example (budget.flops), got 100"),
        (BudgetConfig(parameters=10, flops=99), "expected at most 10 parameters (budget.parameters), got 11"),
    ],
)
def test_budget_refuses_large_candidate(
    build: Build, store: EvaluationStore, limits: BudgetConfig, reason: str
) -> None:
    task = SizedTask({"large": Cost(11, 100), "small": Cost(10, 99)})
    dispatcher = build(task, limits)
    candidates = [StubCandidate("large"), StubCandidate("small"), StubCandidate("large")]
    large, small, again = dispatcher.evaluate(candidates, step=1)
    assert (large.status, large.score, large.error) == (REFUSED, config_with().evaluation.floor_score, reason)
    assert (small.status, again.status, again.cached) == (OK, REFUSED, True)
    assert [key for key, _ in task.calls] == ["small"]
    assert (dispatcher.counts["num_refused"], dispatcher.budget.num_evaluated) == (1, 1)
    assert (store.num_evaluations(run="mine"), [row.key for row in store.top(5)]) == (1, ["small"])
    (larger,) = build(task, BudgetConfig(parameters=11)).evaluate(candidates[:1], step=2)
    assert (larger.status, larger.score) == (OK, 0.5)
    row = store.find(StubCandidate("large"))
    assert row is not None
    assert (row.status, row.error) == (OK, None)
    assert {row.key for row in store.top(5)} == {"small", "large"}


def test_budget_cost_failure_is_refused(build: Build) -> None:
    task = SizedTask({"raises": RuntimeError("no shape"), "none": None, "wrong": "big", "good": Cost(1, 1)})
    dispatcher = build(task, BudgetConfig(flops=5))
    *failed, good = dispatcher.evaluate([StubCandidate(key) for key in task.sizes], step=1)
    assert [each.status for each in failed] == [REFUSED] * 3
    assert good.status is OK
    errors = [str(each.error) for each in failed]
    assert errors[0].startswith("SizedTask.cost: RuntimeError: no shape (test_budget.py:")
    assert errors[1] == "SizedTask.cost: expected a Cost with budget.flops, got None"
    assert errors[2].startswith("SizedTask.cost: AttributeError:")
    assert [key for key, _ in task.calls] == ["good"]


def test_budget_of_task_without_cost_raises(build: Build) -> None:
    for name in ("parameters", "flops"):
        with pytest.raises(UserError, match=rf"^task StubTask: expected cost\(graph\) with budget\.{name}, got a task"):
            build(StubTask({}), BudgetConfig(**{name: 1}))
