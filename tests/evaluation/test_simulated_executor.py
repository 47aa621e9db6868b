"""Simulated time: exact schedules of jobs, deadlines, budgets and whole runs."""

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.executors.simulated import SimulatedExecutor
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.store import EvaluationStore
from gflownet.train import main
from tests.evaluation.candidates import StubCandidate, StubTask, config_with, dispatcher_of
from tests.small_run import SMALL
from tests.tiny_run import metric_rows

OK, FAILED, TIMEOUT = EvaluationStatus.OK, EvaluationStatus.FAILED, EvaluationStatus.TIMEOUT


class TimedTask(StubTask):
    """Takes the simulated seconds of a table, or raises an exception of it."""

    def __init__(self, seconds: dict[str, Any]) -> None:
        super().__init__(dict.fromkeys(seconds, 0.5))
        self.seconds = seconds

    def simulated_seconds(self, graph, *, fidelity, state) -> float:
        if isinstance(self.seconds[graph.key], Exception):
            raise self.seconds[graph.key]
        return self.seconds[graph.key]


def executor_of(capacity: int = 2, **seconds: Any) -> SimulatedExecutor:
    return SimulatedExecutor(TimedTask(seconds), capacity=capacity)


def job_of(keys: str) -> Job:
    return Job(tuple(StubCandidate(key) for key in keys), (0,) * len(keys))


def ends(executor: SimulatedExecutor, *jobs: str, deadline: float | None = None) -> list[tuple[str, float]]:
    handles = {executor.submit(job_of(keys), deadline=deadline): keys for keys in jobs}
    finished = []
    while handles:
        (done,) = executor.wait(list(handles), timeout=None)
        finished.append((handles.pop(done), executor.now()))
    return finished


def test_jobs_start_in_order_on_the_first_free_worker():
    """a and b start at once, c when b ends, d when a and c end: a first."""
    executor = executor_of(a=3, b=1, c=2, d=2)
    assert ends(executor, "a", "b", "c", "d") == [("b", 1), ("a", 3), ("c", 3), ("d", 5)]
    assert ends(executor, "b") == [("b", 6)]


@pytest.mark.parametrize(("capacity", "expected"), [(1, 8), (2, 5), (3, 3), (9, 3)])
def test_more_workers_end_earlier(capacity, expected):
    assert ends(executor_of(capacity, a=3, b=1, c=2, d=2), "a", "b", "c", "d")[-1][1] == expected
    assert ends(executor_of(capacity, a=3, b=1, c=2), "abc") == [("abc", 6)]


def test_wait_advances_the_clock_up_to_its_timeout():
    executor = executor_of(a=3)
    handle = executor.submit(job_of("a"), deadline=None)
    assert executor.wait([handle], timeout=0.0) == []
    assert executor.wait([handle], timeout=2.5) == []
    assert executor.now() == 2.5
    assert executor.wait([handle], timeout=2.5) == [handle]
    assert executor.now() == 3


def test_cancelled_jobs_give_their_workers_back():
    executor = executor_of(1, a=3, b=1, c=2)
    a, b, c = (executor.submit(job_of(key), deadline=None) for key in "abc")
    executor.wait([a], timeout=1.0)
    executor.cancel(b)
    executor.cancel(a)
    assert executor.wait([a, b, c], timeout=None) == [c]
    assert executor.now() == 3
    assert a.outcomes is b.outcomes is None


def test_candidate_over_the_deadline_times_out_without_evaluation():
    executor = executor_of(a=1, b=5)
    job = executor.submit(job_of("aba"), deadline=2.0)
    alone = executor.submit(job_of("b"), deadline=2.0)
    assert executor.wait([job, alone], timeout=None) == [alone]
    assert executor.wait([job], timeout=None) == [job]
    assert executor.now() == 3  # 1 for a, 2 until the deadline of b
    assert job.outcomes is not None
    assert alone.outcomes is not None
    assert [outcome.status for outcome in (*job.outcomes, *alone.outcomes)] == [OK, TIMEOUT, TIMEOUT, TIMEOUT]
    assert (job.process_ended, job.num_finished) == (True, 1)
    assert alone.outcomes[0].seconds == 2
    assert alone.outcomes[0].error == "expected a result within 2 s"
    assert [key for key, _ in cast(TimedTask, executor._task).calls] == ["a"]


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (ValueError("no row"), "ValueError: no row"),
        (math.nan, "simulated_seconds: expected a finite number >= 0, got nan"),
        (-1.0, "simulated_seconds: expected a finite number >= 0, got -1.0"),
    ],
)
def test_candidate_without_seconds_fails_at_once(seconds, error):
    executor = executor_of(a=seconds, b=1)
    handle = executor.submit(job_of("ab"), deadline=None)
    executor.wait([handle], timeout=None)
    assert handle.outcomes is not None
    failed, good = handle.outcomes
    assert (failed.status, failed.seconds) == (FAILED, 0)
    assert error in (failed.error or "")
    assert (good.status, good.seconds, executor.now()) == (OK, 1, 1)


