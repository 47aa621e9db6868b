"""The store: exact identity, durability, several writers, files that are not its own."""

import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.store import SCHEMA_VERSION, EvaluationStatus, EvaluationStore, Identity
from tests.evaluation.candidates import StubCandidate, record

NUM_WRITERS, NUM_ROWS = 4, 300
NUM_KILLS = 5
# Every writer adds rows of its own and rows that all of them add; a line on stdout acknowledges a row.
WRITER = """
import sys
from gflownet.evaluation.store import EvaluationRecord, EvaluationStatus, EvaluationStore
path, name, num_rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
def record(key):
    return EvaluationRecord(key, key, "{}", score=0.5, status=EvaluationStatus.OK, seconds=0.1, step=1)
with EvaluationStore(path) as store:
    for row in range(num_rows):
        store.add([record(f"{name} {row}"), record(f"shared {row}")])
        print(f"{name} {row}", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evaluations.sqlite"


@pytest.fixture
def store(path):
    with EvaluationStore(path) as store:
        yield store


def query(path: Path, statement: str) -> Any:
    """Returns the first row of a statement, past the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchone()


def start_writer(path: Path, name: str, *, num_rows: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(num_rows)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_row_comes_back_as_it_was(store):
    rows = [
        record("a", metrics={"validation_accuracy": 0.1 + 0.2}, num_parameters=10**12, run="first"),
        record("b", score=0.05, status=EvaluationStatus.FAILED, error="ValueError: ä"),
    ]
    store.add(rows)
    assert [store.find(StubCandidate("a")), store.find(StubCandidate("b"))] == rows
    assert store.find(StubCandidate("c")) is None


def test_equal_hashes_are_told_apart_by_key(store):
    store.add([record("hexagon", score=0.1, hash="same"), record("two triangles", score=0.2, hash="same")])
    keys = ["hexagon", "two triangles", "neither"]
    found = store.find_many([Identity("same", key) for key in keys])
    assert [row and row.score for row in found] == [0.1, 0.2, None]


def test_first_row_of_a_graph_stays(store):
    store.add([record("a", score=0.1, step=1)])
    store.add([record("a", score=0.9, step=2), record("b")])
    found = store.find(StubCandidate("a"))
    assert found is not None
    assert (found.score, found.step, store.count()) == (0.1, 1, 2)


def test_find_many_keeps_order_and_has_no_limit(store):
    keys = [f"key {i}" for i in range(1_234)]
    store.add([record(key) for key in keys[::2]])
    found = store.find_many([Identity.of(StubCandidate(key)) for key in reversed(keys)])
    assert [row and row.key for row in found] == [key if i % 2 == 0 else None for i, key in enumerate(keys)][::-1]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_score_is_a_number(store, score):
    with pytest.raises(ValueError, match="expected a finite score, got"):
        store.add([record("good"), record("bad", score=score)])
    assert store.count() == 0


def test_score_column_is_not_null(store, path):
    store.add([record("a")])
    with pytest.raises(sqlite3.IntegrityError, match=r"NOT NULL constraint failed: evaluations\.score"):
        query(path, "UPDATE evaluations SET score = NULL")


def test_unfinite_metrics_are_valid_json(store, path):
    store.add([record("a", metrics={"train_loss": math.nan, "x": 1.0})])
    found = store.find(StubCandidate("a"))
    assert found is not None
    assert math.isnan(found.metrics["train_loss"])
    assert query(path, "SELECT json_extract(metrics, '$.x') FROM evaluations") == (1.0,)


def test_top_and_count(store):
    assert (store.top(3), store.count()) == ([], 0)
    failed = record("failed", score=0.99, status=EvaluationStatus.FAILED, error="why")
    store.add(
        [record("b", score=0.5), record("a", score=0.5), failed, record("best", score=0.9), record("last", score=0.1)]
    )
    assert [row.key for row in store.top(3)] == ["best", "b", "a"]
    assert (store.count(), store.count(EvaluationStatus.FAILED), store.count(EvaluationStatus.OK)) == (5, 1, 4)


def test_contexts_do_not_see_each_other(path):
    with EvaluationStore(path, context="one") as one, EvaluationStore(path, context="two") as two:
        one.add([record("a", score=0.1)])
        assert (two.find(StubCandidate("a")), two.count(), two.top(1)) == (None, 0, [])
        two.add([record("a", score=0.2)])
        assert [store.top(1)[0].score for store in (one, two)] == [0.1, 0.2]


def test_reopened_store_has_its_rows(path):
    with EvaluationStore(path) as store:
        store.add([record("a")])
    with EvaluationStore(f"sqlite:///{path}") as store:
        assert store.find(StubCandidate("a")) is not None


def test_unknown_schema_version_is_refused(path):
    EvaluationStore(path).close()
    query(path, "UPDATE evaluation_schema SET version = 99")
    with pytest.raises(UserError, match=rf"evaluations\.sqlite: expected .* schema version {SCHEMA_VERSION}, got 99"):
        EvaluationStore(path)


def test_other_files_are_refused(path, tmp_path):
    path.write_text("a text that is longer than the header of a database, and certainly is none" * 10)
    for location in (path, tmp_path / "missing folder" / "x.sqlite"):
        with pytest.raises(UserError, match="cannot be opened as an evaluation store"):
            EvaluationStore(location)


def test_other_databases_are_refused():
    for url, complaint in [("oracle://host/x", "one of sqlite, postgresql, got oracle"), ("://", "a database URL")]:
        with pytest.raises(UserError, match=rf"^evaluation\.store_url: expected {complaint}"):
            EvaluationStore(url)


def test_several_processes_write_one_store(path):
    writers = [start_writer(path, f"writer {i}", num_rows=NUM_ROWS) for i in range(NUM_WRITERS)]
    errors = [writer.communicate()[1] for writer in writers]
    assert errors == [""] * NUM_WRITERS
    with EvaluationStore(path) as store:
        assert store.count() == (NUM_WRITERS + 1) * NUM_ROWS


def test_no_acknowledged_row_is_lost_by_a_kill(path):
    acknowledged = []
    for kill in range(NUM_KILLS):
        with start_writer(path, f"killed {kill}", num_rows=10**6) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(1 + 7 * kill)]
            writer.kill()
            acknowledged += writer.stdout.read().splitlines()[:-1]  # the last line may be cut off
    with EvaluationStore(path) as store:
        assert None not in store.find_many([Identity(key, key) for key in acknowledged])
    assert query(path, "PRAGMA integrity_check") == ("ok",)
