"""Detection of edits to the code of a task during a run: a worker imports that code later than the main process."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from gflownet.errors import UserError
from gflownet.evaluation.execution import describe
from gflownet.evaluation.fingerprint import code_digest, modules_of, source_digest
from gflownet.evaluation.task import GFNTask


@dataclass(frozen=True)
class SourceFile:
    """A module of a task and its source file when the run started."""

    module: str
    path: str  # in the main process
    digest: str  # of the bytes


@dataclass(frozen=True)
class TaskSources:
    """The source of a task class when the run started."""

    task: str  # name of the class
    digest: str  # as in the scoring context: without comments and docstrings
    files: tuple[SourceFile, ...]

    @classmethod
    def of(cls, task_class: type[GFNTask]) -> TaskSources:
        """Read the source of a class.

        Raises:
            UserError: a file is incomplete or gone.
        """
        name = task_class.__name__
        try:
            modules = modules_of(task_class)
            files = tuple(SourceFile(module, str(path), digest_of(path)) for module, path in modules.items())
            return cls(name, code_digest(modules), files)
        except OSError as error:
            raise UserError(f"task {name}: expected source files that can be read: {describe(error)}") from None

    def check(self, task_class: type[GFNTask] | None, *, loaded: dict[str, str]) -> None:
        """Compare with the code of this process. Comments and docstrings may differ.

        Args:
            task_class: the class in this process; None: its modules could not be imported.
            loaded: digests of source files by module, for modules that were imported some time ago.

        Raises:
            UserError: the code differs.
        """
        if not any(_differs(file, loaded) for file in self.files):
            return
        try:
            if task_class is not None and source_digest(task_class) == self.digest:
                return
        except (OSError, UserError):  # an incomplete file
            pass
        raise UserError(f"the code of task {self.task} changed during the run; resume=true scores with the new code")


def digest_of(path: Path) -> str:
    """Return a digest of the bytes of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _differs(file: SourceFile, loaded: dict[str, str]) -> bool:
    path = Path(getattr(sys.modules.get(file.module), "__file__", None) or file.path)
    try:
        return (loaded.get(file.module) or digest_of(path)) != file.digest
    except OSError:  # gone; the folders of another machine may differ
        return path.parent.is_dir()
