"""Everything that a run folder says about its run, read from disk. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflownet.config import config_of, to_yaml
from gflownet.errors import UserError
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.evaluation.store_overview import StoreOverview
from gflownet.evaluation.store_rows import EvaluationRecord, record_of
from gflownet.run_marker import read_marker
from gflownet.run_status import RunStatus, read_status


@dataclass(frozen=True)
class RunData:
    """A run, finished or not. Missing files give empty fields."""

    folder: Path
    run_id: str
    config: Mapping[str, Any]  # nested, unresolved: secrets stay ${oc.env:NAME}
    config_text: str  # the same as YAML
    status: RunStatus | None  # None: a run of an earlier version
    metrics: Sequence[Mapping[str, Any]]  # a row per step, in order of steps
    evaluations: Sequence[EvaluationRecord]  # finished rows of this run, oldest first
    top: Sequence[Mapping[str, Any]]  # top_architectures.json, best first; empty before the end
    references: Sequence[Mapping[str, Any]]
    front: Mapping[str, Any] | None  # pareto_front.json
    certificate: Mapping[str, Any] | None


def read_run(folder: Path) -> RunData:
    """Return the data of the run in a folder, which may be running.

    Raises:
        UserError: no run in the folder, or a damaged marker or database.
    """
    marker = read_marker(folder)
    if marker is None:
        raise UserError(f"{folder}: expected the log_dir of a run, got a folder without one")
    config = config_of(marker.config, where=f"{folder}: ")
    return RunData(
        folder=folder,
        run_id=marker.run,
        config=marker.config,
        config_text=to_yaml(config),
        status=read_status(folder),
        metrics=_metric_rows(folder / "metrics.jsonl"),
        evaluations=_evaluations(folder, config.evaluation.store_url, run=marker.run),
        top=_json(folder / "top_architectures.json") or [],
        references=_json(folder / "references.json") or [],
        front=_json(folder / "pareto_front.json"),
        certificate=_json(folder / "certificate.json"),
    )


def _metric_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete rows; a killed process may leave half a line."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _evaluations(folder: Path, url: str | None, *, run: str) -> list[EvaluationRecord]:
    """Return the finished rows of the run."""
    path = folder / STORE_NAME
    if not url and not path.exists():
        return []
    with StoreOverview(url or str(path)) as overview:
        return [record_of(row) for row in overview.results() if row["run"] == run]


def _json(path: Path) -> Any:
    """Return the content of a file, None for a missing or damaged one."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
