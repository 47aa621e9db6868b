"""Folders and graphs of another user: without --trust they import, connect to, resolve and create nothing."""

from __future__ import annotations

import importlib
import io
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

import gflownet
from gflownet.__main__ import main
from gflownet.files import sealed
from gflownet.plugins import foreign_names, load_class, load_function
from gflownet.records import trust
from gflownet.records.marker import read_marker, write_marker
from gflownet.records.trust import is_trusted
from tests.finished_runs import CopiedRun

SECRET = "s3cret-of-the-shell"
CANARY = "foreign_canary"  # its import writes a file


class Listener:
    """A server that counts connections and closes them."""

    def __init__(self) -> None:
        self.num_connections, self.received = 0, b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.num_connections += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file that the import of the canary module writes."""
    folder, file = tmp_path / "modules", tmp_path / "imported"
    folder.mkdir()
    text = f"""from pathlib import Path
Path({str(file)!r}).touch()
from gflownet.operations.vocabulary import Activation
from tests.toy_tasks import RewardsHiddenNodes
class Task(RewardsHiddenNodes):
    pass
class Swish(Activation):
    @staticmethod
    def forward(z):
        return z * z.sigmoid()
def build(choices):
    import torch
    return torch.nn.Linear(1, 1)
"""
    (folder / f"{CANARY}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield file
    sys.modules.pop(CANARY, None)


@pytest.fixture
def foreign(copied_run: CopiedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes a run folder of another user, with some options."""

    def make(*options: tuple[str, Any]) -> Path:
        folder = copied_run("toy")
        marker = json.loads((folder / "run.json").read_bytes())
        for key, value in options:
            *groups, name = key.split(".")
            group = marker["config"]
            for each in groups:
                group = group[each]
            group[name] = value
        (folder / "run.json").write_text(json.dumps(sealed(marker)))
        (folder / "config.yaml").write_text(yaml.safe_dump(marker["config"]))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))
        return folder

    return make


