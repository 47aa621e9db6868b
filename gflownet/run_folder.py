"""The folder of a run: who may use it, what lies where, and what a new run may replace."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from gflownet.checkpoint import Checkpoint, CheckpointFolder, RunLock
from gflownet.errors import UserError
from gflownet.logging import METRICS_NAME
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME

CONFIG_NAME = "config.yaml"
STORE_NAME = "evaluations.sqlite"
CHECKPOINTS_NAME = "checkpoints"
# What a run writes, and so what overwriting one deletes; anything else in the folder is the user's.
_CONTENTS = (METRICS_NAME, TOP_NAME, PICTURES_NAME, STORE_NAME, f"{STORE_NAME}-wal", f"{STORE_NAME}-shm", "wandb")


class RunFolder:
    """A run's folder, held for one process while the context is open."""

    def __init__(self, path: Path, *, resume: bool, overwrite: bool) -> None:
        """Take the folder. Raises UserError when another process runs in it, or it holds a run that is to stay."""
        self.path = path
        self._lock = RunLock(path)
        if not resume and (path / CONFIG_NAME).exists():
            if not overwrite:
                self._lock.release()
                raise UserError(
                    f"log_dir: expected a folder without a run, got {path}; resume=true goes on with the run there, "
                    "overwrite_existing_exp=true replaces it, log_dir=OTHER starts one beside it"
                )
            self._clear()
        self.checkpoints = CheckpointFolder(path / CHECKPOINTS_NAME)

    @property
    def store(self) -> Path:
        """Return where the evaluations are kept, unless the config names a database."""
        return self.path / STORE_NAME

    def last_checkpoint(self) -> Checkpoint:
        """Return the checkpoint to go on from. Raises UserError when there is none."""
        checkpoint = self.checkpoints.latest()
        if checkpoint is None:
            raise UserError(f"resume: expected a checkpoint in {self.path}, got none; without resume a run starts anew")
        return checkpoint

    def write_config(self, text: str) -> None:
        """Keep the config that the run was started with."""
        (self.path / CONFIG_NAME).write_text(text, encoding="utf-8")

    def _clear(self) -> None:
        # The config goes last: as long as it is there, the folder holds a run.
        for name in (*_CONTENTS, CHECKPOINTS_NAME, CONFIG_NAME):
            target = self.path / name
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._lock.release()
