"""Checks of the folder, the files and the device of a command, before torch is imported.

The run itself checks them again, under its lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path
from typing import Literal

from gflownet.config import Config, to_mapping
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.options import leaves
from gflownet.records.marker import LOCK_NAME, check_marker, read_marker
from gflownet.records.status import is_locked

# Options that name a file. A task of a user may have others of these names.
_FILES = ("offline.path", "env.catalogue.graphs")
_TASK_FILES = ("task_options.table", "task_options.text", "task_options.data", "task_options.data_test")
_LOCK_WAIT_S, _NUM_LOOKS = 0.5, 10  # as the run: other commands hold the lock for a moment


def check_start(config: Config) -> None:
    """Check what a run needs.

    Raises:
        UserError: the run folder is in use, cannot be written or holds another run, or a file or the device is missing.
    """
    check_resources(config)
    check_run_folder(Path(config.log_dir), resume=config.resume, overwrite=config.overwrite_existing_exp)


def check_resources(config: Config) -> None:
    """Raise UserError for a file or a device that is missing."""
    check_device(config.device)
    values = dict(leaves(to_mapping(config)))
    for key in (*_FILES, *(_TASK_FILES if config.task in TASKS else ())):
        value = str(values.get(key) or "")
        is_path = key != "task_options.data" or (bool(Path(value).suffix) and ":" not in value)
        if value and is_path and not Path(value).exists():
            raise UserError(f"{key}: no such file: {value}")


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


def check_device(name: str) -> None:
    """Raise UserError for a CUDA device that the machine certainly lacks."""
    kind, _, index = name.partition(":")
    num = num_cuda_devices() if kind == "cuda" else None
    if num is not None and int(index or 0) >= num:
        raise UserError(f"device: expected cpu or one of {num} CUDA devices, got {name}")


def num_cuda_devices() -> int | None:
    """Return the number of visible CUDA devices, None if only torch can tell. CUDA itself is not initialised."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if visible is None else [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    if visible is not None and not names:
        return 0
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None if Path("/dev/kfd").exists() else 0  # which GPUs of AMD have
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    num = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(num)):
        return None
    return num.value if visible is None else min(num.value, len(names))
