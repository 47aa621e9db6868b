"""The folder of a run: list of its files, lock, and deletion of an earlier run."""

from __future__ import annotations

import logging
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

from gflownet.config import CONFIG_NAME, Config, config_of, to_mapping, to_yaml
from gflownet.errors import LostFolderError, UserError
from gflownet.evaluation.store_database import STORE_NAME, damage_of
from gflownet.files import cannot_write, temporary_of, write_whole
from gflownet.options import leaves
from gflownet.records.marker import LOCK_NAME, MARKER_NAME, RunMarker, check_marker, read_marker, write_marker
from gflownet.records.status import STATUS_NAME
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME
from gflownet.report.closing import FRONT_NAME, FRONT_PICTURE_NAME
from gflownet.report.follower import PAGE_NAME
from gflownet.report.references import RANDOM_NAME, REFERENCES_NAME
from gflownet.run.checkpoint import Checkpoint, CheckpointFolder, RunLock
from gflownet.run.logging import METRICS_NAME
from gflownet.run.tensorboard_log import TENSORBOARD_NAME
from gflownet.run.wandb_log import WANDB_ID_NAME, WANDB_NAME

CHECKPOINTS_NAME = "checkpoints"
CERTIFICATE_NAME = "certificate.json"
CERTIFICATE_STORE_NAME = "certificate.sqlite"
QUARANTINE_NAME = "quarantine.jsonl"
SKIPPED_NAME = "skipped"  # folder with the batches of skipped steps

# All files that a run may write, except its checkpoints, whose header names their run.
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")
_STORES = tuple(f"{name}{end}" for name in (STORE_NAME, CERTIFICATE_STORE_NAME) for end in _SQLITE_ENDS)
_REPORT = (TOP_NAME, REFERENCES_NAME, RANDOM_NAME, FRONT_NAME, FRONT_PICTURE_NAME, CERTIFICATE_NAME, PAGE_NAME)
# Of gflownet.language: samples, and the model with its tokenizer and the weights before they replace older ones.
_MODEL_FILES = ("model.json", "model.safetensors", "model.safetensors.new", "tokenizer.json")
LANGUAGE_FILES = ("samples.jsonl", *(f"model/{name}" for name in _MODEL_FILES))
_FILES = (CONFIG_NAME, METRICS_NAME, STATUS_NAME, QUARANTINE_NAME, *_REPORT, *_STORES)
_NUMBERED_FILE = re.compile(
    rf"{PICTURES_NAME}/(rank_\d+\.(svg|safetensors)|random\.safetensors)|{SKIPPED_NAME}/step_\d{{8,18}}\.pt"
)
_WANDB_RUN = re.compile(r"(offline-)?run-\d{8}_\d{6}-\w+")
_WANDB_FOLDER = f"{WANDB_NAME}/"
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.\d+\..+")
_TENSORBOARD_FOLDER = f"{TENSORBOARD_NAME}/"
_FOLDERS = (CHECKPOINTS_NAME, PICTURES_NAME, WANDB_NAME, TENSORBOARD_NAME, "model", SKIPPED_NAME)
_log = logging.getLogger(__name__)

# Options that a resumed run may change: they do not change its results, but for those that a diverged run needs.
_MAY_CHANGE = {
    *("log_dir", "resume", "overwrite_existing_exp", "num_training_steps", "budget", "asynchronous", "final"),
    *("opt.learning_rate", "opt.clip_grad_param", "opt.max_skipped"),
    *("num_workers", "mp_buffer_size", "pickle_mp_messages", "num_threads", "workers", "device"),
    *("print_every", "console", "validate_every", "checkpoint_every", "wandb", "tensorboard", "report"),
    *("certify", "certify_max_states", "certify_samples"),
    *("evaluation.executor", "evaluation.capacity", "evaluation.deadline", "evaluation.memory_limit"),
    *("evaluation.max_attempts", "evaluation.lease", "evaluation.ray"),
    *("evaluation.device", "evaluation.slots_per_device"),
}


