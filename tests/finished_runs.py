"""Finished runs, one of each kind per test session, shared by all tests and all processes of pytest.

The fixture `finished_runs` returns the folder of a kind, which tests must not change; `copied_run` returns a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from gflownet.train import main
from tests.benchmark_tables import write_nb201
from tests.cpu_seconds import shared
from tests.language.tiny import train as train_language
from tests.small_run import SMALL
from tests.tiny_run import TINY_RUN, TINY_TASKS

# kind -> options of the command line, beside the folder; every kind has a report and a final stage.
_WITH_REPORT = ("report.every=0",)
SEARCHES: dict[str, tuple[str, ...]] = {
    # Scores computed from the graph; the only kind with several steps and checkpoints.
    "toy": (*SMALL, "final.top=3", "final.num_seeds=2", "final.num_random=6"),
    "digits": ("--config", "digits", *TINY_RUN, "search.random.even_share=0.75"),
    "images": ("--config", "images", *TINY_RUN, *TINY_TASKS["images"]),
    "choices": ("--config", "choices", *TINY_RUN),
    "table": ("--config", "table", *TINY_RUN),
    "cells": ("--config", "cells", *TINY_RUN, *TINY_TASKS["cells"]),
}
KINDS = (*SEARCHES, "language")
# SQLite creates and removes these while a process reads a store; a closed store needs neither.
_SQLITE_SUFFIXES = ("-shm", "-wal")


class FinishedRuns:
    """Builds each kind when it is first requested; a lock lets one process build and the others wait."""

    def __init__(self, folder: Path) -> None:
        """Take the folder that all processes of a test session share."""
        self._folder = folder
        self._states: dict[str, dict[str, tuple[int, int]]] = {}

    def __call__(self, kind: str) -> Path:
        """Return the run folder of a kind (KINDS)."""
        folder = self._folder / kind
        with FileLock(self._folder / f"{kind}.lock"):
            if not (folder / "finished").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                with shared():
                    _build(kind, folder)
                (folder / "finished").touch()
        self._states.setdefault(kind, _files(folder))
        return folder / "run"

    def changed(self) -> list[str]:
        """Return the files that were written after their run had finished."""
        states = {kind: (state, _files(self._folder / kind)) for kind, state in self._states.items()}
        return [
            f"{kind}/{name}"
            for kind, (before, now) in states.items()
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]


def _build(kind: str, folder: Path) -> None:
    if kind == "language":
        assert train_language(folder) == 0
        return
    options = [*SEARCHES[kind], *_WITH_REPORT]
    if kind == "cells":
        options.append(f"task_options.table={write_nb201(folder / 'table.csv')}")
    assert main([*options, f"log_dir={folder / 'run'}"]) == 0


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of the last change of every file; locks are open to readers."""
    ignored = (".lock", *_SQLITE_SUFFIXES)
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(ignored)]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def copy_finished(source: Path, target: Path) -> Path:
    """Copy a folder with a finished run while other processes may read it; return the copy."""
    ignore = shutil.ignore_patterns(*(f"*{suffix}" for suffix in _SQLITE_SUFFIXES))
    return Path(shutil.copytree(source, target, ignore=ignore))


CopiedRun = Callable[[str], Path]