def call(*arguments: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = main(arguments)
    return status, output.getvalue(), errors.getvalue()


def refusal(*arguments: str) -> str:
    """Return the one line of a command that fails."""
    status, _, errors = call(*arguments)
    (line,) = errors.splitlines()
    assert status == 2
    assert line.startswith("error: ")
    assert "another user" in line
    assert "pass --trust" in line
    return line


def database_url(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOREIGN_SECRET", SECRET)
    return f"postgresql://user:${{oc.env:FOREIGN_SECRET}}@127.0.0.1:{listener.port}/name"


def write_entry(folder: Path, **fields: Any) -> Path:
    """Write top_architectures.json with one entry of fields in addition to a graph; return its path."""
    entries = json.loads((folder / "top_architectures.json").read_bytes())
    (folder / "top_architectures.json").write_text(json.dumps([sealed({**entries[0], **fields})]))
    return folder / "top_architectures.json"


def graph_with(folder: Path, activation: str) -> dict[str, Any]:
    """Return the best graph of a run with another activation in a hidden node."""
    graph = json.loads((folder / "top_architectures.json").read_bytes())[0]["graph"]
    hidden = next(node for node in graph["nodes"] if node["node_type"] == "hidden")
    hidden["activation_function"] = activation
    return graph


@pytest.mark.parametrize("command", [("report",), ("sample",), ("store", "ls"), ("train", "resume=true")])
def test_foreign_store_url_is_not_connected(
    command: tuple[str, ...], listener: Listener, foreign: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = foreign(("evaluation.store_url", database_url(listener, monkeypatch)))
    (folder / "evaluations.sqlite").unlink()
    place = f"log_dir={folder}" if command[0] == "train" else str(folder)
    if command[0] == "report":
        status, _, errors = call(*command, place)
        assert (status, errors) == (0, "")
        page = (folder / "report.html").read_text()
        assert "--trust" in page
        assert SECRET not in page
    else:
        line = refusal(*command, place)
        assert f"connect to postgresql://user:${{oc.env:FOREIGN_SECRET}}@127.0.0.1:{listener.port}/name" in line
        assert SECRET not in line
    assert listener.num_connections == 0


@pytest.mark.parametrize("command", [("store", "ls"), ("report",)])
def test_trusted_store_url_is_connected(
    command: tuple[str, ...], listener: Listener, foreign: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = foreign(("evaluation.store_url", database_url(listener, monkeypatch)))
    (folder / "evaluations.sqlite").unlink()
    call(*command, str(folder), "--trust")
    assert listener.num_connections > 0


def test_sample_creates_no_tables(foreign: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "database.sqlite"
    folder = foreign(("evaluation.store_url", f"sqlite:///{file}"))
    refusal("sample", str(folder))
    assert not file.exists()
    assert call("sample", str(folder), "--trust", "--num", "2")[0] == 0
    assert file.exists()


@pytest.mark.parametrize("command", [("sample",), ("train", "resume=true"), ("train", "--help", "resume=true")])
def test_foreign_task_is_not_imported(command: tuple[str, ...], foreign: Callable[..., Path], canary: Path) -> None:
    folder = foreign(("task", f"{CANARY}:Task"))
    place = f"log_dir={folder}" if command[0] == "train" else str(folder)
    if "--help" in command:
        assert "another user" in call(*command, place)[2]
    else:
        assert f"it would import {CANARY}:Task;" in refusal(*command, place)
    assert not canary.exists()


def test_trusted_task_is_imported(foreign: Callable[..., Path], canary: Path) -> None:
    folder = foreign(("task", f"{CANARY}:Task"))
    assert call("sample", str(folder), "--trust", "--num", "2")[0] == 0
    assert canary.exists()
    assert call("sample", str(folder), "--num", "2")[0] == 0  # already imported


def test_python_sample(foreign: Callable[..., Path], canary: Path) -> None:
    folder = foreign(("task", f"{CANARY}:Task"))
    with pytest.raises(ValueError, match=f"would import {CANARY}:Task; pass --trust .in Python trust=True"):
        gflownet.sample(folder, 2)
    assert not canary.exists()
    assert len(gflownet.sample(folder, 2, trust=True)) == 2


@pytest.mark.parametrize("text", ["${wandb.project}:${trainer}", "${oc.env:FOREIGN_TASK}", "${${wandb.project}:X}"])
def test_interpolations_hide_no_names(
    text: str, foreign: Callable[..., Path], canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREIGN_TASK", f"{CANARY}:Task")
    project = "oc.env" if text.startswith("${${") else CANARY
    folder = foreign(("task", text), ("wandb.project", project), ("trainer", "Task"))
    refusal("sample", str(folder))
    refusal("train", f"log_dir={folder}", "resume=true")  # which builds its task without a limit on imports
    assert not canary.exists()


def test_foreign_language_run_resolves_nothing(copied_run: CopiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied_run("language")
    marker = json.loads((folder / "run.json").read_bytes())
    marker["config"]["wandb"]["project"] = "${oc.env:FOREIGN_SECRET}"
    (folder / "run.json").write_text(json.dumps(sealed(marker)))
    monkeypatch.setenv("FOREIGN_SECRET", SECRET)
    line = refusal("language", f"log_dir={folder}", "resume=true")
    assert "resolve ${oc.env:FOREIGN_SECRET}" in line
    assert SECRET not in line


@pytest.mark.parametrize("reader", [gflownet.load, gflownet.load_graph])
def test_foreign_graph_is_not_imported(reader: Callable[..., Any], foreign: Callable[..., Path], canary: Path) -> None:
    folder = foreign()
    path = write_entry(folder, graph=graph_with(folder, f"{CANARY}:Swish"), weights=None)
    options = {"weights": False} if reader is gflownet.load else {}
    with pytest.raises(ValueError, match=f"{path}: written by another user's run; it would import {CANARY}:Swish;"):
        reader(folder, **options)
    assert not canary.exists()
    reader(folder, **options, trust=True)
    assert canary.exists() == (reader is gflownet.load)  # a graph is data until it is translated


@pytest.mark.parametrize("function", [f"{CANARY}:build", "subprocess:check_output"])
def test_foreign_build_function_is_not_called(function: str, foreign: Callable[..., Path], canary: Path) -> None:
    import subprocess  # noqa: F401  # an imported module is no reason to call its functions

    folder = foreign()
    graph = {"nodes": [{"name": "touch", "value": 1}]}
    write_entry(folder, graph=graph, module={"build": function}, weights=None)
    with pytest.raises(ValueError, match=f"would import {function};"):
        gflownet.load(folder, weights=False)
    assert not canary.exists()


def test_graph_file_of_a_catalogue_is_not_imported(foreign: Callable[..., Path], canary: Path, tmp_path: Path) -> None:
    from gflownet.graphs.listed_graphs import read_listed_graphs

    folder = foreign()
    file = tmp_path / "graphs.jsonl"
    file.write_text(json.dumps({"graph": graph_with(folder, f"{CANARY}:Swish")}))
    with pytest.raises(ValueError, match=f"would import {CANARY}:Swish"):
        read_listed_graphs(str(file), key="env.catalogue.graphs")
    assert not canary.exists()


def test_foreign_checkpoint_and_store_are_limited(canary: Path) -> None:
    """Names that no scan of a config can see are refused where a module is imported."""
    with foreign_names("folder"):
        with pytest.raises(ValueError, match=f"folder: written by another user's run; it would import {CANARY}:Task"):
            load_class("task", f"{CANARY}:Task", {}, contract=object)
        with pytest.raises(ValueError, match="would import os:system"):
            load_function("module.build", "os:system")
        assert load_class("operation.module", "torch.nn:Linear", {}, contract=object).__name__ == "Linear"
    assert not canary.exists()


def test_own_run_needs_no_option(copied_run: CopiedRun, tmp_path: Path) -> None:
    folder = copied_run("toy")  # a copy in another place
    assert is_trusted(folder)
    assert call("sample", str(folder), "--num", "2")[0] == 0
    moved = folder.rename(tmp_path / "moved")
    assert is_trusted(moved)


@pytest.mark.parametrize("file", ["config.yaml", "run.json"])
def test_changed_folder_is_foreign(file: str, copied_run: CopiedRun) -> None:
    folder = copied_run("toy")
    text = (folder / file).read_text()
    assert "RewardsHiddenNodes" in text
    (folder / file).write_text(text.replace("RewardsHiddenNodes", "Other"))
    assert not is_trusted(folder)


def test_report_does_not_adopt_a_foreign_run(foreign: Callable[..., Path]) -> None:
    folder = foreign()
    (folder / "report.html").unlink()
    assert call("report", str(folder))[0] == 0
    assert (folder / "report.html").exists()
    assert not is_trusted(folder)


def test_trusted_resume_adopts_a_run(foreign: Callable[..., Path]) -> None:
    folder = foreign()
    marker = read_marker(folder)
    assert marker is not None
    with trust.trusting(True):
        write_marker(folder, marker)
    assert is_trusted(folder)


def test_key_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    content = {"format": 1, "run": "a", "config": {}}
    mark = trust.mark_of(content)
    path = tmp_path / "gflownet" / "run_key"
    assert len(mark) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["run_key"]
    assert trust.mark_of({**content, "config": {"seed": 1}}) != mark
    other = tmp_path / "other" / "gflownet" / "run_key"
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    other.chmod(0o644)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert trust.mark_of(content) == ""
    assert "only this user can read" in caplog.text


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_model_folder_names_no_modules(command: str, copied_run: CopiedRun, canary: Path) -> None:
    folder = copied_run("language") / "model"
    description = json.loads((folder / "model.json").read_bytes())
    for key in ("kind", "config"):
        changed = {**description, key: f"{CANARY}:Task"}
        (folder / "model.json").write_text(json.dumps(changed))
        status, _, errors = call(command, str(folder))
        assert (status, len(errors.splitlines())) == (2, 1)
    assert not canary.exists()
