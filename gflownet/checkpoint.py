"""What a run leaves on disk to go on from: checkpoints that are whole or not there, and the lock of the run folder."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from gflownet.errors import UserError

FORMAT_VERSION = 2
NUM_KEPT = 2
LOCK_NAME = ".lock"

# The first line of a file; torch's payload, whose sha256 it names, is all that follows.
_HEADER = re.compile(rb"gflownet checkpoint, format (\d+), sha256 ([0-9a-f]{64})\n")
_MAX_HEADER_BYTES = 128
_FILE_NAME = re.compile(r"step_(\d+)\.pt")
_REFUSED_NAME = re.compile(r"GLOBAL ([\w.]+)")
_TEMPORARY_SUFFIX = ".tmp"
_log = logging.getLogger(__name__)


class DamagedCheckpointError(UserError):
    """A checkpoint whose bytes are not those that were written."""


@dataclass(frozen=True)
class Checkpoint:
    """A state that was saved after a training step."""

    step: int
    state: dict[str, Any]
    path: Path


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path` at once or not at all, also when the process is killed or the machine loses power.

    Raises:
        TypeError: `state` holds something that `load` would refuse; nothing was written.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    payload = buffer.getvalue()
    try:
        _read_payload(payload)  # now, not when a run of days is to be resumed
    except pickle.UnpicklingError as error:
        raise TypeError(f"state: expected tensors and plain containers, got {_refused_part(error)}") from error
    digest = hashlib.sha256(payload).hexdigest()
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        file.write(f"gflownet checkpoint, format {FORMAT_VERSION}, sha256 {digest}\n".encode())
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def load(path: Path) -> dict[str, Any]:
    """Return the state saved at `path`; nothing in the file is executed.

    Raises:
        DamagedCheckpointError: the file is truncated, altered or no checkpoint at all.
        UserError: it is of another format version, or holds more than tensors and plain containers.
    """
    data = path.read_bytes()
    header = _HEADER.match(data[:_MAX_HEADER_BYTES])
    if header is None:
        raise DamagedCheckpointError(f"{path}: expected a checkpoint of gflownet, got a file without its first line")
    if int(header[1]) != FORMAT_VERSION:
        raise UserError(f"{path}: expected a checkpoint of format {FORMAT_VERSION}, got format {int(header[1])}")
    payload = data[header.end() :]
    if hashlib.sha256(payload).hexdigest() != header[2].decode():
        raise DamagedCheckpointError(f"{path}: expected the bytes that were written, got others (sha256 differs)")
    try:
        return _read_payload(payload)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise UserError(f"{path}: expected tensors and plain containers, got {_refused_part(error)}") from None


class CheckpointFolder:
    """The last checkpoints of a run, one file each; older ones are deleted when a new one is safe."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder, and removes what a killed process left half written."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"*{_TEMPORARY_SUFFIX}"):
            leftover.unlink()

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Save the state after `step` and return its path."""
        path = self.folder / f"step_{step:08d}.pt"
        save(path, state)
        for old in self._paths()[NUM_KEPT:]:
            old.unlink()
        return path

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, logging a warning for each damaged one; None where there is none at all.

        Raises:
            UserError: every checkpoint is damaged, or the newest whole one cannot be read by this version.
        """
        paths = self._paths()
        for path in paths:
            try:
                return Checkpoint(step=_step_of(path), state=load(path), path=path)
            except DamagedCheckpointError as error:
                _log.warning("%s; going back to the checkpoint before", error)
        if paths:
            raise UserError(f"{self.folder}: expected a whole checkpoint, got {len(paths)} damaged ones")
        return None

    def _paths(self) -> list[Path]:
        """The checkpoints, newest first."""
        found = [path for path in self.folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
        return sorted(found, key=_step_of, reverse=True)


class RunLock:
    """Holds a run folder for one process; the operating system frees it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Takes the lock. Raises UserError when another run holds it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / LOCK_NAME)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise UserError(f"log_dir: expected a folder that no run is using, got {folder}, where one runs") from None

    def release(self) -> None:
        """Free the folder."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


def _read_payload(payload: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_of(path: Path) -> int:
    found = _FILE_NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _refused_part(error: Exception) -> str:
    """The name of what torch refused, out of its page of advice."""
    found = _REFUSED_NAME.search(str(error))
    return found[1] if found else "something else"
