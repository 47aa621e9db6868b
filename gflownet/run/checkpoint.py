"""Atomic checkpoints of a run, and the lock of the run folder."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from gflownet.errors import UserError
from gflownet.files import TEMPORARY_SUFFIX, cannot_write, write_whole
from gflownet.records.marker import LOCK_NAME, check_locks

FORMAT_VERSION = 6  # of the trainer's state; tests/checkpoints/ holds one file of each version
NUM_CHECKPOINTS = 2
DAMAGED_SUFFIX = ".damaged"

# First line of a file, followed by torch's payload. The sha256 covers run id and payload.
_HEADER = re.compile(rb"gflownet checkpoint, format (\d+), (?:run ([0-9a-f]{32}), )?sha256 ([0-9a-f]{64})\n")
_MAX_HEADER_BYTES = 256
# Maximum wait in seconds for the lock: `gflownet.records.status` tests it for a moment.
_LOCK_WAIT_S = 0.5
_FILE_NAME = re.compile(r"step_(\d{1,18})\.pt")
_REFUSED_NAME = re.compile(r"GLOBAL ([\w.]+)")
_readable = set[type]()  # of all values of the states that were read after they were written
_log = logging.getLogger(__name__)


class DamagedCheckpointError(UserError):
    """A checkpoint with altered or missing bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A state saved after a training step."""

    step: int
    state: dict[str, Any]
    path: Path


def save(path: Path, state: Mapping[str, Any], *, run: str) -> None:
    """Write the state of a run to `path` atomically and durably.

    Raises:
        TypeError: `state` holds an object that `load` would refuse; nothing was written.
        UserError: the file cannot be written, for example on a full disk; an earlier file at `path` is unchanged.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    payload = buffer.getvalue()
    types = _types_of(state)
    try:
        if not types <= _readable:
            _read_payload(payload)  # fail now, not when a long run is resumed
    except pickle.UnpicklingError as error:
        raise TypeError(f"state: expected tensors and plain containers, got {_refused_type(error)}") from error
    _readable.update(types)
    digest = hashlib.sha256(run.encode() + payload).hexdigest()
    header = f"gflownet checkpoint, format {FORMAT_VERSION}, run {run}, sha256 {digest}\n"
    write_whole(path, header.encode() + payload)


def load(path: Path) -> dict[str, Any]:
    """Return the state saved at `path` without executing code from the file.

    Raises:
        DamagedCheckpointError: the file is truncated, altered or not a checkpoint.
        UserError: the file is of another format version, or holds more than tensors and plain containers.
    """
    data = path.read_bytes()
    header = _HEADER.match(data[:_MAX_HEADER_BYTES])
    if header is None:
        raise DamagedCheckpointError(f"{path}: expected a checkpoint of gflownet, got a file without its header")
    if int(header[1]) != FORMAT_VERSION:
        raise UserError(
            f"{path}: expected a checkpoint of format {FORMAT_VERSION}, got format {int(header[1])} of another version "
            "of gflownet; start a new run with another log_dir"
        )
    payload = data[header.end() :]
    if hashlib.sha256((header[2] or b"") + payload).hexdigest() != header[3].decode():
        raise DamagedCheckpointError(f"{path}: expected an unchanged file, got a different sha256")
    try:
        return _read_payload(payload)
    except Exception as error:  # torch has no list of what damaged bytes raise
        raise UserError(f"{path}: expected tensors and plain containers, got {_refused_type(error)}") from None


