"""python -m gflownet.store, on SQLite files and on PostgreSQL."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from gflownet.cli.store import main
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore, Identity
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import Candidate
from tests.evaluation.candidates import StubTask, dispatcher_of
from tests.evaluation.stub_rows import StubCandidate, record

CONTEXT = '{"task": "digits"}'
OTHER_CONTEXT = '{"task": "langu\\u001b[31mage"}'
LEASE = 600.0
Shell = Callable[..., str]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run a command line and return its output; the exit status is `code`."""

    def run(*words: str | Path, code: int = 0) -> str:
        assert main([str(word) for word in words]) == code
        output = capsys.readouterr()
        if code:
            assert output.out == ""
            assert output.err.startswith("error: ")
            assert output.err.count("\n") == 1
        return output.err if code else output.out

    return run


def fill(location: str | Path) -> None:
    """Write a store with two contexts, all statuses, an expired claim and a live one."""
    with EvaluationStore(location, context=CONTEXT) as store:
        failures = [status for status in EvaluationStatus if status not in ("ok", "running")]
        store.add([record(f"ok {i}", score=i / 10, run="first", num_parameters=i, curve=(0.1, 0.2)) for i in range(5)])
        store.add([record(f"{status.value} 1", score=0.0, run="second", status=status) for status in failures])
        store.add([record("ok 4", score=0.99, run="second", seed=1), record("ok 4", score=0.98, fidelity=3, parent=1)])
        claim(store, "ended", lease=-1.0)
        claim(store, "live", lease=LEASE)
    with EvaluationStore(location, context=OTHER_CONTEXT) as store:
        store.add([record("other", score=0.25, run="third", error="line 1\nline \x1b[2J", metrics={"x": float("nan")})])


def claim(store: EvaluationStore, key: str, *, lease: float = LEASE, run: str = "second") -> int | None:
    """Return the earlier attempts of a granted claim, None for a refused one."""
    candidate = StubCandidate(key)
    claims = store.claim([(candidate, Identity.of(candidate))], owner=run, run=run, step=1, lease=lease, max_attempts=2)
    return claims[0].attempts if claims else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    fill(path / "evaluations.sqlite")
    return path


def results(location: str | Path) -> list[dict[str, object]]:
    with StoreOverview(str(location)) as overview:
        return sorted((dict(row) for row in overview.results()), key=lambda row: str(row["identity_digest"]))


def test_ls_lists_tasks_and_runs(folder: Path, shell: Shell) -> None:
    text = shell("ls", folder)
    lines = {words[2]: words for words in map(str.split, text.splitlines()) if len(words) > 8}
    assert text.split()[:8] == ["task", "context", "run", "crashed", "failed", "ok", "out_of_memory", "refused"]
    assert lines["first"][:1] + lines["first"][3:11] == ["digits", "0", "0", "5", "0", "0", "0", "0", "0.4"]
    assert lines["second"][3:11] == ["1", "1", "1", "1", "1", "2", "1", "-"]
    assert lines["third"][10] == "0.25"
    assert "langu\\x1b[31mage" in text
    assert "\x1b[31m" not in text


def test_best_and_show_print_choices_as_yaml(tmp_path: Path, shell: Shell) -> None:
    settings = [{"act": "relu", "width": 4}, {"act": "relu", "width": 8, "rate": 0.1}]
    graphs = [json.dumps(Assignment.of(values).to_dict()) for values in settings]
    with EvaluationStore(tmp_path / "all.sqlite", context=CONTEXT) as store:
        store.add([record(f"{i}", score=i / 10, graph=graph) for i, graph in enumerate(graphs)])
    lines = shell("best", tmp_path / "all.sqlite").splitlines()[-2:]
    assert lines == ["2: {rate: 0.1, width: 8, act: relu}", "1: {width: 4, act: relu}"]
    assert yaml.safe_load("\n".join(lines)) == {2: settings[1], 1: settings[0]}
    assert "choices        {act: relu, width: 4}" in shell("show", tmp_path / "all.sqlite", "1")


