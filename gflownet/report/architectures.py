"""The best architectures of a run: top_architectures.json, one drawing each, and the rows of the closing table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gflownet.console import ReportRow
from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import write_whole
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.drawing import to_svg

TOP_NAME = "top_architectures.json"
PICTURES_NAME = "architectures"


def write_top_architectures(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    seed: int,
    from_dict: Callable[[dict[str, Any]], Any],
    report_line: Callable[[str], None],
    write: Callable[[Path, str], None] = write_whole,
) -> list[ReportRow]:
    """Write the best architectures with validation and test score, draw them, and return the rows of the table.

    A test score that raises or is not finite is null in the file and `-` in the table.

    Args:
        folder: run folder.
        records: evaluations, best first.
        task: measures the test scores.
        seed: of the run.
        from_dict: builds a terminal object from node-link data.
        report_line: gets one line with the reason of the first missing test score.
        write: writes a file; without a drawing on disk the row has no picture.
    """
    entries, rows, complaints = [], [], []
    for rank, record in enumerate(records):
        graph = from_dict(json.loads(record.graph))
        test, complaint = _test_score(task, graph, seed=candidate_seed(seed, record.hash))
        if complaint is not None:
            complaints.append(f"no test score of rank {rank}: {complaint}")
        picture = _draw(folder / PICTURES_NAME / f"rank_{rank}.svg", graph, write)
        num_hidden, num_edges = _sizes(graph)
        rows.append(
            ReportRow(
                rank=rank,
                validation=record.score,
                test=test,
                num_parameters=record.num_parameters,
                num_hidden=num_hidden,
                num_edges=num_edges,
                picture="-" if picture is None else picture.name,
            )
        )
        entries.append(
            {
                "rank": rank,
                "run": record.run,
                "validation_score": record.score,
                "test_score": test,
                "num_parameters": record.num_parameters,
                "metrics": dict(record.metrics),
                "graph": with_translation(graph.to_dict(), task),
            }
        )
    write(folder / TOP_NAME, as_json(entries))
    if complaints:
        remaining = f" (and of {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        report_line(f"{complaints[0]}{remaining}")
    return rows


def with_translation(data: dict[str, Any], task: GFNTask) -> dict[str, Any]:
    """Return node-link data of a computation graph with the translation settings of the task, other data unchanged."""
    if not all("node_type" in node for node in data["nodes"]):
        return data
    return data | {"graph": {**data.get("graph", {}), "translation": dict(task.translation_settings)}}


def as_json(entries: Sequence[Any]) -> str:
    """Return the JSON text of the entries."""
    return json.dumps(entries, indent=1) + "\n"


def _test_score(task: GFNTask, graph: Any, *, seed: int) -> tuple[float | None, str | None]:
    """Return the test score or None, and the error in one line or None."""
    try:
        value = task.test(graph, seed=seed)
        test = None if value is None else float(value)
    except Exception as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    if test is not None and not math.isfinite(test):
        return None, f"expected a finite score, got {test}"
    return test, None


def _draw(path: Path, graph: Any, write: Callable[[Path, str], None]) -> Path | None:
    """Write the drawing of a computation graph and return its path, None for other objects."""
    if not isinstance(graph, ComputationGraph):
        return None
    write(path, to_svg(graph))
    return path if path.exists() else None


def _sizes(graph: Any) -> tuple[int, int]:
    data = graph.to_dict()
    hidden = [n for n in data["nodes"] if n.get("node_type", NodeType.HIDDEN.value) == NodeType.HIDDEN.value]
    return len(hidden), len(data["edges"])