@dataclass(frozen=True)
class CheckpointFolder:
    """The last checkpoints of a run, one file each; older ones are deleted after a new one is written.

    The header of a file names its run. Files of other runs are neither read nor deleted.
    """

    folder: Path
    run: str = field(kw_only=True)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Save the state after `step` and return its path.

        Raises:
            UserError: the file cannot be written, or a file of another run has its name.
        """
        path = self.folder / f"step_{step:08d}.pt"
        if (path.is_symlink() or path.exists()) and self._run_of(path) != self.run:
            raise UserError(f"{path}: expected a free name for a checkpoint, got a file of another run")
        save(path, state, run=self.run)
        for old in self.own()[NUM_CHECKPOINTS:]:
            old.unlink()
        return path

    def latest(self, *, sets_aside: bool = False) -> Checkpoint | None:
        """Return the newest checkpoint that can be read, with a warning for each newer one; None without any.

        `sets_aside` renames the newer ones; only the process that holds the lock of the run may do so.

        Raises:
            UserError: all are of another format, or hold more than tensors and plain containers; nothing is renamed.
        """
        errors: dict[Path, UserError] = {}
        checkpoint = None
        for path in (path for path in self.files() if self._run_of(path) in (self.run, None)):
            try:
                checkpoint = Checkpoint(step=_step_of(path), state=load(path), path=path)
                break
            except UserError as error:
                errors[path] = error
        others = [error for error in errors.values() if not isinstance(error, DamagedCheckpointError)]
        if checkpoint is None and others:
            raise others[0]
        for path, error in errors.items():
            name = f"; it is now {self.set_aside(path).name}" if sets_aside else ""
            _log.warning("%s%s%s", error, name, "" if checkpoint is None else "; using the previous checkpoint")
        return checkpoint

    def set_aside(self, path: Path, *, suffix: str = DAMAGED_SUFFIX) -> Path:
        """Rename a file so that it is no checkpoint any more, and return its path. Raises UserError if that fails."""
        names = (path.with_name(f"{path.name}{suffix}{number}") for number in chain([""], count(2)))
        target = next(name for name in names if not (name.is_symlink() or name.exists()))
        try:
            path.rename(target)
        except OSError as error:
            raise cannot_write(target, error) from error
        return target

    def set_aside_from(self, step: int, *, suffix: str) -> int | None:
        """Rename the checkpoints from a step on, unless these are all; return the step of the newest, None without."""
        own = self.own()
        later = [path for path in own if _step_of(path) >= step]
        for path in later if len(later) < len(own) else ():
            self.set_aside(path, suffix=suffix)
        return next(map(_step_of, self.own()), None)

    def own(self) -> list[Path]:
        """Return the checkpoints of this run, newest first."""
        return [path for path in self.files() if self._run_of(path) == self.run]

    def foreign(self) -> list[Path]:
        """Return the files of other runs; the run of a file without a valid header is unknown."""
        return [path for path in self.files() if self._run_of(path) not in (self.run, None)]

    def files(self) -> list[Path]:
        """Return all files with the name of a checkpoint, newest first."""
        if not self.folder.is_dir():
            return []
        paths = [path for path in self.folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
        return sorted(paths, key=_step_of, reverse=True)

    def remove_temporaries(self) -> None:
        """Delete half-written checkpoints of this run, left by a killed process."""
        for path in self.folder.glob(f"step_*.pt{TEMPORARY_SUFFIX}"):
            if self._run_of(path) == self.run or not path.stat().st_size:
                path.unlink()

    def _run_of(self, path: Path) -> str | None:
        """Return the run id in the header; empty for links and headers without one, None for a damaged file."""
        if path.is_symlink():
            return ""
        try:
            with path.open("rb") as file:
                header = _HEADER.match(file.read(_MAX_HEADER_BYTES))
        except FileNotFoundError:  # deleted by its run in another process
            return self.run
        return None if header is None else (header[2] or b"").decode()


class RunLock:
    """Exclusive lock of a run folder; the operating system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lock. Raises UserError when another run holds it, or where the file system has no locks."""
        folder.mkdir(parents=True, exist_ok=True)
        check_locks(folder)
        self._lock = FileLock(folder / LOCK_NAME)
        try:
            self._lock.acquire(timeout=_LOCK_WAIT_S, poll_interval=_LOCK_WAIT_S / 10)
        except Timeout:
            raise UserError(
                f"log_dir: expected a folder without an active run, got {folder}, which is in use"
            ) from None

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read_payload(payload: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")


def _types_of(state: Mapping[str, Any]) -> set[type]:
    """Return the types of all values in nested containers, keys included."""
    types, pending = set[type](), [state]
    while pending:
        value: Any = pending.pop()
        types.add(type(value))
        if isinstance(value, Mapping):
            pending += (*value, *value.values())
        elif isinstance(value, list | tuple | set):
            pending += value
    return types


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _refused_type(error: Exception) -> str:
    """Return the name of the type that torch refused, read from its error message."""
    match = _REFUSED_NAME.search(str(error))
    return match[1] if match else "something else"
