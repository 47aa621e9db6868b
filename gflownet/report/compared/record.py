"""Files of planned searches: search_curve.json with the new evaluations of a run, in order, and comparison.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gflownet.errors import UserError
from gflownet.files import parse_json, write_whole

CURVE_NAME = "search_curve.json"
JSON_NAME, SVG_NAME = "comparison.json", "comparison.svg"
RESULT_KIND = "gflownet comparison"  # in comparison.json
_FORMAT = 1


@dataclass(frozen=True)
class RunRecord:
    """A finished run of a comparison; n new evaluations."""

    config: Mapping[str, Any]  # nested, as the run was started
    hashes: list[str]  # n
    scores: list[float]  # n
    tests: list[float | None]  # n; None where nothing was tested
    proposals: list[int]  # n: number of proposals up to and including this one
    own_seconds: list[float]  # n: work of the method for each evaluation
    num_proposals: int
    evaluation_seconds: float
    end: str  # reason of the end of the search
    optimum: float | None = None  # best score of the space, if known
    top_test: float | None = None  # smallest test score among the best 1 % of the space, if known
    metrics: Mapping[str, float] = field(default_factory=dict)  # last value of each of the run
    final_scores: tuple[float, ...] = ()  # mean scores on new seeds of the best architectures (final.top)
    num_final: int = 0  # trainings of the budget that are kept for the final stage

    def __len__(self) -> int:
        """Return n."""
        return len(self.scores)


def read_record(folder: Path) -> RunRecord | None:
    """Return the record of a finished run, None without one.

    Raises:
        UserError: another file has its name.
    """
    path = folder / CURVE_NAME
    try:
        content = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise UserError(f"{path}: expected the record of a run, got another or a damaged file; choose another --out")
    try:
        return RunRecord(**content)
    except TypeError as error:
        raise UserError(f"{path}: expected {', '.join(f.name for f in fields(RunRecord))} ({error})") from None


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record. Raises UserError if the file exists or cannot be written."""
    path = folder / CURVE_NAME
    if path.is_symlink() or path.exists():
        raise UserError(f"{path}: expected no file before the end of the run, got one; choose another --out")
    write_whole(path, json.dumps({"format": _FORMAT, **asdict(record)}, allow_nan=False) + "\n")


def is_result(path: Path) -> bool:
    """Return whether a file is the comparison.json of planned searches."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == RESULT_KIND
