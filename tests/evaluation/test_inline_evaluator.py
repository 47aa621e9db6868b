"""The inline evaluator writes slow results at once and fast ones together, all before it returns."""

import math

import pytest

from gflownet.evaluation import dispatcher, job_queue
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store import EvaluationStore
from tests.evaluation.candidates import StubCandidate, StubTask, config_with

KEYS = "abcd"


class CountingStore(EvaluationStore):
    """Counts the records per write."""

    writes: list[int]

    def add(self, records):
        records = list(records)
        self.writes.append(len(records))
        super().add(records)


class LooksIntoTheStore(StubTask):
    """Counts the rows before it scores a candidate."""

    def __init__(self, store: EvaluationStore) -> None:
        super().__init__(dict.fromkeys(KEYS, 0.5))
        self.store, self.seen = store, []

    def evaluate(self, graph, *, seed):
        self.seen.append(self.store.count())
        return super().evaluate(graph, seed=seed)


@pytest.mark.parametrize(
    ("write_after", "seen", "writes"), [(0.0, [0, 1, 2, 3], [1, 1, 1, 1]), (math.inf, [0, 0, 0, 0], [4])]
)
def test_records_are_written_when_they_are_worth_a_write(tmp_path, monkeypatch, write_after, seen, writes):
    monkeypatch.setattr(dispatcher, "_WRITE_AFTER_S", write_after)
    monkeypatch.setattr(job_queue, "SHORT_S", 0.0)  # one candidate per job
    with CountingStore(tmp_path / "store.sqlite") as store:
        store.writes = []
        task = LooksIntoTheStore(store)
        parts = {"config": config_with().evaluation, "seed": 0}
        Dispatcher(task, store, InlineExecutor(task), **parts).evaluate([StubCandidate(key) for key in KEYS], step=1)
        assert task.seen == seen
        assert [num for num in store.writes if num] == writes
        assert store.count() == len(KEYS)