class RunFolder:
    """A run's folder, locked for one process while the context is open.

    run.json lists the files that the run wrote. Only these are replaced or deleted. Other files with the name of one of
    them, links, and checkpoints of other runs are refused before anything is changed.
    """

    def __init__(self, path: Path, *, resume: bool | Literal["auto"], overwrite: bool) -> None:
        """Lock the folder.

        Raises:
            UserError: the folder cannot be written, is in use, holds a run and neither option allows that, holds no run
                to resume, or has other files with the names of the run's.
        """
        self.path = path
        try:
            self._check(resume=resume, overwrite=overwrite)  # before the lock, which is a file in a folder
            self._lock = RunLock(path)
        except OSError as error:
            raise UserError(f"log_dir: expected a writable folder, got {path} ({error.strerror})") from None
        try:
            marker = self._check(resume=resume, overwrite=overwrite)
            if marker is not None and not resume:
                self._clear(marker)
                marker = None
        except BaseException:
            self._lock.release()
            raise
        self.resumed = marker is not None
        self._marker = marker or RunMarker(uuid.uuid4().hex, (), {})
        self._is_marked = self.resumed
        self.checkpoints = CheckpointFolder(path / CHECKPOINTS_NAME, run=self.run_id)
        if self.resumed:
            self.checkpoints.remove_temporaries()

    @property
    def run_id(self) -> str:
        """Return the id of the run, the same when it is resumed."""
        return self._marker.run

    @property
    def store(self) -> Path:
        """Return the path of the evaluations, unless the config names a database."""
        return self.path / STORE_NAME

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from; None if the run died before its first one.

        Raises:
            UserError: all checkpoints of the run are missing or damaged.
        """
        checkpoint = self.checkpoints.latest(sets_aside=True)
        if checkpoint is None and (self.path / METRICS_NAME).exists():  # created after the first checkpoint
            store = f" and evaluation.store_url={self.store.resolve()}, which has its scores" * self.store.exists()
            raise UserError(
                f"resume: expected a checkpoint in {self.checkpoints.folder}, got none; restore one, or start a new "
                f"run with another log_dir{store}"
            )
        return checkpoint

    def check_unchanged(self, config: Config) -> None:
        """Raise UserError for the first changed option that a resumed search may not change."""
        started = config_of(self._marker.config, where=f"{self.path / MARKER_NAME}: ")
        self.refuse_changes(to_mapping(started), to_mapping(config), may_change=_MAY_CHANGE)

    def refuse_changes(
        self, started: Mapping[str, Any], options: Mapping[str, Any], *, may_change: Collection[str]
    ) -> None:
        """Raise UserError for the first option, nested ones included, that differs from that of the start."""
        before = dict(leaves(started))
        for key, value in leaves(options):
            if not {key, key.partition(".")[0]} & set(may_change) and before.get(key) != value:
                raise UserError(
                    f"{key}: expected {before.get(key)!r}, as the run in {self.path} was started, got {value!r}; "
                    "a run with it needs another log_dir"
                )

    def write_config(self, config: Config) -> None:
        """Write the config, and list the files that every run writes."""
        names = [CONFIG_NAME, METRICS_NAME]
        if not config.evaluation.store_url:
            names += [name for name in _STORES if name.startswith(STORE_NAME)]
        if config.tensorboard.use:
            names.append(_TENSORBOARD_FOLDER)
        self.write_options(config, *names)

    def write_options(self, config: Any, *names: str) -> None:
        """Write a config with the group `wandb`, and list files that the run writes."""
        if config.wandb.mode != "disabled":
            names = (*names, _WANDB_FOLDER)
        self._check_free(names)  # before the marker of a new run
        self._write_marker(RunMarker(self.run_id, self._marker.files, to_mapping(config)))
        self.claim(*names)
        write_whole(self.path / CONFIG_NAME, to_yaml(config))

    @property
    def started_options(self) -> Mapping[str, Any]:
        """Return the options of the run when it was started or resumed last, nested."""
        return self._marker.config

    def check_store(self) -> None:
        """Warn if the store of a resumed run is missing. Raises UserError for a damaged one."""
        if not self.store.exists():
            _log.warning("%s: expected the evaluations of the run, got no file; graphs are evaluated again", self.store)
            return
        damage = damage_of(self.store)
        if damage is not None:
            raise UserError(
                f"{self.store}: expected an intact database, got a damaged one ({damage}); move it away to resume "
                "without it: graphs are evaluated again"
            )

    @property
    def is_lost(self) -> bool:
        """Return whether the folder was deleted or moved since the run has written its marker."""
        return self._is_marked and not (self.path / MARKER_NAME).exists()

    def check(self) -> None:
        """Raise LostFolderError if the folder is lost: writing would make another one with a part of the files."""
        if self.is_lost:
            raise LostFolderError(
                f"{self.path}: expected the folder of this run, which was deleted or moved meanwhile (perhaps by a "
                "candidate); the run ends, and nothing more is written"
            )

    def claim(self, *names: str) -> None:
        """Add files to the list of this run, before they are written.

        Raises:
            UserError: another file has one of these names; the list is unchanged.
            LostFolderError: see `check`.
        """
        self.check()
        new = self._check_free(names)
        self._write_marker(RunMarker(self.run_id, (*self._marker.files, *new), self._marker.config))

    def _check_free(self, names: Collection[str]) -> list[str]:
        """Return the names that the run has not listed. Raises UserError if another file has one of them."""
        new = [name for name in names if name not in self._marker.files]
        for name in new:
            assert _may_be_listed(name), f"overwriting would not delete this file: {name}"
            if name not in _LOG_FOLDERS and _is_taken(self.path / name):
                raise _foreign_file(self.path / name)
        return new

    def claim_certificate(self) -> None:
        """Add the certificate's files to the list of this run. Raises UserError like `claim`."""
        self.claim(CERTIFICATE_NAME, *(name for name in _STORES if name.startswith(CERTIFICATE_STORE_NAME)))

    def _write_marker(self, marker: RunMarker) -> None:
        if marker != self._marker:
            write_marker(self.path, marker)
            self._marker, self._is_marked = marker, True

    def write(self, path: Path, content: bytes | str) -> None:
        """Add a file to the list of this run and write it.

        Raises:
            UserError: another file has its name, or it cannot be written.
        """
        self.claim(path.relative_to(self.path).as_posix())
        write_whole(path, content)

    def _check(self, *, resume: bool | Literal["auto"], overwrite: bool) -> RunMarker | None:
        """Return the marker of the run in the folder, None without a run; raise UserError for an unusable folder."""
        path = self.path
        marker = check_marker(path, resume=resume, overwrite=overwrite)
        checkpoints = CheckpointFolder(path / CHECKPOINTS_NAME, run="" if marker is None else marker.run)
        # The run of a damaged checkpoint is unknown: a resumed run renames it, a new one only if it is cut.
        damaged = checkpoints.damaged() if resume else checkpoints.cut()
        allowed = {*checkpoints.own(), *damaged} if marker is not None else set()
        foreign = (file for file in checkpoints.files() if file not in allowed)
        for file in chain(_foreign_files(path, () if marker is None else marker.files), foreign):
            raise _foreign_file(file)
        return marker

    def _clear(self, marker: RunMarker) -> None:
        """Delete the run, its marker last: a folder with a marker holds a run."""
        try:
            checkpoints = CheckpointFolder(self.path / CHECKPOINTS_NAME, run=marker.run)
            checkpoints.remove_temporaries()
            for checkpoint in checkpoints.own():
                checkpoint.unlink()
            for checkpoint in checkpoints.cut():
                checkpoints.set_aside(checkpoint)
            for name in marker.files:
                if name in _LOG_FOLDERS:
                    for path in _LOG_FOLDERS[name](self.path / name):
                        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
                else:
                    (self.path / name).unlink(missing_ok=True)
                    temporary_of(self.path / name).unlink(missing_ok=True)
            for name in _FOLDERS:
                folder = self.path / name
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
            (self.path / MARKER_NAME).unlink()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def last_checkpoint(path: Path, *, option: str) -> Checkpoint:
    """Return the last checkpoint of the run in `path`.

    Raises:
        UserError: there is no run, or no checkpoint of it; the message names the option.
    """
    marker = read_marker(path)
    checkpoint = None if marker is None else CheckpointFolder(path / CHECKPOINTS_NAME, run=marker.run).latest()
    if checkpoint is None:
        raise UserError(f"{option}: expected the log_dir of a run with a checkpoint, got {path}")
    return checkpoint


