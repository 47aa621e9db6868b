"""The dispatcher at a stop, after a failed write, and on the way between runs."""

import math
import threading
from contextlib import ExitStack, closing

import pytest

from gflownet.errors import UserError
from gflownet.evaluation import dispatcher as dispatcher_module
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.job import EvaluationStatus, Request
from gflownet.evaluation.store.evaluations import EvaluationStore
from tests.evaluation.candidates import StubCandidate, StubTask, dispatcher_of


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
    num_failures = 1

    def add(self, records):
        if self.num_failures:
            self.num_failures -= 1
            raise UserError("database is locked")
        super().add(records)


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


def test_close_releases_claims_where_rows_cannot_be_written(tmp_path):
    task = StubTask({"a": 0.5})
    with FailsOnce(tmp_path / "store.sqlite") as store:
        dispatcher = dispatcher_of(task, store)
        with pytest.raises(UserError, match="database is locked"):
            dispatcher.evaluate([StubCandidate("a")], step=1)
        store.num_failures = 1
        dispatcher.close()
        assert store.count(EvaluationStatus.RUNNING) == 0


def test_end_of_a_run_without_its_database_ends_the_thread_of_its_claims(tmp_path, monkeypatch):
    """The claims end with their lease; a stop while the database is away raises one error and leaves no thread."""
    task = StubTask(dict.fromkeys("ab", 0.5))
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        monkeypatch.setattr("gflownet.evaluation.dispatcher.LEASE", 0.05)
        dispatcher = dispatcher_of(task, store, Isolated(task))
        dispatcher.submit(requests("ab"), step=1)
        threads = [thread for thread in threading.enumerate() if thread.name == "evaluation leases"]
        (tmp_path / "store.sqlite").rename(tmp_path / "away.sqlite")
        (tmp_path / "store.sqlite").write_bytes(b"")  # another file: what is written to it would be lost
        with pytest.raises(UserError, match="another file replaced it"):
            dispatcher.cancel()
        dispatcher.close()
        assert [thread.is_alive() for thread in threads] == [False]
        assert dispatcher.num_in_flight == 0


def test_waiting_for_another_run_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(dispatcher_module, "_LONGEST_LOOK_S", 0.04)
    task = StubTask(dict.fromkeys("ab", 0.5))
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        other, dispatcher = (dispatcher_of(task, store, run=run) for run in ("first", "second"))
        for each in (other, dispatcher):
            each.submit(requests("ab"), step=1)
        for _ in range(8):
            assert dispatcher.advance(timeout=0.02) == 0
        other.cancel()
        while dispatcher.num_in_flight:
            dispatcher.advance(timeout=0.02)
        dispatcher.close()
    assert caplog.messages == ["waiting for 2 evaluations of another run"]


@pytest.mark.parametrize("isolates", [True, False])
def test_lost_main_processes_do_not_quarantine_isolated_candidates(tmp_path, isolates):
    task = StubTask({"a": 0.5})
    with EvaluationStore(tmp_path / "store.sqlite") as store, ExitStack() as stack:
        for _ in range(3):  # three main processes that end without a word
            executor = Isolated(task) if isolates else InlineExecutor(task)
            lost = stack.enter_context(closing(dispatcher_of(task, store, executor)))
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
        assert dispatcher.budget.num_evaluated == store.num_evaluations(run="mine") == 1


class CountingStore(EvaluationStore):
    writes: list[int]

    def add(self, records):
        records = list(records)
        self.writes.append(len(records))
        super().add(records)


class LooksIntoTheStore(StubTask):
    def __init__(self, store: EvaluationStore) -> None:
        super().__init__(dict.fromkeys("abcd", 0.5))
        self.store, self.seen = store, []

    def evaluate(self, graph, *, seed):
        self.seen.append(self.store.count())
        return super().evaluate(graph, seed=seed)


@pytest.mark.parametrize(
    ("write_after", "seen", "writes"), [(0.0, [0, 1, 2, 3], [1, 1, 1, 1]), (math.inf, [0, 0, 0, 0], [4])]
)
def test_records_are_written_when_they_are_worth_a_write(tmp_path, monkeypatch, write_after, seen, writes):
    monkeypatch.setattr(dispatcher_module, "_WRITE_AFTER_S", write_after)
    with CountingStore(tmp_path / "store.sqlite") as store:
        store.writes = []
        task = LooksIntoTheStore(store)
        dispatcher_of(task, store).evaluate([StubCandidate(key) for key in "abcd"], step=1)
        assert task.seen == seen
        assert [num for num in store.writes if num] == writes
        assert store.count() == 4
