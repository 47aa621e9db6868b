"""run.json, the marker of a run folder: run id, list of the run's files, copy of its config."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gflownet.errors import UserError
from gflownet.files import parse_sealed, sealed, write_whole
from gflownet.records.trust import CONFIG_NAME, MARKER_NAME, mark_of, may_mark

MARKER_FORMAT = 1
LOCK_NAME = ".lock"  # locked by the process of the run
PAGE_NAME = "report.html"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunMarker:
    """Id, files and config of the run in a folder."""

    run: str  # id of the run, 32 hexadecimal digits
    files: tuple[str, ...]  # names relative to the folder
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
        case {"run": str(run), "files": [*files], "config": {**config}} if _RUN_ID.fullmatch(run) and all(
            isinstance(name, str) for name in files
        ):
            return RunMarker(run, tuple(files), config)
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
            "overwrite_existing_exp=true replaces it, log_dir=OTHER starts one in another folder"
        )
    return marker


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
