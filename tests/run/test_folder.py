"""Run folder: files of the run and others, resume, overwrite, damage."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from gflownet.config import command_config, default_folder, load_config
from gflownet.errors import UserError
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.language import config as language
from gflownet.records.marker import newest_run
from gflownet.run.folder import RunFolder, last_checkpoint
from tests.evaluation.candidates import record

MINE = "the user's own"
EVENTS = "tensorboard/events.out.tfevents.1700000000.host.7.0"


config_with = functools.cache(lambda *overrides: load_config(None, overrides))


def start(path: Path, *overrides: str, resume: Any = False, overwrite: bool = False, step: int = 3) -> str:
    """Hold the folder for a run that writes some of its files, and return its id."""
    with RunFolder(path, resume=resume, overwrite=overwrite) as folder:
        folder.write_config(config_with(*overrides))
        folder.checkpoints.save(step, {"step": step, "policy": {}})
        (path / "metrics.jsonl").write_text('{"step": 1}\n')
        for name in ("top_architectures.json", "pareto_front.json", "results.json", "architectures/rank_0.svg"):
            folder.write(path / name, "[]")
        folder.write(path / "architectures" / "rank_0.safetensors", b"weights")
        return folder.run_id


def content(path: Path) -> dict[str, bytes | str]:
    """Return every file below a path with its content, links with their target."""
    return {
        str(file.relative_to(path)): os.readlink(file) if file.is_symlink() else file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_symlink() or file.is_file()
    }


def refused(path: Path, **options: Any) -> str:
    """Return the one line that refuses a folder, which stays as it was."""
    before = content(path)
    with pytest.raises(UserError) as caught:
        start(path, **{"resume": False, "overwrite": False, **options})
    assert content(path) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_overwrite_renames_the_whole_folder(path, tmp_path):
    first = start(path, "wandb.mode=offline", "tensorboard.use=true")
    (tmp_path / "elsewhere").write_text(MINE)
    for name in ("notes.txt", "checkpoints/best.pt", "wandb/notes.txt", "certificate.json"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(MINE)
    (path / "report.html").symlink_to(tmp_path / "elsewhere")
    before = content(path)
    assert "overwrite_existing_exp=true renames it to run.1" in refused(path)
    (tmp_path / "run.1").write_text(MINE)
    with RunFolder(path, resume=False, overwrite=True) as folder:
        assert folder.run_id != first
        assert folder.replaced == tmp_path / "run.2"
        assert content(tmp_path / "run.2") == before
        assert sorted(content(path)) == [".lock"]
        with pytest.raises(UserError, match="without an active run"):
            RunFolder(path, resume=False, overwrite=True)
    assert (tmp_path / "run.1").read_text() == (tmp_path / "elsewhere").read_text() == MINE
    assert start(path, overwrite=True, step=9) != first
    assert last_checkpoint(path, option="x").step == 9
    assert not (tmp_path / "run.3").exists(), "an empty folder has no run"


def test_overwrite_of_the_working_directory_raises(path, monkeypatch):
    start(path)
    (path / "deeper").mkdir()
    monkeypatch.chdir(path / "deeper")
    for folder in (path, Path("..")):
        assert "expected another folder than the working directory" in refused(folder, overwrite=True)


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "metrics.jsonl", "metrics.jsonl.tmp", "evaluations.sqlite", "evaluations.sqlite-wal"),
        *("top_architectures.json", "architectures/rank_7.svg", "architectures/rank_7.safetensors"),
        *("certificate.json", "checkpoints/step_00000042.pt", "wandb/run_id", EVENTS, ".lock", "checkpoints"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": "auto"}])
def test_run_folder_with_other_files_raises(path, name, options):
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(MINE)
    assert refused(path, **options).startswith("log_dir: expected ")


@pytest.mark.parametrize("resume", [True, "auto"])
def test_run_folder_with_checkpoints_of_other_run_raises(path, tmp_path, resume):
    start(tmp_path / "other", step=90)
    newer = tmp_path / "other" / "checkpoints" / "step_00000090.pt"
    start(path)
    (path / "checkpoints" / newer.name).write_bytes(newer.read_bytes())
    assert newer.name in refused(path, resume=resume)
    assert last_checkpoint(path, option="x").step == 3


@pytest.mark.parametrize(
    "name",
    [
        *("", "run.json", ".lock", "config.yaml", "metrics.jsonl"),
        *("checkpoints", "architectures", "checkpoints/step_00000003.pt"),
    ],
)
def test_run_folder_links_raise(path, tmp_path, name):
    start(path)
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "moved"
    (path / name).rename(moved)
    (path / name).symlink_to(moved)
    before = content(moved) if moved.is_dir() else moved.read_bytes()
    assert "expected" in refused(path, resume=True)
    if name in ("", "run.json", ".lock"):
        assert "expected" in refused(path, overwrite=True)
    assert (content(moved) if moved.is_dir() else moved.read_bytes()) == before


def test_resume_auto_starts_or_continues(path):
    assert "got none; omit resume" in refused(path, resume=True)
    first = start(path, resume="auto")
    assert start(path, resume="auto") == start(path, resume=True) == first


def test_resume_without_checkpoints_raises(path):
    start(path)
    (path / "checkpoints" / "step_00000003.pt").unlink()
    message = r"resume: expected a checkpoint in .*checkpoints, got none; restore one"
    with RunFolder(path, resume=True, overwrite=False) as folder, pytest.raises(UserError, match=message):
        folder.last_checkpoint()


@pytest.mark.parametrize("content", [b"", b"gflownet check"])
def test_resume_with_only_damaged_checkpoints_names_the_store(path, content):
    start(path)
    (path / "checkpoints" / "step_00000003.pt").write_bytes(content)
    (path / "evaluations.sqlite").touch()
    with RunFolder(path, resume=True, overwrite=False) as folder:
        for _ in range(2):  # the second time the file has another name
            with pytest.raises(UserError, match=f"got none; .* evaluation.store_url={path}/evaluations.sqlite"):
                folder.last_checkpoint()
    assert [file.read_bytes() for file in (path / "checkpoints").iterdir()] == [content]


def test_run_folder_of_earlier_version_raises(path):
    start(path)
    (path / "run.json").unlink()
    for options in ({}, {"overwrite": True}, {"resume": True}, {"resume": "auto"}):
        line = refused(path, **options)
        assert "with a config.yaml but no run.json (written by an earlier version or by hand); choose another" in line


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{", b'{"run": "x"}', b"\xff", b'{"format": 2}'])
def test_damaged_marker_raises(path, damaged):
    start(path)
    (path / "run.json").write_bytes(damaged)
    for options in ({}, {"overwrite": True}, {"resume": True}, {"resume": "auto"}):
        assert "run.json: expected the marker of a run" in refused(path, **options)


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"seed: [", b"seeed: 1\n", None])
def test_damaged_config_is_restored_with_warning(path, damaged, caplog):
    start(path, "seed=7", "task=hypergrid")
    before = (path / "config.yaml").read_bytes()
    (path / "config.yaml").unlink()
    if damaged is not None:
        (path / "config.yaml").write_bytes(damaged)
    config = command_config(None, [f"log_dir={path}", "resume=true"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(path / "config.yaml") in line
    assert line.endswith("; the copy in run.json is used")
    assert (config.seed, config.task) == (7, "hypergrid")
    with RunFolder(path, resume=True, overwrite=False) as folder:
        folder.check_unchanged(config)
        folder.write_config(config_with("seed=7", "task=hypergrid"))
    assert (path / "config.yaml").read_bytes() == before


def test_resume_with_edited_config_file_raises(path):
    start(path, "seed=7")
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("seed: 7", "seed: 3"))
    with (
        RunFolder(path, resume=True, overwrite=False) as folder,
        pytest.raises(UserError, match=r"^seed: expected 7, as"),
    ):
        folder.check_unchanged(command_config(None, [f"log_dir={path}", "resume=true"]))


def test_resume_with_missing_store_warns(path, caplog):
    start(path)
    with RunFolder(path, resume=True, overwrite=False) as folder:
        folder.lost_rows(ComputationGraph.from_dict)
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{path}/evaluations.sqlite: expected the evaluations of the run, got no file; graphs are evaluated again"
    ]


def test_resume_with_damaged_store_is_refused(path, caplog):
    start(path)
    with EvaluationStore(path / "evaluations.sqlite") as store:
        store.add([record(str(i)) for i in range(50)])
    data = bytearray((path / "evaluations.sqlite").read_bytes())
    data[-200:] = b"\xff" * 200
    (path / "evaluations.sqlite").write_bytes(data)
    with RunFolder(path, resume=True, overwrite=False) as folder:
        message = r"evaluations\.sqlite: expected an intact database, got a damaged one \(.*\); move it away to resume"
        with pytest.raises(UserError, match=message):
            folder.lost_rows(ComputationGraph.from_dict)
        folder.store.unlink()
        folder.lost_rows(ComputationGraph.from_dict)
    assert len(caplog.records) == 1


def test_default_folder_of_commands() -> None:
    """A config of gflownet has a default folder; an override and a file of the user name one."""
    start(Path("logs/exact"))
    start(Path("logs/language_model"))
    Path("logs/exact_2").mkdir()
    Path("mine.yaml").write_text("log_dir: logs/exact\n")
    for source, overrides, default, chosen in (
        ("exact", [], "logs/exact", "logs/exact_2"),
        (None, ["task=tests.toy_tasks:Own"], "logs/tests.toy_tasks:Own", "logs/tests.toy_tasks:Own"),
        ("mine.yaml", [], "", "logs/exact"),
        ("exact", ["log_dir=logs/exact"], "", "logs/exact"),
        ("exact", ["overwrite_existing_exp=true"], "", "logs/exact"),
        ("exact", ["resume=true"], "", "logs/exact"),
    ):
        config = command_config(source, overrides)
        assert (default_folder(config, source, overrides), config.log_dir) == (default, chosen), (source, overrides)
    text = language.load_config(None, [], files=[], from_run=None)
    assert default_folder(text, None, [], language.ROOM) == "logs/language_model"
    assert text.log_dir == "logs/language_model_2"


def test_newest_run_of_a_default_folder() -> None:
    assert newest_run(Path("logs/none")) == Path("logs/none")
    for number, name in enumerate(("exact", "exact_10", "exact_2", "exact_large", "exact_3x")):
        start(Path("logs") / name)
        os.utime(Path("logs") / name / "run.json", ns=(number, number))
    Path("logs/exact_11").mkdir()
    assert newest_run(Path("logs/exact")) == Path("logs/exact_2")
    for source in ("exact", None):
        assert command_config(source, ["resume=true", "task=exact"]).log_dir == "logs/exact_2"
    assert command_config("exact", ["resume=true", "log_dir=logs/exact"]).log_dir == "logs/exact"
    options = language.command_config(None, ["resume=true"], files=["a"], from_run=None)
    assert options.log_dir == "logs/language_model"
