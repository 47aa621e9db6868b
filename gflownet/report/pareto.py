"""The Pareto front of a run with several objectives: pareto_front.json, its picture, and the rows of its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import write_whole
from gflownet.metrics.pareto import hypervolume, non_dominated
from gflownet.report.architectures import as_json, with_translation
from gflownet.report.scatter import Axis, scatter_svg

FRONT_NAME = "pareto_front.json"
FRONT_PICTURE_NAME = "pareto_front.svg"


@dataclass(frozen=True)
class ParetoFront:
    """Of all that was evaluated, what nothing else beats; best in the first objective first."""

    objectives: tuple[str, ...]
    values: Sequence[Sequence[float]]  # [N, K] the objectives as they were measured
    hypervolume: float  # of their utilities, above 0
    num_evaluated: int


def write_pareto_front(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    write: Callable[[Path, str], None] = write_whole,
) -> ParetoFront:
    """Write the front as data that gflownet.load reads and as a picture, and return it.

    Args:
        folder: the run folder.
        records: every successful evaluation, at least one.
        task: says what the objectives are.
        write: writes a file.
    """
    objectives = task.chosen_objectives
    utilities = np.array([utilities_of(record, task=task) for record in records])
    is_on_front = non_dominated(utilities)
    # Best in the first objective first, and where equal in the next.
    order = [i for i in np.lexsort(-utilities.T[::-1]) if is_on_front[i]]
    entries = [
        {
            "rank": rank,
            "run": records[i].run,
            "utilities": dict(zip(objectives, utilities[i].tolist(), strict=True)),
            "validation_score": records[i].score,
            "num_parameters": records[i].num_parameters,
            "metrics": dict(records[i].metrics),
            "graph": with_translation(json.loads(records[i].graph), task),
        }
        for rank, i in enumerate(order)
    ]
    write(folder / FRONT_NAME, as_json(entries))
    values = np.array([[record.metrics[name] for name in objectives] for record in records])
    write(folder / FRONT_PICTURE_NAME, _drawn(objectives, values, order))
    return ParetoFront(objectives, values[order].tolist(), hypervolume(utilities[is_on_front]), len(records))


def _drawn(objectives: Sequence[str], values: np.ndarray, order: Sequence[int]) -> str:
    """Return a picture with the second objective to the right and the first upwards, as they were measured."""
    tooltips = {}
    for rank, i in enumerate(order):
        measured = [f"{name} {value:.6g}" for name, value in zip(objectives, values[i], strict=True)]
        tooltips[i] = f"rank {rank}: {', '.join(measured)}"
    return scatter_svg(
        Axis(objectives[1], values[:, 1].tolist()),
        Axis(objectives[0], values[:, 0].tolist()),
        highlighted=tooltips,
        title=f"Pareto front: {len(order)} of {len(values)} architectures",
    )
