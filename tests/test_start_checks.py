"""Commands refuse a folder in use, an unwritable folder, a missing file or device before torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from gflownet.errors import UserError
from gflownet.evaluation.executors import machine
from gflownet.records import marker
from gflownet.records.marker import LOCK_NAME, RunMarker, write_marker

CODE = """
import contextlib, io, json, sys
from gflownet.__main__ import main

for arguments in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        status = main(arguments)
    print(json.dumps([status, error.getvalue(), "torch" in sys.modules]))
"""
ACTIVE = "log_dir: expected a folder without an active run, got active, which is in use"
WITHOUT_RUN = "run_folder: expected the log_dir of a run with a checkpoint, got"
NO_MODEL = "expected a folder with model.json and model.safetensors, got"
NO_GPU = "device: expected cpu or one of 0 CUDA devices, got cuda"
NOT_WRITABLE = "log_dir: expected a writable folder, got file/run (Not a directory)"
CASES = {
    "train log_dir=active": ACTIVE,
    "train log_dir=file/run": NOT_WRITABLE,
    "train log_dir=done": "log_dir: expected a folder without a run, got done; resume=true continues",
    "train log_dir=new resume=true": "resume: expected a run in new, got none",
    "train log_dir=new device=cuda": NO_GPU,
    "train log_dir=new offline.path=none.jsonl": "offline.path: no such file: none.jsonl",
    "train log_dir=new task=cells task_options.table=none.csv": "task_options.table: no such file: none.csv",
    "train log_dir=new task=table task_options.data=none.csv": "task_options.data: no such file: none.csv",
    "train --config none.yaml": "--config: no such file: none.yaml",
    "language text.txt log_dir=active": ACTIVE,
    "language text.txt log_dir=file/run": NOT_WRITABLE,
    "language text.txt log_dir=new device=cuda:1": f"{NO_GPU}:1",
    "language none.txt log_dir=new": "text: ",
    "language text.txt log_dir=new model=none.yaml": "model: no such file: none.yaml",
    "language text.txt log_dir=new --from none": "--from: ",
    "language text.txt log_dir=new tokenizer=none.json": "tokenizer: none.json: cannot be read (No such file",
    "sample none": f"{WITHOUT_RUN} none",
    "sample done": f"{WITHOUT_RUN} done",
    "sample sampled --device cuda": NO_GPU,
    "sample sampled --output text.txt": "text.txt: expected a new file, got an existing one",
    "sample sampled --output file/new": "file/new: cannot be written",
    "sample busy": "log_dir: expected a folder without an active run, got busy, which is in use",
    "compare --out file/run --methods random task=mnist1d": "--out: expected a folder, got the file",
    "compare --out new --methods random task=mnist1d device=cuda": NO_GPU,
    "compare --out new --methods random task=cells task_options.table=none.csv": "task_options.table: no such file",
    "report none": "no such folder: none",
    "report done --output text.txt": "text.txt: expected no file or a page of gflownet",
    "serve none": f"none: {NO_MODEL} a name that does not exist",
    "serve model --chat-template none": "--chat-template: none: cannot be read",
    "generate done": f"done: {NO_MODEL} one without model.json",
    "generate model --prompts none --out new": "--prompts: cannot read the text file none",
    "generate model --prompts text.txt --out file/new": "file/new",
    "store ls none.sqlite": "no such file: none.sqlite",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with runs, two of them active, a model, a text and a file."""
    (tmp_path / "file").touch()
    (tmp_path / "text.txt").write_text('{"prompt": "a"}\n')
    (tmp_path / "model").mkdir()
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "model" / name).touch()
    for name in ("active", "done", "sampled", "busy"):
        (tmp_path / name).mkdir()
        if name != "active":
            write_marker(tmp_path / name, RunMarker("0" * 32, {"task": "mnist1d"}))
    for name in ("sampled", "busy"):
        (tmp_path / name / "checkpoints").mkdir()
        (tmp_path / name / "checkpoints" / "step_1.pt").touch()
    with FileLock(tmp_path / "active" / LOCK_NAME), FileLock(tmp_path / "busy" / LOCK_NAME):
        yield tmp_path


def test_commands_refuse_before_torch(folder: Path, checkout: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "CUDA_VISIBLE_DEVICES": ""}
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([case.split() for case in CASES])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (case, message), (status, error, has_torch) in zip(CASES.items(), results, strict=True):
        assert (status, has_torch) == (2, False), (case, error)
        assert error.startswith("error: "), (case, error)
        assert message in error, (case, error)
        assert error.count("\n") == 1, (case, error)
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_run_folder_refuses_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"expected a writable folder, got .*Permission denied"):
        marker.check_run_folder(tmp_path / "run", resume=False, overwrite=False)


def test_run_folder_waits_for_a_short_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, True, False])
    monkeypatch.setattr(marker, "is_locked", lambda path: next(looks))
    marker.check_free(tmp_path)
    assert next(looks, None) is None


@pytest.mark.parametrize(
    ("visible", "num_on_machine", "num"), [("", 4, 0), ("-1", 4, 0), ("0", 4, 1), ("0,1,2", 2, 2), (None, 4, 4)]
)
def test_num_cuda_devices(visible: str | None, num_on_machine: int, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, name: str) -> None:
            assert name in ("libcuda.so.1", "libnvidia-ml.so.1")

        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

        def nvmlDeviceGetCount_v2(self, count: object) -> int:  # noqa: N802
            count._obj.value = num_on_machine  # type: ignore[attr-defined]
            return 0

    monkeypatch.setattr(machine, "_has_cuda", lambda: True)
    monkeypatch.setattr(machine.ctypes, "CDLL", Library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.num_cuda_devices() == num
    if num:
        machine.check_device(f"cuda:{num - 1}")
    cause = "" if num else ": CUDA_VISIBLE_DEVICES hides all"
    with pytest.raises(UserError, match=f"device: expected cpu or one of {num} CUDA devices, got cuda:{num}{cause}$"):
        machine.check_device(f"cuda:{num}")


def test_unknown_number_of_devices_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cuda_devices", lambda: None)
    machine.check_device("cuda:7")
    machine.check_device("auto")
