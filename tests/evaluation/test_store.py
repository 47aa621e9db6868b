"""The store: exact identity, durability, several writers, files that are not its own."""

import json
import math
import random
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from gflownet.errors import UserError
from gflownet.evaluation.store.database import Database
from gflownet.evaluation.store.evaluations import SCHEMA_VERSION, EvaluationStatus, EvaluationStore, Identity
from tests.disk_limits import file_size_limit
from tests.evaluation.stub_rows import StubCandidate, record
from tests.postgres_server import missing_server, new_database, running_server

NUM_KILLS = 2
# A line on stdout acknowledges a row.
WRITER = """
import sys
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, EvaluationStore
path, name = sys.argv[1:]
def record(key):
    return EvaluationRecord(key, key, "{}", score=0.5, status=EvaluationStatus.OK, seconds=0.1, step=1)
with EvaluationStore(path) as store:
    for row in range(10**6):
        store.add([record(f"{name} {row}")])
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


def test_row_comes_back_as_it_was(store):
    rows = [
        record("a", metrics={"validation_accuracy": 0.1 + 0.2}, num_parameters=10**12, run="first"),
        record("b", score=0.05, status=EvaluationStatus.FAILED, error="ValueError: ä"),
    ]
    store.add(rows)
    assert [store.find(StubCandidate("a")), store.find(StubCandidate("b"))] == rows
    assert store.find(StubCandidate("c")) is None


def test_equal_hashes_are_distinguished_by_key(store):
    store.add([record("hexagon", score=0.1, hash="same"), record("two triangles", score=0.2, hash="same")])
    keys = ["hexagon", "two triangles", "neither"]
    found = store.find_many([Identity("same", key) for key in keys])
    assert [row and row.score for row in found] == [0.1, 0.2, None]


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
    rows = [record(key, score=score) for key, score in (("b", 0.5), ("a", 0.5), ("best", 0.9), ("last", 0.1))]
    store.add([*rows, failed])
    assert [row.key for row in store.top(3)] == ["best", "b", "a"]
    assert (store.count(), store.count(EvaluationStatus.FAILED), store.count(EvaluationStatus.OK)) == (5, 1, 4)


def test_contexts_do_not_see_each_other(path):
    with EvaluationStore(path, context="one") as one, EvaluationStore(path, context="two") as two:
        one.add([record("a", score=0.1)])
        assert (two.find(StubCandidate("a")), two.count(), two.top(1)) == (None, 0, [])
        two.add([record("a", score=0.2)])
        assert [store.top(1)[0].score for store in (one, two)] == [0.1, 0.2]


@pytest.mark.parametrize("version", [3, 99])
def test_other_schema_version_is_refused(path, version):
    EvaluationStore(path).close()
    query(path, f"UPDATE evaluation_schema SET version = {version}")
    content = path.read_bytes()
    message = rf"evaluations\.sqlite: expected .* schema version {SCHEMA_VERSION}, got {version}; use another log_dir"
    with pytest.raises(UserError, match=message):
        EvaluationStore(path)
    assert path.read_bytes() == content


def test_other_files_are_refused(path, tmp_path):
    path.write_text("a text that is longer than the header of a database, and certainly is none" * 10)
    for location in (path, tmp_path / "missing folder" / "x.sqlite"):
        with pytest.raises(UserError, match="cannot be opened as an evaluation store"):
            EvaluationStore(location)


def test_other_databases_are_refused():
    for url, complaint in [("oracle://host/x", "one of sqlite, postgresql, got oracle"), ("://", "a database URL")]:
        with pytest.raises(UserError, match=rf"^evaluation\.store_url: expected {complaint}"):
            EvaluationStore(url)


@pytest.mark.parametrize("url", ["postgresql://me:s3cr3t@/x?host=HOST", "postgresql://me@/x?host=HOST&password=s3cr3t"])
def test_password_is_in_no_error(url, tmp_path):
    pytest.importorskip("psycopg", reason="needs the extra [postgres]")
    with pytest.raises(UserError, match=r"^postgresql\+psycopg://me.*cannot be opened as an evaluation") as raised:
        EvaluationStore(url.replace("HOST", str(tmp_path)))
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        *("score = 0.9", "score = 'x'", "status = 'o'", "graph = '{'", "metrics = 'x'", "key = 'other'"),
        *("error = CAST(x'ff' AS TEXT)", "num_parameters = 7"),
    ],
)
def test_damaged_row_is_named_and_evaluated_again(path, change, caplog):
    with EvaluationStore(path) as store:
        store.add([record("a", score=0.3), record("b", score=0.2), record("c", score=0.1)])
        query(path, f"UPDATE evaluations SET {change} WHERE id = 2")
        assert [row.key for row in store.top(2)] == ["a", "c"]
        assert store.find(StubCandidate("b")) is None
        store.add([record("b", score=0.25)])
        assert [row.score for row in store.top(3)] == [0.3, 0.25, 0.1]
        (line,) = [entry.getMessage() for entry in caplog.records]
    assert line.endswith("row 2 does not match its checksum (1 such rows); hidden, its graph is evaluated again")
    assert query(path, "SELECT count(*) FROM evaluations") == (4,)


def test_one_flipped_bit_never_changes_a_score(path, tmp_path):
    """Of random bits all over the file: every record that is read is one that was written."""
    records = [record(f"{i:02}", score=i / 100, graph=json.dumps({"nodes": [i] * 40})) for i in range(60)]
    with EvaluationStore(path) as store:
        store.add(records)
    intact, draw, num_read = path.read_bytes(), random.Random(0), 0
    for trial in range(25):
        copy = tmp_path / f"{trial}.sqlite"
        data = bytearray(intact)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        copy.write_bytes(data)
        try:
            with EvaluationStore(copy) as store:
                rows = store.top(100)
        except UserError:  # nothing can be read
            continue
        assert set(map(repr, rows)) <= set(map(repr, records))
        num_read += len(rows)
    assert num_read > 18 * len(records)


def test_file_damaged_in_a_kill_is_refused(path):
    """The log beside the file was left by a process that did not close it."""
    with EvaluationStore(path) as store:
        store.add([record(f"{i:03}", graph="x" * 300) for i in range(100)])
    data = bytearray(path.read_bytes())
    data[-4096:-3896] = b"\xff" * 200
    path.write_bytes(data)
    EvaluationStore(path).close()  # closed in order: not checked
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE other (x)")
        message = r"^sqlite:.*: expected an intact database, got a damaged one \(.*\)$"
        with pytest.raises(UserError, match=message):
            EvaluationStore(path)


def test_network_file_system_is_named(path, monkeypatch, caplog):
    types = {"/": "ext4", str(path.parent): "nfs4"}
    partitions = [SimpleNamespace(mountpoint=folder, fstype=name) for folder, name in types.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: partitions)
    EvaluationStore(path).close()
    (line,) = caplog.messages
    assert line.endswith("on a network file system (nfs4) several processes may damage SQLite")
    partitions[1].fstype = "xfs"
    EvaluationStore(path).close()
    assert len(caplog.messages) == 1


def test_too_many_connections_raise_one_line(path):
    with closing(Database(str(path))) as database:
        database._engine = create_engine(f"sqlite:///{path}", pool_size=1, max_overflow=0, pool_timeout=0.01)
        message = r"^sqlite:.*cannot be used as an evaluation store \(QueuePool.*\)$"
        with pytest.raises(UserError, match=message):
            database.read(lambda connection: database.read(lambda other: None))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InterfaceError, UserError), (OperationalError, UserError), (IntegrityError, IntegrityError)],
)
def test_errors_of_a_connection_raise_one_line(path, error, expected):
    def fails(connection: Connection) -> None:
        raise error("SELECT 1", {}, sqlite3.Error("the connection is closed"))

    with closing(Database(str(path))) as database:
        database.patience = 600.0  # a file is never waited for
        with pytest.raises(expected, match="the connection is closed"):
            database.read(fails)


def test_deleted_file_is_written_again(store, path, caplog):
    store.add([record("first")])
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    store.add([record("second", run="other")])
    assert [each.key for each in store] == ["first", "second"]
    assert [each.key for each in store.of_run("other")] == ["second"]
    with EvaluationStore(path) as other:
        assert other.count() == 2
    assert [each for each in caplog.messages if "written again" in each] == caplog.messages != []
    path.unlink()
    path.touch()
    with pytest.raises(UserError, match="another file replaced it"):
        store.add([record("third")])


@pytest.mark.slow
@pytest.mark.skipif(missing_server() is not None, reason=missing_server() or "")
def test_server_that_goes_away_is_waited_for(caplog):
    """No row is lost, none is written twice, also where the connection breaks within a transaction."""
    with running_server() as server, EvaluationStore(new_database(server.folder), patience=60.0) as store:
        store.add([record("first")])
        server.kill()
        store._database.patience = 0.3
        with pytest.raises(UserError, match=r"^postgresql.*cannot be used as an evaluation store \(.*\)$"):
            store.add([record("second")])
        with pytest.raises(UserError, match="cannot be used"):  # leases are renewed later, not waited for
            store.renew(owner="one", lease=1.0)
        store._database.patience = 60.0
        starts = threading.Timer(0.2, server.start)
        starts.start()
        store.add([record("second")])
        starts.join()
        server.kill()
        server.start()
        assert {each.key for each in store} == {"first", "second"}
    assert sum("tried again for up to" in each for each in caplog.messages) == 2  # one line for each time


@pytest.mark.parametrize("limit", [40_000, 70_000])
def test_full_disk_raises_one_line_and_keeps_stored_rows(path, limit):
    with EvaluationStore(path) as store:
        store.add([record("first", score=0.9)])
        rows = [record(str(i), graph="x" * 2_000) for i in range(100)]
        message = r"^sqlite:.*cannot be used as an evaluation store \(.*\)$"
        with file_size_limit(limit), pytest.raises(UserError, match=message):
            deque(map(store.add, ([row] for row in rows)))
        assert store.top(1)[0].key == "first"
        num_rows = store.count()
        store.add([record("last", score=0.95)])
        assert (store.top(1)[0].key, store.count()) == ("last", num_rows + 1)
    assert query(path, "PRAGMA integrity_check") == ("ok",)


@pytest.mark.slow
def test_no_acknowledged_row_is_lost_by_a_kill(path):
    acknowledged = []
    for kill in range(NUM_KILLS):
        command = [sys.executable, "-c", WRITER, str(path), f"killed {kill}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(1 + 7 * kill)]
            writer.kill()
            acknowledged += writer.stdout.read().splitlines()[:-1]  # the last line may be cut off
    with EvaluationStore(path) as store:
        assert None not in store.find_many([Identity(key, key) for key in acknowledged])
    assert query(path, "PRAGMA integrity_check") == ("ok",)