def test_show_prints_a_row(folder: Path, shell: Shell) -> None:
    (other,) = [row for row in results(folder / "evaluations.sqlite") if row["key"] == "other"]
    text = shell("show", folder, "hash of other")
    assert re.search(r"^error +line 1 line \\x1b\[2J$", text, re.MULTILINE)
    assert re.search(r"^checksum +valid$", text, re.MULTILINE)
    assert str(other["context"]) in text
    assert shell("show", folder, "1") == shell("show", folder, "hash of ok 0")
    assert shell("show", folder, "1", "--graph") == "{}\n"
    several = shell("show", folder, "hash of ok 4")
    assert several.count("hash of ok") == 3  # search, another seed, another fidelity
    assert "no such row" in shell("show", folder, "999999999999999999999", code=2)
    assert "no such row" in shell("show", folder, "hash_of%", code=2)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_export_writes_every_result(suffix: str, tmp_path: Path, folder: Path, shell: Shell) -> None:
    file = tmp_path / f"rows.{suffix}"
    assert "13 rows exported" in (text := shell("export", folder, file))
    assert "2 without a valid result" in text
    content = file.read_bytes()
    assert "existing" in shell("export", folder, file, code=2)
    assert file.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, "run"]
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines)) if suffix == "csv" else [json.loads(line) for line in lines]
    expected = sorted(results(folder / "evaluations.sqlite"), key=lambda row: str(row["created"]))
    assert {row["key"] for row in rows} == {row["key"] for row in expected}
    (row,) = [row for row in rows if (row["key"], float(row["fidelity"])) == ("ok 4", 3)]
    assert (float(row["score"]), int(row["parent"]), row["context"]) == (0.98, 1, CONTEXT)
    assert "rows.txt" in shell("export", folder, tmp_path / "rows.txt", code=2)


def test_damaged_rows_are_not_exported(tmp_path: Path, folder: Path, shell: Shell) -> None:
    connection = sqlite3.connect(folder / "evaluations.sqlite")
    with connection:
        connection.execute("UPDATE evaluations SET score = 1.0 WHERE key = 'ok 2' AND seed = 0")
    connection.close()
    assert "12 rows exported" in (text := shell("export", folder, tmp_path / "rows.jsonl"))
    assert "3 without a valid result" in text
    assert "does not match" in shell("show", folder, "hash of ok 2")


