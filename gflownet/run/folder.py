"""The folder of a run: names of its files, lock, and renaming of an earlier run."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from gflownet.config import CONFIG_NAME, Config, config_of, to_mapping, to_yaml
from gflownet.errors import LostFolderError, UserError, counted
from gflownet.evaluation.candidates.sets import WEIGHTS_NAME
from gflownet.evaluation.store.database import STORE_NAME, damage_of
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.files import read_entries, temporary_of, write_whole
from gflownet.graphs.canonical import Candidate
from gflownet.options import leaves
from gflownet.records.marker import (
    LOCK_NAME,
    MARKER_NAME,
    PAGE_NAME,
    RunMarker,
    check_marker,
    read_marker,
    write_marker,
)
from gflownet.records.status import STATUS_NAME
from gflownet.report.architectures import PICTURES_NAME, SET_NAME, TOP_NAME
from gflownet.report.closing import FRONT_NAME
from gflownet.report.references import RANDOM_NAME
from gflownet.report.results import RESULTS_NAME
from gflownet.run.checkpoint import Checkpoint, CheckpointFolder, RunLock
from gflownet.run.logging import METRICS_NAME
from gflownet.run.run_log import TENSORBOARD_NAME
from gflownet.run.wandb_log import WANDB_NAME

CHECKPOINTS_NAME = "checkpoints"
CERTIFICATE_NAME = "certificate.json"
CERTIFICATE_STORE_NAME = "certificate.sqlite"
QUARANTINE_NAME = "quarantine.jsonl"
DATA_NAME = "data.txt"  # lines about the data that was read
SKIPPED_NAME = "skipped"  # folder with the batches of skipped steps
SAMPLES_NAME = "samples.jsonl"  # of gflownet language: texts of the model, and its folder
MODEL_NAME = "model"

# All files and folders that a run may write; the names are free when it starts, and the run's from then on.
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")
_NAMES = (
    *(CONFIG_NAME, METRICS_NAME, STATUS_NAME, QUARANTINE_NAME, DATA_NAME),
    *(RESULTS_NAME, TOP_NAME, RANDOM_NAME, FRONT_NAME, SET_NAME, CERTIFICATE_NAME, PAGE_NAME),
    *(f"{name}{end}" for name in (STORE_NAME, CERTIFICATE_STORE_NAME) for end in _SQLITE_ENDS),
    *(CHECKPOINTS_NAME, PICTURES_NAME, WEIGHTS_NAME, WANDB_NAME, TENSORBOARD_NAME, SKIPPED_NAME),
    *(SAMPLES_NAME, MODEL_NAME),  # of gflownet language
)
_log = logging.getLogger(__name__)

# Options that a resumed run may change: they do not change its results, but for those that a diverged run needs.
_MAY_CHANGE = {
    *("log_dir", "resume", "overwrite_existing_exp", "num_training_steps", "budget", "asynchronous", "final"),
    *("opt.learning_rate", "opt.clip_grad_param"),
    *("num_workers", "mp_buffer_size", "pickle_mp_messages", "num_threads", "workers", "device"),
    *("print_every", "console", "validate_every", "checkpoint_every", "wandb", "tensorboard", "report"),
    *("certify", "certify_max_states", "certify_samples"),
    *("evaluation.executor", "evaluation.capacity", "evaluation.deadline", "evaluation.memory_limit"),
    *("evaluation.ray", "evaluation.device", "evaluation.slots_per_device"),
}


class RunFolder:
    """A run's folder, locked for one process while the context is open.

    A new run refuses a folder with a file of a name that it may write. An earlier run is renamed, never deleted. On
    resume the names are the run's; links and checkpoints of other runs are refused before anything is changed.
    """

    def __init__(self, path: Path, *, resume: bool | Literal["auto"], overwrite: bool) -> None:
        """Lock the folder.

        Raises:
            UserError: the folder cannot be written, is in use, holds a run and neither option allows that, holds no run
                to resume, or has files with the names of the run's.
        """
        self.path, self.replaced = path, None  # new path of the earlier run, None without one
        try:
            _check(path, resume=resume, overwrite=overwrite)  # before the lock, which is a file in a folder
            self._lock = RunLock(path)
            marker = self._checked(resume=resume, overwrite=overwrite)
            if marker is not None and not resume:
                self._set_aside()
                marker = self._checked(resume=False, overwrite=False)
        except OSError as error:
            raise UserError(f"log_dir: expected a writable folder, got {path} ({error.strerror})") from None
        self.resumed = marker is not None
        self._marker = marker or RunMarker(uuid.uuid4().hex, {})
        self._is_marked = self.resumed
        self.checkpoints = CheckpointFolder(path / CHECKPOINTS_NAME, run=self.run_id)
        if self.resumed:
            self.checkpoints.remove_temporaries()

    def _checked(self, *, resume: bool | Literal["auto"], overwrite: bool) -> RunMarker | None:
        """Return the marker of the run in the locked folder; an unusable one is unlocked again."""
        try:
            return _check(self.path, resume=resume, overwrite=overwrite)
        except BaseException:
            self._lock.release()
            raise

    def _set_aside(self) -> None:
        """Rename the folder to NAME.1, or the next free number, and lock a new one. Raises OSError."""
        names = (Path(f"{self.path.absolute()}.{number}") for number in count(1))
        self.replaced = next(path for path in names if not os.path.lexists(path))
        try:
            self.path.absolute().rename(self.replaced)
        finally:
            self._lock.release()
        self._lock = RunLock(self.path)

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
        self.refuse_changes(to_mapping(config), _MAY_CHANGE, started=to_mapping(started))

    def refuse_changes(
        self, options: Mapping[str, Any], may_change: Collection[str], *, started: Mapping[str, Any] | None = None
    ) -> None:
        """Raise UserError for the first option, nested ones included, that differs from that of the start."""
        before = dict(leaves(self._marker.config if started is None else started))
        for key, value in leaves(options):
            if not {key, key.partition(".")[0]} & set(may_change) and before.get(key) != value:
                raise UserError(
                    f"{key}: expected {before.get(key)!r}, as the run in {self.path} was started, got {value!r}; "
                    "a run with it needs another log_dir"
                )

    def write_config(self, config: Any) -> None:
        """Write the config, first into the marker of the run."""
        marker = RunMarker(self.run_id, to_mapping(config))
        if marker != self._marker:
            write_marker(self.path, marker)
            self._marker, self._is_marked = marker, True
        write_whole(self.path / CONFIG_NAME, to_yaml(config))

    def lost_rows(self, from_dict: Callable[[dict[str, Any]], Candidate]) -> list[EvaluationRecord]:
        """Return the rows of a missing store that files of the resumed run have, with a warning; none if it is there.

        Raises:
            UserError: the store is damaged.
        """
        if not self.store.exists():
            rows = list({row.identity: row for row in self._reported(from_dict)}.values())
            restored = f"{counted(len(rows), 'result')} restored from {TOP_NAME}, other " if rows else ""
            line = (
                f"{self.store}: expected the evaluations of the run, got no file; {restored}graphs are evaluated again"
            )
            _log.warning("%s", line)
            return rows
        damage = damage_of(self.store)
        if damage is not None:
            raise UserError(
                f"{self.store}: expected an intact database, got a damaged one ({damage}); move it away to resume "
                "without it: graphs are evaluated again"
            )
        return []

    def _reported(self, from_dict: Callable[[dict[str, Any]], Candidate]) -> Iterator[EvaluationRecord]:
        """Yield the rows of the best architectures and of the Pareto front, as far as they can be read."""
        for path in (self.path / name for name in (TOP_NAME, FRONT_NAME)):
            with suppress(OSError, ValueError):
                for entry in read_entries(path)[0]:
                    words = {"words": entry["words"]} if "words" in entry else {}
                    candidate = from_dict(entry["graph"])
                    graph = candidate.to_dict()
                    graph |= {"graph": {**graph.get("graph", {}), **words}} if words else {}
                    yield EvaluationRecord(
                        hash=candidate.canonical_hash(),
                        key=candidate.canonical_key(),
                        graph=json.dumps(graph),
                        score=entry["validation_score"],
                        status=EvaluationStatus.OK,
                        seconds=0.0,  # unknown
                        step=0,
                        run=entry["run"],
                        num_parameters=entry["num_parameters"],
                        metrics=entry["metrics"],
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

    def write(self, path: Path, content: bytes | str) -> None:
        """Write a file of the run. Raises UserError if it cannot be written, LostFolderError like `check`."""
        self.check()
        write_whole(path, content)

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


def _check(path: Path, *, resume: bool | Literal["auto"], overwrite: bool) -> RunMarker | None:
    """Return the marker of the run in a folder, None without a run; raise UserError for an unusable folder."""
    marker, lock = check_marker(path, resume=resume, overwrite=overwrite), path / LOCK_NAME
    if lock.is_symlink() or (lock.exists() and (not lock.is_file() or lock.stat().st_size)):  # ours is empty
        raise _foreign_file(lock)
    if marker is not None and not resume:  # renamed whole
        if Path.cwd().is_relative_to(path.resolve()):
            raise UserError(f"log_dir: expected another folder than the working directory, got {path}, to be renamed")
        return marker
    for file in (file for name in _NAMES for file in (path / name, temporary_of(path / name))):
        if file.is_symlink() or (marker is None and file.exists()):
            raise _foreign_file(file)
    for file in [] if marker is None else CheckpointFolder(path / CHECKPOINTS_NAME, run=marker.run).foreign():
        raise _foreign_file(file)
    return marker


def _foreign_file(path: Path) -> UserError:
    return UserError(f"log_dir: expected only files that the run wrote, got {path}; move it or choose another log_dir")
