"""The Pareto front of a run with several objectives: pareto_front.json, its picture and its table rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gflownet.errors import counted
from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import write_whole
from gflownet.graphs.assignment import Assignment, values_of
from gflownet.metrics.pareto import hypervolume, non_dominated
from gflownet.pictures.chart import svg_of
from gflownet.pictures.line_charts import Highlight, scatter_chart
from gflownet.report.architectures import as_json, described_in_words, with_translation

FRONT_NAME = "pareto_front.json"
FRONT_PICTURE_NAME = "pareto_front.svg"


@dataclass(frozen=True)
class ParetoFront:
    """The evaluations that no other evaluation dominates, best in the first objective first."""

    objectives: tuple[str, ...]
    values: Sequence[Sequence[float]]  # [N, K] measured objectives
    hypervolume: float  # of the utilities, above the origin
    num_evaluated: int


def write_pareto_front(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    write: Callable[[Path, bytes | str], None] = write_whole,
) -> ParetoFront:
    """Write the front as data for gflownet.load and as a picture, and return it.

    Args:
        folder: run folder.
        records: all successful evaluations, at least one.
        task: has the objectives.
        write: writes a file.
    """
    objectives = task.chosen_objectives
    utilities = np.array([utilities_of(record, task=task) for record in records])
    is_on_front = non_dominated(utilities)
    # Best in the first objective first, ties by the next objective.
    order = [i for i in np.lexsort(-utilities.T[::-1]) if is_on_front[i]]
    graphs = [json.loads(records[i].graph) for i in order]
    candidates = [Assignment.from_dict(graph) if values_of(graph) else None for graph in graphs]
    entries = [
        {
            "rank": rank,
            "run": records[i].run,
            "utilities": dict(zip(objectives, utilities[i].tolist(), strict=True)),
            "validation_score": records[i].score,
            "num_parameters": records[i].num_parameters,
            "metrics": dict(records[i].metrics),
            **({} if candidate is None else described_in_words(candidate, task, settings)),
            "graph": with_translation(graph, task),
        }
        for rank, (i, graph, candidate, settings) in enumerate(
            zip(order, graphs, candidates, task.settings(candidates), strict=True)
        )
    ]
    write(folder / FRONT_NAME, as_json(entries))
    values = np.array([[record.metrics[name] for name in objectives] for record in records])
    write(folder / FRONT_PICTURE_NAME, _drawn(objectives, values, order))
    return ParetoFront(objectives, values[order].tolist(), hypervolume(utilities[is_on_front]), len(records))


def _drawn(objectives: Sequence[str], values: np.ndarray, order: Sequence[int]) -> str:
    """Return a picture of the measured values, the second objective to the right and the first upwards."""
    highlights = []
    for rank, i in enumerate(order):
        measured = [f"{name} {value:.6g}" for name, value in zip(objectives, values[i], strict=True)]
        highlights.append(Highlight(float(values[i, 1]), float(values[i, 0]), f"rank {rank}: {', '.join(measured)}"))
    title = f"Pareto front: {len(order)} of {counted(len(values), 'architecture')}"
    points = [(x, y) for y, x, *_ in np.delete(values, order, axis=0).tolist()]
    chart = scatter_chart(
        "front",
        title,
        points,
        highlights,
        x_label=objectives[1],
        y_label=objectives[0],
        names=("evaluated", "on the front"),
    )
    assert chart is not None, "there is at least one evaluation"
    return svg_of(chart)
