"""Run folders named by paths, wildcards and folders of runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gflownet.config import CONFIG_NAME
from gflownet.errors import UserError
from gflownet.run_marker import MARKER_NAME, not_a_search, read_marker


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders in the order of the paths, those inside of one path by name, each once.

    Args:
        paths: run folders, folders with runs at any depth, or patterns with `*`. Of several paths, files are left out:
            a shell expands `logs/*` to all entries.

    Raises:
        UserError: no run at a path.
    """
    folders: dict[Path, Path] = {}
    for path in [path for path in paths if not path.is_file()] or paths:
        runs = [run for match in _matches(path) for run in _runs_below(match)]
        if not runs:
            raise UserError(not_a_search(path) if is_run(path) else _without_run(path))
        for run in runs:
            folders.setdefault(run.resolve(), run)
    return list(folders.values())


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, of this version or an earlier one."""
    return (folder / MARKER_NAME).is_file() or (folder / CONFIG_NAME).is_file()


def _matches(path: Path) -> list[Path]:
    """Return the path, or what its pattern matches."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    return [Path(match) for match in sorted(glob.glob(str(path)), key=_natural)]


def _runs_below(folder: Path) -> Iterator[Path]:
    """Yield the folder if it holds the run of a search, else those inside of it."""
    for name, inner, _ in os.walk(folder):
        if is_run(Path(name)):
            inner.clear()
            marker = read_marker(Path(name))
            if marker is None or marker.is_search:
                yield Path(name)
        inner.sort(key=_natural)


def _without_run(path: Path) -> str:
    if not path.exists() and glob.has_magic(str(path)):
        return f"{path}: expected run folders, got a pattern that matches none"
    if not path.exists():
        return f"no such folder: {path}"
    return f"{path}: expected a run folder or a folder with runs, got neither"


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts seed_10 after seed_2."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", text)]
