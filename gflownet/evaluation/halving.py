"""Successive halving: candidates are trained in parts, and stopped where they fall behind.

The stopping rule of ASHA (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"), as in Optuna: after
`min_fidelity`, `min_fidelity * reduction`, ... epochs or steps a candidate goes on if its score is in the best 1 /
`reduction` of all that came so far. The first `reduction` candidates always go on, to measure the gain of a full
training. A stopped candidate is not promoted later: the policy has learned from its extrapolated score, and no state of
its training has to be kept.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gflownet.errors import UserError, counted
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import AsynchronousEvaluator
from gflownet.evaluation.job import EvaluationFuture, Request
from gflownet.evaluation.racing import rank_correlation
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, Identity
from gflownet.evaluation.task import GFNTask

# Metrics of a row below the full fidelity: the estimated final score, and 1 for a stopped candidate or 0.
EXTRAPOLATED_SCORE = "extrapolated_score"
IS_STOPPED = "is_stopped"


class SuccessiveHalving:
    """Scores of all candidates at each rung, and the decisions that follow from them."""

    def __init__(self, min_fidelity: int, *, max_fidelity: int, reduction: int, num_free: int | None = None) -> None:
        """Keep the sizes.

        One in `reduction` candidates is promoted, which is also the factor between two rungs; the first `num_free`
        at each rung regardless, by default `reduction`.
        """
        self.max_fidelity, self.reduction = max_fidelity, reduction
        self.num_free = reduction if num_free is None else num_free
        rungs = [min_fidelity]
        while rungs[-1] * reduction < max_fidelity:
            rungs.append(rungs[-1] * reduction)
        self.rungs = tuple(rungs)
        self.num_stopped = 0
        self.num_promoted: Counter[str] = Counter()  # rows, by run
        self._scores: dict[int, list[float]] = {rung: [] for rung in self.rungs}  # ascending
        self._extrapolations = {rung: CurveExtrapolation(rung, max_fidelity) for rung in self.rungs}
        self._promoted: dict[str, list[EvaluationRecord]] = {}  # rows of unfinished trainings, by key
        self._finished: list[tuple[float, float]] = []  # score extrapolated at the first rung, final score

    def restore(self, records: Iterable[EvaluationRecord]) -> None:
        """Add the rows of a store, which is iterated twice."""
        for record in records:
            if record.fidelity in self._scores and not record.seed and EXTRAPOLATED_SCORE in record.metrics:
                insort(self._scores[record.fidelity], record.score)
                self._count(record)
        for record in records:
            self._finish(record)

    def revised(self, record: EvaluationRecord) -> EvaluationRecord:
        """Return a new row of a rung with its estimated final score and whether the candidate is stopped.

        The row of a full training is added to those that the estimates use. Other rows are returned as they are.
        """
        if record.status is not EvaluationStatus.OK or record.seed or record.fidelity not in self._scores:
            self._finish(record)
            return record
        scores = self._scores[record.fidelity]
        insort(scores, record.score)
        is_free = len(scores) <= self.num_free
        num_promoted = max(1, len(scores) // self.reduction)
        is_behind = record.score < scores[-num_promoted]
        estimate = self._extrapolations[record.fidelity](record.score, record.curve, best=scores[-1])
        metrics = {EXTRAPOLATED_SCORE: estimate, IS_STOPPED: float(is_behind and not is_free)}
        record = replace(record, metrics={**record.metrics, **metrics})
        self._count(record)
        return record

    def metrics(self) -> dict[str, float]:
        """Return the number of stopped candidates, and the rank correlation of extrapolated and final scores.

        The correlation is over the candidates that were trained to the end, with their estimates at the first rung; it
        is left out where it is not defined.
        """
        correlation = rank_correlation(self._finished)
        values = {"num_stopped": float(self.num_stopped)}
        return values if math.isnan(correlation) else values | {"extrapolation_rank_correlation": correlation}

    def __str__(self) -> str:
        counts = f"{counted(self.num_stopped, 'candidate')} stopped early, {len(self._finished)} trained to the end"
        correlation = rank_correlation(self._finished)
        words = f"; rank correlation of their extrapolated and final scores {correlation:.2f}"
        return f"successive halving: {counts}{'' if math.isnan(correlation) else words}"

    def _finish(self, record: EvaluationRecord) -> None:
        """Add the row of a full training; rows of others are ignored."""
        if record.fidelity or record.seed or record.status is not EvaluationStatus.OK:
            return
        for part in self._promoted.pop(record.key, []):
            self._extrapolations[part.fidelity].add(part.score, record.score)
            if part.fidelity == self.rungs[0]:
                self._finished.append((part.metrics[EXTRAPOLATED_SCORE], record.score))

    def _count(self, record: EvaluationRecord) -> None:
        if is_stopped(record):
            self.num_stopped += 1
        else:
            self.num_promoted[record.run] += 1
            self._promoted.setdefault(record.key, []).append(record)


def is_stopped(record: EvaluationRecord) -> bool:
    """Return whether a row is the last one of a candidate that was stopped early."""
    return bool(record.metrics.get(IS_STOPPED))


def result_of(record: EvaluationRecord) -> EvaluationRecord | None:
    """Return the result of a candidate by its row of a rung, None if its training goes on.

    A failure is its result; the score of a stopped candidate is the extrapolated one.
    """
    if record.status is not EvaluationStatus.OK or not record.fidelity:
        return record
    return replace(record, score=record.metrics[EXTRAPOLATED_SCORE]) if is_stopped(record) else None


@dataclass(eq=False)
class _Training:
    """A candidate in flight: its future, and that of the part that is being trained."""

    future: EvaluationFuture
    part: EvaluationFuture


class HalvingEvaluator(AsynchronousEvaluator):
    """Trains the candidates of a search in parts, as requests with a fidelity; promoted ones are continued.

    Further seeds and chosen fidelities are passed on.
    """

    def __init__(self, dispatcher: Dispatcher, halving: SuccessiveHalving) -> None:
        self.task, self.executor, self.run = dispatcher.task, dispatcher.executor, dispatcher.run
        self.halving = halving
        self._dispatcher = dispatcher
        self._trainings: dict[Identity, _Training] = {}
        self._lock = threading.RLock()
        dispatcher.revise = halving.revised

    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        with self._lock:
            result = {identity: each.future for identity, each in self._trainings.items()}
            new = list({each.identity: each for each in requests if each.identity not in result}.values())
            # By fidelity: a resumed run decides in the order of the uninterrupted one.
            pairs = sorted(zip(new, self._next_parts(new), strict=True), key=lambda pair: pair[1].fidelity or math.inf)
            parts = self._dispatcher.submit([part for _, part in pairs], step=step)
            for (request, _), part in zip(pairs, parts, strict=True):
                is_whole = part.request.identity == request.identity
                future = result[request.identity] = part if is_whole else EvaluationFuture(request, step)
                if not is_whole:
                    self._trainings[request.identity] = _Training(future, part)
            self._continue()
            return [result[request.identity] for request in requests]

    def advance(self, *, timeout: float | None) -> int:
        num = self._dispatcher.advance(timeout=timeout)
        with self._lock:
            return num - self._continue()

    def flush(self) -> None:
        self._dispatcher.flush()

    @property
    def num_in_flight(self) -> int:
        return self._dispatcher.num_in_flight

    def _next_parts(self, requests: Sequence[Request]) -> list[Request]:
        """Return for each request that of its first part without a promotion in the store."""
        self.flush()
        store, parts = self._dispatcher.store, list(requests)
        known = store.find_many([request.identity for request in requests])
        rows = zip(range(len(parts)), requests, known, strict=True)
        places = [place for place, request, row in rows if row is None and request == Request(request.candidate)]
        for rung in self.halving.rungs:
            identities = [replace(requests[place], fidelity=rung).identity for place in places]
            rows_of_rung = dict(zip(places, store.find_many(identities), strict=True))
            places = [place for place, row in rows_of_rung.items() if row is not None and result_of(row) is None]
            for place in rows_of_rung.keys() - {*places}:
                parts[place] = self._part(requests[place], rung)
        return parts

    def _part(self, request: Request, rung: int | None) -> Request:
        """Return the request of a part up to a rung; None: of the last part."""
        return replace(request, fidelity=rung, schedule=self.halving.max_fidelity, saves_training=rung is not None)

    def _continue(self) -> int:
        """Finish candidates whose last part has a row, start the next part of promoted ones, return their number."""
        promoted = []
        for identity, training in list(self._trainings.items()):
            record = training.part.record
            if record is None:
                continue
            training.future.record = result_of(record)
            if training.future.record is None:
                promoted.append(training)
            else:
                training.future.outcome = training.part.outcome
                del self._trainings[identity]
        for training in promoted:
            part, outcome = training.part, training.part.outcome
            # None: the full training
            rung = next((each for each in self.halving.rungs if each > (part.request.fidelity or 0)), None)
            request = self._part(training.future.request, rung)
            if outcome is not None:  # evaluated here, and counted again with the next part
                self._dispatcher.uncount(EvaluationStatus.OK)
                request = replace(request, training=outcome.training, parent=part.request.fidelity)
            (training.part,) = self._dispatcher.submit([request], step=training.future.step)
        if any(training.part.record is not None for training in promoted):
            self._continue()
        return len(promoted)


def build_halving(task: GFNTask, config: TaskConfig) -> SuccessiveHalving | None:
    """Return the successive halving of a run, None where it is off.

    Raises:
        UserError: the task's trainings cannot be continued or are too short, or there are several objectives.
    """
    options, key = config.evaluation.halving, "evaluation.halving.min_fidelity"
    if not options.min_fidelity:
        return None
    if not task.max_fidelity:
        raise UserError(f"{key}: expected 0 with task={config.task}, whose evaluations have no epochs or steps")
    if options.min_fidelity >= task.max_fidelity:
        raise UserError(
            f"{key}: expected less than the {task.max_fidelity} {task.fidelity_unit} of a full training, "
            f"got {options.min_fidelity}"
        )
    if task.chosen_objectives:
        raise UserError(f"{key}: expected 0 with evaluation.objectives, which are not extrapolated")
    return SuccessiveHalving(options.min_fidelity, max_fidelity=task.max_fidelity, reduction=options.reduction)


# Exponents p of the power laws a - b x^-p that are fitted to a curve.
_EXPONENTS = (0.25, 0.5, 1.0, 2.0)


@dataclass(eq=False)
class CurveExtrapolation:
    """Extrapolation from one fidelity to the full one.

    The mean of two predictions: a power law fitted to the candidate's own curve, and the gap to the best score, reduced
    by the factor by which finished trainings reduced theirs. Before the first finished training the power law alone.
    None is above the best score seen. Compared with other methods in dev/experiments.md.
    """

    fidelity: int
    max_fidelity: int
    _scores: list[float] = field(default_factory=list)  # at `fidelity`, of finished trainings
    _final_scores: list[float] = field(default_factory=list)

    def add(self, score: float, final_score: float) -> None:
        """Add a finished training: its scores at `fidelity` and at the end."""
        self._scores.append(score)
        self._final_scores.append(final_score)

    def __call__(self, score: float, curve: Sequence[float], *, best: float) -> float:
        """Return the estimated final score of a training.

        `score` is that at `fidelity`, the `curve` evenly spaced up to it, `best` the largest score of all trainings
        there.
        """
        own = power_law(curve or [score], self.fidelity, self.max_fidelity) - (curve[-1] if curve else score) + score
        best = max([best, *self._final_scores])
        if not self._scores:
            return max(min(own, best), 0.0)
        # Exactly rounded sums, which do not depend on the order: a resumed run gets the same.
        gap = math.fsum(best - each for each in self._scores)
        final_gap = math.fsum(best - each for each in self._final_scores)
        by_others = best - (best - score) * (final_gap / gap if gap > 0 else 1.0)  # gaps are >= 0
        return max((min(own, best) + by_others) / 2, 0.0)


def power_law(curve: Sequence[float], fidelity: int, max_fidelity: int) -> float:
    """Return the value at `max_fidelity` of a - b x^-p, b >= 0, through the end of a curve.

    The exponent of the smallest squared error is chosen; the gain from `fidelity` on is added to the last value. The
    points of the curve are evenly spaced up to `fidelity`. One point has no gain.
    """
    values = np.asarray(curve, dtype=np.float64)
    last = float(values[-1])
    if len(values) < 2:
        return last
    places = fidelity * np.arange(1, len(values) + 1) / len(values)
    fits = []
    for exponent in _EXPONENTS[1:3] if len(values) == 2 else _EXPONENTS:
        x = places**-exponent
        centred = x - x.mean()
        slope = max(-float(centred @ (values - values.mean()) / (centred @ centred)), 0.0)
        residuals = values - values.mean() + slope * centred
        fits.append((float(residuals @ residuals), slope * (float(x[-1]) - max_fidelity**-exponent)))
    return last + min(fits)[1]