@pytest.mark.parametrize(
    ("statement", "commands"),
    [
        ("UPDATE evaluations SET created = x'00' WHERE id = 3", ("ls",)),
        ("INSERT INTO evaluation_schema VALUES (2, 4)", ("ls", "best", "export")),
        ("", ("export",)),
    ],
    ids=["bytes in a text", "two versions", "repeated page"],
)
def test_damaged_file_is_one_line(statement: str, commands: tuple[str, ...], tmp_path: Path, shell: Shell) -> None:
    """Neither a traceback nor an endless loop: where a page has the rows of another one, ids begin again."""
    path = tmp_path / "all.sqlite"
    with EvaluationStore(path, context=CONTEXT) as store:
        store.add([record(f"row {k}") for k in range(560)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute(statement or "SELECT 1")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    if not statement:
        content = bytearray(path.read_bytes())
        starts = [at for at in range(0, len(content), size) if content[at] == 0x0D]  # of a table
        early, late = (
            next(at for at in starts if key in content[at : at + size]) for key in (b"row 3row 3", b"row 499row 499")
        )
        content[late : late + size] = content[early : early + size]
        path.write_bytes(content)
    for command in commands:
        file = [tmp_path / "rows.csv"] * (command == "export")
        (line,) = shell(command, path, *file, code=2).splitlines()
        assert str(path) in line
        assert not any(each.exists() for each in file)


def test_requeue_by_status(database: str, shell: Shell) -> None:
    fill(database)
    with EvaluationStore(database, context=CONTEXT) as store:
        assert claim(store, "crashed 1", run="next") is None
        assert shell("requeue", database, "--status", "crashed") == "1 row requeued\n"
        assert claim(store, "timeout 1", run="next") is None
        assert claim(store, "crashed 1", run="next") == 0
        assert shell("requeue", database, "--status", "running") == "1 row requeued\n"  # not the live ones
        assert claim(store, "live", run="next") is None
        assert shell("requeue", database, "--status", "running", "--force") == "3 rows requeued\n"
        assert claim(store, "live", run="next") == 0


def test_requeue_frees_expired_claims_by_default(folder: Path, shell: Shell) -> None:
    assert shell("requeue", folder) == "1 row requeued\n"
    with EvaluationStore(folder / "evaluations.sqlite", context=CONTEXT) as store:
        assert claim(store, "live", run="next") is None
        assert claim(store, "ended", run="next") == 0  # not an attempt


def test_requeue_by_id(folder: Path, shell: Shell) -> None:
    before = results(folder / "evaluations.sqlite")
    assert "--force" in shell("requeue", folder, "hash of live", code=2)
    assert "--force" in shell("requeue", folder, "hash of failed", "hash of ok 1", code=2)
    assert "start of one hash" in shell("requeue", folder, "hash of", code=2)
    assert "no such row" in shell("requeue", folder, "none", code=2)
    assert results(folder / "evaluations.sqlite") == before
    assert shell("requeue", folder, "hash of failed", "hash of timeout") == "2 rows requeued\n"
    assert shell("requeue", folder, "hash of live", "1", "--force") == "2 rows requeued\n"
    assert shell("requeue", folder, "hash of crashed", "hash of refused", "--status", "crashed") == "1 row requeued\n"
    with EvaluationStore(folder / "evaluations.sqlite", context=CONTEXT) as store:
        assert [claim(store, key, run="next") for key in ("failed 1", "timeout 1", "live", "ok 0", "ok 1")] == [
            *(0, 0, 0, 0),
            None,
        ]


def test_location_that_is_no_store(tmp_path: Path, shell: Shell) -> None:
    import sqlite3

    (tmp_path / "text").write_text("text\n" * 1000)
    (tmp_path / "empty").mkdir()
    with sqlite3.connect(tmp_path / "foreign.sqlite") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name in ("missing.sqlite", "text", "foreign.sqlite", "empty"):
        assert str(tmp_path / name) in shell("ls", tmp_path / name, code=2)
    assert "no such file" in shell("ls", f"sqlite:///{tmp_path}/missing.sqlite", code=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == files


def test_location_is_a_url(postgres: str, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no evaluation store" in shell("ls", postgres, code=2)
    fill(postgres)
    monkeypatch.setenv("STORE_OF_TEST", postgres)
    assert "13 rows exported" in shell("export", "${oc.env:STORE_OF_TEST}", tmp_path / "rows.jsonl")
    shared = tmp_path / "shared"  # folder of a run with evaluation.store_url
    shared.mkdir()
    (shared / "config.yaml").write_text("evaluation:\n  store_url: ${oc.env:STORE_OF_TEST}\n")
    assert "it would connect to ${oc.env:STORE_OF_TEST}, resolve" in shell("best", shared, code=2)
    assert "hash of ok" in shell("best", shared, "--trust")
    for url in ("postgresql://me:hunter2${oc.env:HOME}@host/name", "postgresql://host/name?user=me&password=hunter2"):
        assert "hunter2" not in (text := shell("ls", url, code=2))
        assert "password" in text
    assert "database URL" in shell("ls", "postgresql://[::1/name", code=2)
    assert "NO_SUCH_NAME" in shell("ls", "${oc.env:NO_SUCH_NAME}", code=2)


def test_command_line_errors(folder: Path, shell: Shell) -> None:
    for words in ([], ["ls"], ["none", "x"], ["best", folder, "--num", "0"], ["requeue", folder, "--status", "ok"]):
        assert "--help" in shell(*words, code=2)


def test_rows_show_the_words_of_the_task(tmp_path: Path, shell: Shell) -> None:
    class NamedTask(StubTask):
        def words(self, candidate: Candidate) -> str:
            return f"stack {candidate.canonical_key()}"

    location = tmp_path / "evaluations.sqlite"
    candidates = [StubCandidate(key) for key in ("good", "failing")]
    with EvaluationStore(location, context=CONTEXT) as store:
        task = NamedTask({"good": 0.5, "failing": ValueError("none")})
        dispatcher_of(task, store).evaluate(candidates, step=1)
    shown = shell("best", location)
    assert "architecture" in shown
    assert "stack good" in shown
    assert "stack failing" not in shell("ls", location)