def policy_weights(path: Path, *, option: str) -> Mapping[str, Any]:
    """Return the policy's weights of the last checkpoint of the run in `path`. Raises UserError where there is none."""
    return last_checkpoint(path, option=option).state["policy"]


def _may_be_listed(name: str) -> bool:
    return name in (*_FILES, *LANGUAGE_FILES, *_LOG_FOLDERS) or _NUMBERED_FILE.fullmatch(name) is not None


def _is_taken(path: Path) -> bool:
    """Return whether a file, folder or link has this name or its temporary name."""
    return path.is_symlink() or path.exists() or temporary_of(path).is_symlink() or temporary_of(path).exists()


def _foreign_file(path: Path) -> UserError:
    return UserError(f"log_dir: expected only files that the run wrote, got {path}; move it or choose another log_dir")


def _foreign_files(folder: Path, listed: Collection[str]) -> Iterator[Path]:
    """Yield unlisted files with names of run files, and links; the header identifies checkpoints."""
    for name in (MARKER_NAME, LOCK_NAME):
        if (folder / name).is_symlink():
            yield folder / name
    lock = folder / LOCK_NAME
    if lock.exists() and (not lock.is_file() or lock.stat().st_size):  # ours is empty
        yield lock
    for name in _FOLDERS:
        if (folder / name).is_symlink() or ((folder / name).exists() and not (folder / name).is_dir()):
            yield folder / name
    for name in listed:
        if not _may_be_listed(name) or (folder / name).is_symlink():
            yield folder / name
    architectures = chain(*((folder / PICTURES_NAME).glob(f"rank_*{suffix}") for suffix in (".svg", ".safetensors")))
    architectures = chain(architectures, (folder / PICTURES_NAME).glob("random.safetensors"))
    for name in (*_FILES, *(f"{PICTURES_NAME}/{path.name}" for path in architectures)):
        if name not in listed and _is_taken(folder / name):
            yield folder / name
    for name, written_files in _LOG_FOLDERS.items():
        if name not in listed:
            yield from written_files(folder / name)


def _made_by_wandb(folder: Path) -> Iterator[Path]:
    """Yield the files of wandb: run folders, links to the latest run, and the file of the run id."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() or path.name == WANDB_ID_NAME or _WANDB_RUN.fullmatch(path.name):
            yield path


def _made_by_tensorboard(folder: Path) -> Iterator[Path]:
    """Yield the event files of TensorBoard."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() or _EVENT_FILE.fullmatch(path.name):
            yield path


# Folders whose file names another library chooses, and the files that are its.
_LOG_FOLDERS = {_WANDB_FOLDER: _made_by_wandb, _TENSORBOARD_FOLDER: _made_by_tensorboard}
