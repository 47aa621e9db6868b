"""Run folders: run.json, their marker with run id and config, and checks of a folder before torch is imported."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from gflownet.errors import UserError
from gflownet.files import parse_sealed, sealed, write_whole
from gflownet.records.trust import CONFIG_NAME, MARKER_NAME, mark_of, may_mark

MARKER_FORMAT = 1
LOCK_NAME = ".lock"  # locked by the process of the run
PAGE_NAME = "report.html"
COMPARISON_FORMAT = "gflownet comparison 1"  # first field of the JSON of compared runs
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system without file locks
_LOCK_WAIT_S, _NUM_LOOKS = 0.5, 10  # other commands hold the lock for a moment
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunMarker:
    """Id and config of the run in a folder."""

    run: str  # id of the run, 32 hexadecimal digits
    config: Mapping[str, Any]  # nested, unresolved

    @property
    def is_search(self) -> bool:
        """Return whether the run is a search, not the training of a language model."""
        return "task" in self.config or "text" not in self.config


def not_a_search(folder: Path) -> str:
    """Return the error message for the folder of a language model in place of a search."""
    return f"{folder}: expected the run of a search, got the training of a language model"


def read_marker(folder: Path) -> RunMarker | None:
    """Return the marker of a run folder, None without one.

    Raises:
        UserError: the marker is damaged, a link, or of another format.
    """
    path = folder / MARKER_NAME
    if path.is_symlink():
        raise UserError(f"{path}: expected a file, got a link, which is not followed")
    try:
        content = parse_sealed(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and content.get("format", MARKER_FORMAT) != MARKER_FORMAT:
        raise UserError(f"{path}: expected the marker of a run in format {MARKER_FORMAT}, got {content['format']!r}")
    match content:
        case {"run": str(run), "config": {**config}} if _RUN_ID.fullmatch(run):
            return RunMarker(run, config)
    raise UserError(f"{path}: expected the marker of a run, got a damaged file; restore it or choose another log_dir")


def check_marker(path: Path, *, resume: bool | Literal["auto"], overwrite: bool) -> RunMarker | None:
    """Return the marker of the run in a folder, None without a run.

    Raises:
        UserError: the folder holds a run and neither option allows that, holds no run to resume, or is a link.
    """
    if path.is_symlink():
        raise UserError(f"log_dir: expected a folder, got {path}, a link to {path.resolve()}; give that path")
    marker = read_marker(path)
    if marker is None and (path / CONFIG_NAME).exists():
        raise UserError(
            f"log_dir: expected a folder of this version, got {path} with a {CONFIG_NAME} but no {MARKER_NAME} "
            "(written by an earlier version or by hand); choose another log_dir"
        )
    if marker is None and resume is True:
        raise UserError(
            f"resume: expected a run in {path}, got none; omit resume to start a new run, or give resume=auto"
        )
    if marker is not None and not resume and not overwrite:
        raise UserError(
            f"log_dir: expected a folder without a run, got {path}; resume=true continues the run there, "
            f"overwrite_existing_exp=true renames it to {path.name}.1, log_dir=OTHER starts one in another folder"
        )
    return marker


def check_run_folder(path: Path, *, resume: bool | Literal["auto"], overwrite: bool) -> None:
    """Raise UserError for the folder of a run that cannot be written, is in use, or holds a run that is to stay."""
    check_marker(path, resume=resume, overwrite=overwrite)
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = os.strerror(errno.EACCES if existing.is_dir() else errno.ENOTDIR)
        raise UserError(f"log_dir: expected a writable folder, got {path} ({reason})")
    check_free(path)


def check_free(path: Path) -> None:
    """Raise UserError for the folder of an active run."""
    for look in range(_NUM_LOOKS):
        if not is_locked(path / LOCK_NAME):
            return
        if look + 1 < _NUM_LOOKS:
            time.sleep(_LOCK_WAIT_S / _NUM_LOOKS)
    raise UserError(f"log_dir: expected a folder without an active run, got {path}, which is in use")


def check_checkpoint(path: Path) -> None:
    """Raise UserError for a folder without the checkpoint of a run, or with an active run."""
    if read_marker(path) is None or not any(path.glob("checkpoints/step_*.pt")):
        raise UserError(f"run_folder: expected the log_dir of a run with a checkpoint, got {path}")
    check_free(path)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock, tested for a moment; True if that cannot be tested."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    else:
        return False
    finally:
        os.close(descriptor)


def check_locks(folder: Path) -> None:
    """Raise UserError for a folder on a file system without locks of files."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UserError(
                f"log_dir: expected a file system with file locks, got {folder} ({error.strerror}); choose a folder on "
                f"a local disk, such as log_dir=/tmp/{folder.name}"
            ) from None
    finally:
        os.close(descriptor)


def free_folder(path: Path) -> Path:
    """Return the first of NAME, NAME_2, NAME_3, ... without a run, of this version or an earlier one."""
    for folder in chain([path], (path.with_name(f"{path.name}_{number}") for number in count(2))):
        has_run = (folder / MARKER_NAME).exists() or (folder / CONFIG_NAME).exists()
        if not has_run and not (folder.is_dir() and is_locked(folder / LOCK_NAME)):
            return folder
    raise AssertionError


def check_folder_options(log_dir: str, *, resume: bool | Literal["auto"], overwrite: bool) -> None:
    """Raise UserError for a run without a folder, or one that is both resumed and replaced."""
    if not log_dir.strip():
        raise UserError(f"log_dir: expected the path of a folder, got {log_dir!r}")
    if resume and overwrite:
        raise UserError(f"resume: expected false with overwrite_existing_exp=true, got {str(resume).lower()}")


def newest_run(path: Path) -> Path:
    """Return the folder among NAME, NAME_2, NAME_3, ... with the run that was started or resumed last."""
    name = re.compile(rf"{re.escape(path.name)}(_\d+)?")
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    runs = [folder for folder in siblings if name.fullmatch(folder.name) and (folder / MARKER_NAME).is_file()]
    return max(runs, key=lambda folder: (folder / MARKER_NAME).stat().st_mtime_ns, default=path)


def write_marker(folder: Path, marker: RunMarker) -> None:
    """Write the marker, with this user's mark unless the run is another user's. Raises UserError if it fails."""
    content = {"format": MARKER_FORMAT, **asdict(marker)}
    content["mark"] = mark_of(content) if may_mark(folder) else ""
    write_whole(folder / MARKER_NAME, json.dumps(sealed(content), indent=1) + "\n")
