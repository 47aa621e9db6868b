"""Checks of a config, and of its folder, files and device, before anything is built and before torch is imported."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from gflownet.command_line.extensions import choices
from gflownet.config import OPTIONS, Config, resolved, to_mapping
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.config import check_conditionals, check_evaluation, check_store_url
from gflownet.evaluation.executors.machine import cause_of_no_cuda_device, num_cuda_devices
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import num_taught
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS
from gflownet.options import leaves
from gflownet.plugins import ExtensionPoint, check_name
from gflownet.records.marker import LOCK_NAME, check_marker, read_marker
from gflownet.records.status import is_locked
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS

_log = logging.getLogger(__name__)
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def validate(config: Config) -> None:
    """Check all values that do not depend on the chosen classes, see `load_extensions` for the others.

    Raises:
        ValueError: the first invalid value, with its full key.
    """
    for option in OPTIONS.values():
        option.check(resolved(config, option))
    check_name(SEARCH_METHODS.key, config.search.method, {AUTO: "", GFLOWNET: "", **SEARCH_METHODS.homes})
    for point, name in choices(config):
        point.check_name(name)
        _warn_of_hidden_class(point, name)
    if config.env.name in ENVIRONMENTS:
        _check_vocabulary(config)
    check_evaluation(config.evaluation)
    check_store_url(to_mapping(config)["evaluation"]["store_url"])
    check_conditionals(config.cond, num_objectives=len(config.evaluation.objectives))
    _check_teacher(config)
    _check_backward_policy(config)
    _check_combinations(config)
    _check_asynchronous(config)
    _check_search(config)
    if config.tensorboard.use and find_spec("tensorboard") is None:
        raise UserError(
            "tensorboard.use: expected tensorboard to be installed, got true without it; "
            "pip install 'gflownet[tensorboard]'"
        )


def _warn_of_hidden_class(point: ExtensionPoint, name: str) -> None:
    """Log that a built-in class is used although an installed package has an entry point with its name."""
    for offer in point.installed.get(name, ()) if name in point else ():
        _log.warning(
            "%s=%s: the built-in class is used; %s is that of the package %s",
            point.key,
            name,
            offer.home,
            offer.package,
        )


def _check_asynchronous(config: Config) -> None:
    if not config.asynchronous.max_in_flight:
        return
    _check_main_process_only(config, "asynchronous.max_in_flight")
    if not config.replay.resample:
        raise UserError(
            "replay.resample: expected true with asynchronous.max_in_flight, whose trajectories are sampled backwards, "
            "got false"
        )


def _check_search(config: Config) -> None:
    """Refuse options of the training on scores, which a search method does without."""
    if config.search.method not in (GFLOWNET, AUTO):
        only = f"; only search.method={GFLOWNET} uses it"
        _check_main_process_only(config, f"search.method={config.search.method}", only)


def _check_main_process_only(config: Config, option: str, end: str = "") -> None:
    for key, value in (("num_workers", config.num_workers), ("local_search.num", config.local_search.num)):
        if value:
            raise UserError(f"{key}: expected 0 with {option}, got {value}{end}")


def _check_vocabulary(config: Config) -> None:
    _check_names("env.activations", config.env.activations, ACTIVATIONS)
    _check_names("env.aggregations", config.env.aggregations, AGGREGATIONS)
    _check_names("env.output_aggregation", [config.env.output_aggregation], AGGREGATIONS)


def _check_names(key: str, names: Collection[str], point: ExtensionPoint) -> None:
    if not names:
        raise UserError(f"{key}: expected at least one of {', '.join(point)}, got []")
    for name in names:
        check_name(key, name, point.homes)


def _check_teacher(config: Config) -> None:
    algo, share = config.algo, config.algo.teacher.share
    if share and not 0 < num_taught(algo) < algo.num_from_policy:
        raise UserError(
            "algo.teacher.share: expected at least one trajectory for the teacher and one for the policy with "
            f"algo.num_from_policy={algo.num_from_policy}, got {share}"
        )


def _check_backward_policy(config: Config) -> None:
    replay = config.replay
    remembers = (replay.use and (not replay.resample or replay.num_batches > 0)) or config.algo.teacher.share > 0
    if config.algo.backward_policy == "pessimistic" and not remembers:
        raise UserError(
            "replay.resample: expected false, and replay.use=true, with algo.backward_policy=pessimistic, which is "
            "otherwise the same as tlm, got "
            f"replay.resample={str(replay.resample).lower()} and replay.use={str(replay.use).lower()}"
        )


def _check_combinations(config: Config) -> None:
    if not config.log_dir.strip():
        raise UserError(f"log_dir: expected the path of a folder, got {config.log_dir!r}")
    if not _DEVICE.fullmatch(config.device):
        raise UserError(f"device: expected cpu, cuda or cuda:N, got {config.device!r}")
    if config.resume and config.overwrite_existing_exp:
        got = str(config.resume).lower()
        raise UserError(f"resume: expected false with overwrite_existing_exp=true, got {got}")
    if config.model.num_emb % config.model.num_heads:
        raise UserError(
            f"model.num_emb: expected a multiple of model.num_heads={config.model.num_heads}, "
            f"got {config.model.num_emb}"
        )
    if config.replay.warmup > config.replay.capacity:
        raise UserError(
            f"replay.warmup: expected at most replay.capacity={config.replay.capacity}, got {config.replay.warmup}"
        )
    if config.local_search.num and config.local_search.start == "replay" and not config.replay.use:
        raise UserError("local_search.start: expected fresh with replay.use=false, got replay")
    if config.local_search.start == "fresh" and config.local_search.num > config.algo.num_from_policy:
        raise UserError(
            f"local_search.num: expected at most algo.num_from_policy={config.algo.num_from_policy} with "
            f"local_search.start=fresh, got {config.local_search.num}"
        )


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
        cause = "" if num else f": {cause_of_no_cuda_device()}"
        raise UserError(f"device: expected cpu or one of {num} CUDA devices, got {name}{cause}")
