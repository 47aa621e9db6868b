"""The best architectures of a run as rows of a table, during the run and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflownet.evaluation.store_rows import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.drawing import to_svg
from gflownet.graphs.node_link import has_module
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME


@dataclass(frozen=True)
class Leader:
    """One of the best architectures."""

    rank: int
    score: float  # validation: mean of the new seeds at the end, of the search before
    num_parameters: int | None
    low: float | None = None  # interval of the mean
    high: float | None = None
    test_score: float | None = None
    drawing: str | None = None  # SVG; None for candidates that are no networks
    words: str = ""  # of the task, or choices as YAML; empty for others
    load: str = ""  # a line of Python; empty before the end, and for other objects than graphs

    @property
    def interval(self) -> str:
        """Return the interval as text, empty without one."""
        return "" if self.low is None or self.high is None else f"[{self.low:.4g}, {self.high:.4g}]"


def current_leaders(
    records: Sequence[EvaluationRecord], *, task: GFNTask, from_dict: Callable[[dict[str, Any]], Any]
) -> list[Leader]:
    """Return the rows of evaluations, best first.

    Args:
        records: evaluations of the search, best first.
        task: draws a candidate as a network.
        from_dict: builds a candidate from node-link data.
    """
    leaders = []
    candidates = [from_dict(json.loads(record.graph)) for record in records]
    rows = zip(records, candidates, task.settings(candidates), strict=True)
    for rank, (record, candidate, settings) in enumerate(rows):
        network = task.network(candidate)
        drawing = None if network is None else to_svg(network)
        words = task.words(candidate) or ("" if drawing else settings)
        leaders.append(Leader(rank, record.score, record.num_parameters, drawing=drawing, words=words))
    return leaders


def final_leaders(folder: Path) -> list[Leader]:
    """Return the rows of top_architectures.json in a run folder; none without that file."""
    path = folder / TOP_NAME
    if not path.exists():
        return []
    return [_leader(entry, path) for entry in json.loads(path.read_bytes())]


def _leader(entry: dict[str, Any], path: Path) -> Leader:
    rank, final = entry["rank"], entry.get("final") or {}
    picture = path.parent / PICTURES_NAME / f"rank_{rank}.svg"
    low, high = final.get("interval") or (None, None)
    is_loadable = has_module(entry) or (picture.exists() and "network" not in entry)
    arguments = f"rank={rank}" if "weights" in entry else f"rank={rank}, weights=False"
    return Leader(
        rank=rank,
        score=final.get("mean", entry["validation_score"]),
        num_parameters=entry["num_parameters"],
        low=low,
        high=high,
        test_score=entry["test_score"],
        drawing=picture.read_text(encoding="utf-8") if picture.exists() else None,
        words=entry.get("words", "") or ("" if picture.exists() else entry.get("choices", "")),
        load=f'gflownet.load("{path}", {arguments})' if is_loadable else "",
    )
