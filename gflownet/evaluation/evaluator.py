"""The evaluator: scores of candidates by graph identity, and hard caps on their metrics (floor score above one)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gflownet.errors import UserError
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.evaluation.tables import listed
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import Candidate

KEY = "evaluation.constraints"


def exceeded(metrics: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Return the first metric that is above its limit or not a number, None where all are within.

    Raises:
        UserError: a metric that the task does not report.
    """
    for name, limit in limits.items():
        if name not in metrics:
            raise UserError(f"{KEY}.{name}: expected a metric that the task reports, {listed(metrics) or 'none'}")
        value = metrics[name]
        if math.isnan(value) or value > limit:
            return name
    return None


def best_within(store: EvaluationStore, num: int, limits: Mapping[str, float]) -> Sequence[EvaluationRecord]:
    """Return the `num` best successful rows of the search within the limits, best first."""
    if not limits:
        return store.top(num)
    return [row for row in store.top(store.count()) if exceeded(row.metrics, limits) is None][:num]


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one candidate, new or from the store."""

    score: float  # finite; the floor when the evaluation failed
    status: EvaluationStatus
    seconds: float  # duration of its evaluation
    error: str | None
    num_parameters: int | None
    metrics: Mapping[str, float]
    cached: bool  # from another run, an earlier step or earlier in the same call
    utilities: tuple[float, ...] = ()  # of the task's chosen objectives, zeros when the evaluation failed
    hash: str = ""  # canonical hash of the graph
    # Measured score of a candidate above a limit of evaluation.constraints, whose score is the floor; else None.
    infeasible_score: float | None = None


class Evaluator(ABC):
    """Scores candidates; every result is in the store before it is returned."""

    @abstractmethod
    def evaluate(self, candidates: Sequence[Candidate], *, step: int) -> list[Evaluation]:
        """Return one evaluation per candidate, in order; isomorphic candidates are scored once.

        A candidate that raises, or whose score is not in [0, task.max_score], is FAILED with the reason and the floor
        score.
        """


def utilities_of(record: EvaluationRecord, *, task: GFNTask) -> tuple[float, ...]:
    """Return the utilities of the task's chosen objectives, zeros for a failed evaluation."""
    if record.status is not EvaluationStatus.OK:
        return (0.0,) * len(task.chosen_objectives)
    return task.utilities(Score(record.score, record.num_parameters, record.metrics))


def evaluation_of(record: EvaluationRecord, *, task: GFNTask, cached: bool) -> Evaluation:
    """Return the evaluation in a row. Raises UserError for a limit of a metric that it does not have."""
    is_ok = record.status is EvaluationStatus.OK
    is_feasible = not (is_ok and task.limits) or exceeded(record.metrics, task.limits) is None
    return Evaluation(
        score=record.score if is_feasible else task.config.evaluation.floor_score,
        status=record.status,
        seconds=record.seconds,
        error=record.error,
        num_parameters=record.num_parameters,
        metrics=record.metrics,
        cached=cached,
        utilities=utilities_of(record, task=task) if is_feasible else (0.0,) * len(task.chosen_objectives),
        hash=record.hash,
        infeasible_score=None if is_feasible else record.score,
    )
