"""The evaluator: scores of candidates by graph identity, and hard caps on their metrics (floor score above one)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gflownet.errors import UserError
from gflownet.evaluation.data.recorded_tables import listed
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.job import EvaluationFuture, EvaluationStatus, Request
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore, Identity
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


# Longest wait between two checks for a stop request, seconds.
_CHECK_EVERY_S = 0.2


class AsynchronousEvaluator(Evaluator):
    """An evaluator whose results are awaited: `submit` starts evaluations, `advance` waits for some of them."""

    task: GFNTask
    executor: Executor
    run: str  # id of the run in its rows

    @abstractmethod
    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        """Start the evaluations of unknown graphs, and return one future per request without waiting.

        Isomorphic graphs share a future. Futures of known graphs have their row.
        """

    @abstractmethod
    def advance(self, *, timeout: float | None) -> int:
        """Wait for a finished job, record its results, start the next jobs, and return the number of evaluations.

        Raises:
            EvaluationStoppedError: a stop request, or the budget is spent; running jobs are cancelled.
        """

    @abstractmethod
    def flush(self) -> None:
        """Write all finished records to the store."""

    @property
    @abstractmethod
    def num_in_flight(self) -> int:
        """Return the number of candidates without a result."""

    def evaluate(self, candidates: Sequence[Candidate], *, step: int) -> list[Evaluation]:
        """Return one evaluation per candidate, see `Evaluator.evaluate`. Raises as `advance`."""
        return self.evaluations(self.complete([Request(candidate) for candidate in candidates], step=step), step=step)

    def complete(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        """Return one finished future per request, in order. Raises as `advance`."""
        futures = self.submit(requests, step=step)
        while any(future.record is None for future in futures):
            self.advance(timeout=_CHECK_EVERY_S)
        return futures

    def evaluations(self, futures: Sequence[EvaluationFuture], *, step: int) -> list[Evaluation]:
        """Return the evaluations of finished futures, once their rows are written."""
        self.flush()
        previous: set[Identity] = set()
        evaluations = []
        for future in futures:
            record, identity = future.record, future.request.identity
            assert record is not None
            # A row of this run and step counts as new: only a resumed run finds one, and must report the same as the
            # uninterrupted run.
            cached = record.run != self.run or record.step < step or identity in previous
            evaluations.append(evaluation_of(record, task=self.task, cached=cached))
            previous.add(identity)
        return evaluations


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
