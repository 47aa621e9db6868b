"""The dispatcher at a stop, after a failed write, and on the way between runs."""

from typing import Any

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.ticket import Request
from tests.evaluation.candidates import StubCandidate, StubTask, config_with


class Isolated(InlineExecutor):
    """Runs a job when it is submitted, as if in another process; its results wait to be collected."""

    isolates = True

    def submit(self, job, *, deadline):
        handle = super().submit(job, deadline=deadline)
        super().wait([handle], timeout=None)
        return handle

    def wait(self, handles, *, timeout):
        return [handle for handle in handles if handle.outcomes is not None]


class FailsOnce(EvaluationStore):
    """Cannot be written at the first attempt."""

    num_failures = 1

    def add(self, records):
        if self.num_failures:
            self.num_failures -= 1
            raise UserError("database is locked")
        super().add(records)


def dispatcher_of(task: StubTask, store: EvaluationStore, executor: Any = None, **options: Any) -> Dispatcher:
    config = config_with().evaluation
    return Dispatcher(task, store, executor or InlineExecutor(task), config=config, seed=0, run="mine", **options)


def requests(keys: str) -> list[Request]:
    return [Request(StubCandidate(key)) for key in keys]


def test_stop_keeps_results_that_are_not_collected(tmp_path):
    stop: list[bool] = []
    task = StubTask(dict.fromkeys("ab", 0.5))
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        dispatcher = dispatcher_of(task, store, Isolated(task), stopped=lambda: bool(stop))
        dispatcher.submit(requests("ab"), step=1)
        stop.append(True)
        with pytest.raises(EvaluationStoppedError):
            dispatcher.advance(timeout=0.0)
        assert store.count(EvaluationStatus.OK) == len(task.calls) > 0


def test_failed_write_is_repeated(tmp_path):
    task = StubTask({"a": 0.5})
    with FailsOnce(tmp_path / "store.sqlite") as store:
        dispatcher = dispatcher_of(task, store)
        with pytest.raises(UserError, match="database is locked"):
            dispatcher.evaluate([StubCandidate("a")], step=1)
        dispatcher.close()
        assert store.count(EvaluationStatus.OK) == 1


@pytest.mark.parametrize("isolates", [True, False])
def test_lost_main_processes_do_not_quarantine_isolated_candidates(tmp_path, isolates):
    task = StubTask({"a": 0.5})
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        for _ in range(3):  # three main processes that end without a word
            executor = Isolated(task) if isolates else InlineExecutor(task)
            lost = dispatcher_of(task, store, executor)
            lost.submit(requests("a"), step=1)
            store.requeue(run="mine")
        (evaluation,) = dispatcher_of(task, store, Isolated(task) if isolates else None).evaluate(
            [StubCandidate("a")], step=2
        )
        assert evaluation.status is (EvaluationStatus.OK if isolates else EvaluationStatus.CRASHED)


def test_budget_counts_repeated_evaluation_when_it_is_claimed(tmp_path):
    task = StubTask({"a": 0.5})
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        failing = StubTask({"a": ConnectionError("gone")})
        dispatcher_of(failing, store).evaluate([StubCandidate("a")], step=1)
        dispatcher = dispatcher_of(task, store, num_evaluated=1)
        dispatcher.evaluate([StubCandidate("a")], step=2)
        assert dispatcher.num_evaluated == store.num_evaluations(run="mine") == 1
