"""Checkpoints: damaged and malicious files, killed processes, formats."""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.config import command_config
from gflownet.errors import UserError
from gflownet.run.checkpoint import FORMAT_VERSION, CheckpointFolder, DamagedCheckpointError, RunLock, load, save
from gflownet.run.trainer import GFNTrainer
from tests.checkpoint_assets import ASSET_RUN, asset

RUN, OTHER_RUN = "0123456789abcdef" * 2, "f" * 32


def make_state(seed: int = 0) -> dict[str, Any]:
    """A state as a trainer has it: tensors, an optimiser's state, random states, plain values."""
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(4, 3, generator=generator)).sum().backward()
    optimizer.step()
    return {
        "step": seed,
        "policy": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.default_rng(seed).bit_generator.state,
        "python": random.Random(seed).getstate(),
        "rewards": torch.randn(5, generator=generator),
        "graphs": ["{}", "[]"],
        "best": 0.5,
        "nothing": None,
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    state = make_state(3)
    save(tmp_path / "state.pt", state, run=RUN)
    assert same(load(tmp_path / "state.pt"), state)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.parametrize("where", [0, 25, 60, 97, 140, 150, 1000, -1])
def test_load_flipped_bit_raises(where: int, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save(path, make_state(), run=RUN)
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"state.pt: expected .*, got "):
        load(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_load_truncated_file_raises(share: float, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save(path, make_state(), run=RUN)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedCheckpointError):
        load(path)


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_load_earlier_format_raises(version: int, tmp_path: Path) -> None:
    path = tmp_path / "step_00000001.pt"
    path.write_bytes(asset(version))
    with pytest.raises(
        UserError, match=rf"expected a checkpoint of format {FORMAT_VERSION}, got format {version} of another version"
    ) as e:
        load(path)
    assert not isinstance(e.value, DamagedCheckpointError)
    assert "\n" not in str(e.value)


def test_trainer_state_matches_format_version(tmp_path: Path) -> None:
    """A state with other content needs a higher FORMAT_VERSION, and its file by `python -m tests.checkpoint_assets`."""
    path = tmp_path / "step_00000001.pt"
    path.write_bytes(asset(FORMAT_VERSION))
    trainer = GFNTrainer(command_config(None, [*ASSET_RUN, f"log_dir={tmp_path}"]))
    trainer.load_state_dict(load(path))
    assert trainer.progress.step == 1
    trainer.progress.errors.clear()
    assert layout_of(trainer.state_dict()) == layout_of(load(path))


def layout_of(tree: Any) -> Any:
    """Return the keys of nested dicts, and the types and shapes of their leaves."""
    if isinstance(tree, dict):
        return {key: layout_of(value) for key, value in tree.items()}
    return tuple(tree.shape) if isinstance(tree, torch.Tensor) else type(tree).__name__


class Exploit:
    """Runs a command when it is unpickled the careless way."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_load_malicious_file_raises_without_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, proof = tmp_path / "state.pt", tmp_path / "pwned"
    exploit = {"step": Exploit(f"touch {proof}")}
    torch.save(exploit, path)
    with pytest.raises(UserError, match="expected a checkpoint of gflownet"):
        load(path)
    # The same with a first line and a digest that are right, as an attacker would write them.
    monkeypatch.setattr("gflownet.run.checkpoint._read_payload", lambda payload: {})
    save(path, exploit, run=RUN)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"expected tensors and plain containers, got posix.system$"):
        load(path)
    assert not proof.exists()
    torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=False)
    assert proof.exists(), "the exploit would have worked"


@pytest.mark.parametrize("value", [np.float64(1.0), Path("x"), np.arange(3)])
def test_save_unsafe_state_raises(value: object, tmp_path: Path) -> None:
    save(tmp_path / "good.pt", {"value": [(1,)]}, run=RUN)
    for depth in (0, 0, 1):  # again, and within containers whose types are known
        state = {"value": [(value,)] if depth else value}
        with pytest.raises(TypeError, match=r"state: expected tensors and plain containers, got (numpy|pathlib)"):
            save(tmp_path / "state.pt", state, run=RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["good.pt"]


def test_checkpoint_folder_keeps_last_two(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", run=RUN)
    assert folder.latest() is None
    for step in (5, 10, 100, 1_000_000_000):
        folder.save(step, {"step": step})
    found = folder.latest()
    assert found is not None
    assert (found.step, found.state) == (1_000_000_000, {"step": 1_000_000_000})
    assert sorted(path.name for path in folder.folder.iterdir()) == ["step_00000100.pt", "step_1000000000.pt"]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut header": lambda data: data[:30],
    "cut": lambda data: data[:-1],
    "other format": lambda data: data.replace(b"format %d," % FORMAT_VERSION, b"format 9,", 1),
    "other file": lambda data: b"PK\x03\x04" + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_latest_skips_damaged_checkpoint(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path, run=RUN)
    folder.save(1, {"step": 1})
    newest = folder.save(2, {"step": 2})
    data = DAMAGES[damage](newest.read_bytes())
    newest.write_bytes(data)
    newest.with_name(f"{newest.name}.damaged").write_bytes(b"earlier")
    for sets_aside, words in ((False, []), (True, ["it is now step_00000002.pt.damaged2"])):
        caplog.clear()
        found = folder.latest(sets_aside=sets_aside)
        assert found is not None
        assert found.step == 1
        (message,) = caplog.messages
        assert message.startswith(f"{newest}: expected ")
        assert message.split("; ")[-1 - len(words) :] == [*words, "using the previous checkpoint"]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.damaged*")} == {
        f"{newest.name}.damaged": b"earlier",
        f"{newest.name}.damaged2": data,
    }
    assert folder.save(2, {"step": 2}) == newest, "its name is free again"


def test_latest_with_only_damaged_checkpoints_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path, run=RUN)
    path = folder.save(1, {"step": 1})
    path.write_bytes(b"")
    assert folder.latest(sets_aside=True) is None
    assert [message.partition("; ")[2] for message in caplog.messages] == ["it is now step_00000001.pt.damaged"]
    assert path.with_name(f"{path.name}.damaged").read_bytes() == b""


def test_latest_with_only_another_format_raises(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, run=RUN)
    path = folder.save(1, {"step": 1})
    path.write_bytes(path.read_bytes().replace(b"format %d," % FORMAT_VERSION, b"format 9,", 1))
    with pytest.raises(UserError, match="got format 9"):
        folder.latest(sets_aside=True)
    assert path.exists()


def test_checkpoint_folder_ignores_other_runs(tmp_path: Path) -> None:
    other = CheckpointFolder(tmp_path, run=OTHER_RUN)
    foreign = [other.save(step, {"step": step}) for step in (3, 900)]
    (tmp_path / "step_00000950.pt").symlink_to(foreign[1])
    folder = CheckpointFolder(tmp_path, run=RUN)
    assert folder.latest() is None
    for step in (1, 2, 4):
        folder.save(step, {"step": step})
    found = folder.latest()
    assert found is not None
    assert found.step == 4
    assert [path.name for path in folder.own()] == ["step_00000004.pt", "step_00000002.pt"]
    assert all(load(path) for path in foreign)
    for step in (900, 950):
        with pytest.raises(
            UserError, match=r"step_00000\d+.pt: expected a free name for a checkpoint, got a file of another"
        ):
            folder.save(step, {"step": step})


def test_remove_temporaries_of_this_run_only(tmp_path: Path) -> None:
    for run, name in ((RUN, "step_00000001.pt"), (OTHER_RUN, "step_00000002.pt")):
        path = CheckpointFolder(tmp_path, run=run).save(int(name[5:13]), {})
        path.with_name(f"{name}.tmp").write_bytes(path.read_bytes()[:200])
    (tmp_path / "step_00000003.pt.tmp").write_bytes(b"")
    (tmp_path / "notes.tmp").write_text("mine")
    CheckpointFolder(tmp_path, run=RUN).remove_temporaries()
    assert sorted(path.name for path in tmp_path.glob("*.tmp")) == ["notes.tmp", "step_00000002.pt.tmp"]


class HalfWritten:
    """A file whose process is killed in the middle of a write."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


usual_open = Path.open
# name: (how a process is killed in the middle of a save, newest intact step)
MOMENTS: dict[str, tuple[Callable[[], None], int]] = {
    "write": (lambda: setattr(Path, "open", lambda path, mode: HalfWritten(usual_open(path, mode))), 1),
    "fsync": (lambda: setattr(os, "fsync", die), 1),
    "replace": (lambda: setattr(Path, "replace", die), 1),
    "unlink": (lambda: setattr(Path, "unlink", lambda path, missing_ok=False: missing_ok or die()), 2),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_save_is_atomic_under_sigkill(moment: str, tmp_path: Path) -> None:
    arm, newest = MOMENTS[moment]
    state, folder = {"step": 2, "payload": torch.full((100_000,), 2)}, CheckpointFolder(tmp_path, run=RUN)
    folder.save(0, state)
    folder.save(1, state)
    if (child := os.fork()) == 0:
        arm()
        folder.save(2, state)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    for path in tmp_path.glob("*.pt"):
        load(path)
    found = CheckpointFolder(tmp_path, run=RUN).latest()
    assert found is not None
    assert found.step == newest
    CheckpointFolder(tmp_path, run=RUN).remove_temporaries()
    assert list(tmp_path.glob("*.tmp")) == []


def test_run_lock_excludes_second_run(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        lock = RunLock(tmp_path)
        os.write(writer, b"held")
        signal.pause()
        os._exit(len(str(lock)))  # uses the lock, so that it lives until here
    assert os.read(reader, 4) == b"held"
    with pytest.raises(UserError, match=r"log_dir: expected a folder without an active run, got .*") as caught:
        RunLock(tmp_path)
    assert "\n" not in str(caught.value)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    with RunLock(tmp_path), pytest.raises(UserError):
        RunLock(tmp_path)
