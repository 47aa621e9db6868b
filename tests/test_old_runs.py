"""Run folders of earlier versions: every command reads them or refuses in one line.

old_runs/28ce16b.tar.xz is a run of `--config digits_small` with four steps at commit 28ce16b, without its first
checkpoint: before status.json, report.html, and wandb's groups.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

import gflownet
from gflownet.__main__ import main

ASSET = Path(__file__).parent / "old_runs" / "28ce16b.tar.xz"
MAX_BYTES = 200_000


def unpack(folder: Path) -> Path:
    with tarfile.open(ASSET) as archive:
        archive.extractall(folder, filter="data")
    return folder / "run"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an old run folder for commands that only read."""
    return unpack(tmp_path_factory.mktemp("old"))


def call(*arguments: str) -> str:
    """Return what a command prints; it succeeds."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = main(arguments)
    assert (status, errors.getvalue()) == (0, "")
    return output.getvalue()


def refusal(*arguments: str) -> str:
    """Return the one line of a command that fails."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        assert main(arguments) == 2
    (line,) = errors.getvalue().splitlines()
    return line


def content(folder: Path) -> Iterator[tuple[str, bytes]]:
    return ((path.relative_to(folder).as_posix(), path.read_bytes()) for path in sorted(folder.rglob("*.[jpys]*")))


def test_asset_is_small() -> None:
    assert ASSET.stat().st_size < MAX_BYTES


def test_old_run_store(old: Path) -> None:
    assert "15" in call("store", "ls", str(old))
    assert "0.747222" in call("store", "best", str(old))


def test_old_run_samples(old: Path) -> None:
    rows = [json.loads(line) for line in call("sample", str(old), "--num", "3", "--json").splitlines()]
    assert len(rows) == 3
    assert all(row["log_prob"] < 0 for row in rows)


def test_old_run_weights(old: Path) -> None:
    model = gflownet.load(old / "top_architectures.json", rank=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2523
    with torch.no_grad():
        assert model(torch.zeros(2, 64)).shape == (2, 10)


def test_old_run_is_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = unpack(tmp_path)
    before = (run / "metrics.jsonl").read_text()
    page = call("report", str(run))
    assert (run / "report.html").stat().st_size > 1000, page
    options = ("num_training_steps=6", "wandb.mode=disabled", "final.top=0", "tensorboard.use=true", "report.every=0")
    call("train", f"log_dir={run}", "resume=true", *options)
    rows = (run / "metrics.jsonl").read_text()
    assert rows.startswith(before)
    assert [json.loads(line)["step"] for line in rows.splitlines()] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run / "status.json").read_text())["state"] == "completed"
    assert [record.getMessage() for record in caplog.records if "earlier version" in record.getMessage()] != []
    assert next((run / "tensorboard").iterdir()).name.startswith("events.out.tfevents")


def test_checkpoint_of_other_format_is_refused(tmp_path: Path) -> None:
    run = unpack(tmp_path)
    (checkpoint,) = (run / "checkpoints").iterdir()
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"format 3", b"format 2", 1))
    before = dict(content(run))
    line = refusal("train", f"log_dir={run}", "resume=true", "wandb.mode=disabled", "num_training_steps=6")
    assert "expected a checkpoint of format 3, got format 2" in line
    assert "report.html" not in before
    unchanged = ("metrics.jsonl", "top_architectures.json")
    assert all((run / name).read_bytes() == before[name] for name in unchanged)


def test_folder_without_marker_is_refused(tmp_path: Path) -> None:
    """A version before run.json."""
    run = unpack(tmp_path)
    (run / "run.json").unlink()
    before = dict(content(run))
    for options in ((), ("resume=true",), ("overwrite_existing_exp=true",)):
        line = refusal("train", f"log_dir={run}", "wandb.mode=disabled", *options)
        assert "no run.json (written by an earlier version or by hand); choose another log_dir" in line
    assert "expected" in refusal("sample", str(run))
    assert dict(content(run)) == before