def test_task_without_simulated_seconds_raises():
    with pytest.raises(UserError, match=r"expected a task with simulated_seconds, .* got StubTask"):
        SimulatedExecutor(StubTask({}), capacity=1)


Build = Callable[..., Dispatcher]


@pytest.fixture
def build(tmp_path):
    with EvaluationStore(tmp_path / "store.sqlite") as store:

        def make(capacity: int, limits: BudgetConfig | None = None, **seconds: float) -> Dispatcher:
            executor = executor_of(capacity, **seconds)
            config = config_with("evaluation.deadline=5").evaluation
            return dispatcher_of(executor._task, store, executor, config=config, budget=limits)

        yield make


def candidates(keys: str) -> list[StubCandidate]:
    return [StubCandidate(key) for key in keys]


def test_batches_wait_for_their_last_candidate(build: Build):
    """Batch 1 on two workers: a, b, c end at 3, 1, 3; batch 2 starts at 3: d, e end at 5, 7."""
    dispatcher = build(2, a=3, b=1, c=2, d=2, e=4)
    evaluations = dispatcher.evaluate(candidates("abc"), step=1)
    assert dispatcher.budget.seconds == 3
    evaluations += dispatcher.evaluate(candidates("dea"), step=2)  # a is known
    assert dispatcher.budget.seconds == 7
    assert [evaluation.seconds for evaluation in evaluations] == [3, 1, 2, 2, 4, 3]


def test_budget_ends_at_its_simulated_second(build: Build):
    """On two workers b ends at 1, a at 3, c at 3.5, and d would end at 5."""
    dispatcher = build(2, BudgetConfig(seconds=4), a=3, b=1, c=2.5, d=2)
    with pytest.raises(EvaluationStoppedError, match=r"budget\.seconds=4 is spent"):
        dispatcher.evaluate(candidates("abcd"), step=1)
    assert dispatcher.budget.seconds == 4
    assert dispatcher.num_evaluated == 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_timed_out_candidate_is_not_repeated(build: Build):
    """The recorded 9 seconds of a would exceed the deadline of 5 again."""
    dispatcher = build(1, a=9, b=2)
    late, good = dispatcher.evaluate(candidates("ab"), step=1)
    assert (late.status, good.status) == (TIMEOUT, OK)
    assert dispatcher.budget.seconds == 7


SIMULATED = (
    *SMALL,
    "task=tests.toy_tasks:TakesSimulatedSeconds",
    "replay.use=false",
    "num_training_steps=5",
    "model.num_emb=8",
    "evaluation.executor=simulated",
    "evaluation.capacity=4",
)
ASYNCHRONOUS = ("asynchronous.max_in_flight=8", "replay.resample=true")


def simulated_run(folder: Path, *overrides: str) -> list[dict[str, float]]:
    assert main([*SIMULATED, f"log_dir={folder}", *overrides]) == 0
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_asynchronous_runs_are_equal_and_faster_than_synchronous(tmp_path, capsys):
    first, again = (simulated_run(tmp_path / name, *ASYNCHRONOUS) for name in ("first", "again"))
    for one, other in zip(first, again, strict=True):
        assert {**one, "run": 0, "checksum": 0} == {**other, "run": 0, "checksum": 0}
    assert " ".join(capsys.readouterr().out.split()).count("simulated: 0:00:") == 2
    synchronous = simulated_run(tmp_path / "synchronous")
    assert metric_rows(tmp_path / "first") != metric_rows(tmp_path / "synchronous")
    rates = [rows[-1]["num_distinct"] / rows[-1]["seconds"] for rows in (first, synchronous)]
    assert rates[0] > 1.05 * rates[1]


def test_workers_with_simulated_time_raise(tmp_path, capsys):
    assert main([*SIMULATED, f"log_dir={tmp_path / 'run'}", "num_workers=1"]) == 2
    assert "num_workers: expected 0 with evaluation.executor=simulated, got 1" in capsys.readouterr().err
