"""Planned searches: figures after a number of evaluations or proposals, and paired differences of methods.

Letters: S seeds, n new evaluations of a run, X places of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from statistics import median

import numpy as np

from gflownet.options import leaves
from gflownet.report.compared.figures import MAX_SCORE, PairedDifference, bounded_intervals, paired_difference
from gflownet.report.compared.groups import problems_of_options
from gflownet.report.compared.record import RunRecord
from gflownet.report.page.drawings import text_of

# An architecture within this share of the best known score counts as one of the best.
_NEAR = 0.01


class Accounting(StrEnum):
    """What a search pays for."""

    EVALUATIONS = "evaluations"  # repeats are free
    PROPOSALS = "proposals"  # every proposal counts


class Quantity(StrEnum):
    """A figure of a run."""

    BEST = "best"  # best score so far
    TEST = "test"  # test score of the architecture with the best score so far
    DISTINCT = "distinct"  # architectures evaluated
    NEAR_BEST = "near_best"  # distinct architectures within 1 % of the best known score
    TOP_TEST = "top_test"  # distinct architectures among the best 1 % of the space by test score

    @property
    def upper(self) -> float:
        """Largest possible value."""
        return MAX_SCORE if self in (Quantity.BEST, Quantity.TEST) else math.inf


@dataclass(frozen=True)
class References:
    """Values that the runs of a comparison are measured against."""

    best: float  # best known score: of the space, otherwise of all runs
    is_optimum: bool  # whether `best` is that of the space
    top_test: float | None  # smallest test score among the best 1 % of the space


def references_of(records: Sequence[RunRecord]) -> References:
    """Return the references of the runs of a comparison."""
    optimum = next((record.optimum for record in records if record.optimum is not None), None)
    top_test = next((record.top_test for record in records if record.top_test is not None), None)
    best = max(max(record.scores) for record in records) if optimum is None else optimum
    return References(best, optimum is not None, top_test)


def places(record: RunRecord, accounting: Accounting) -> np.ndarray:
    """Return the cost until each new evaluation, inclusive, [n]."""
    if accounting is Accounting.EVALUATIONS:
        return np.arange(1, len(record) + 1)
    return np.array(record.proposals)


def values_after(
    record: RunRecord, quantity: Quantity, at: np.ndarray, *, accounting: Accounting, references: References
) -> np.ndarray:
    """Return a figure after the costs `at` [X], NaN before the first evaluation and where it is unknown, [X].

    A run that ended earlier stays at its last value.
    """
    values = _after_each(record, quantity, references)
    num = np.searchsorted(places(record, accounting), at, side="right")  # evaluations so far
    return np.where(num > 0, values[np.maximum(num, 1) - 1], math.nan)


def cost_of_optimum(record: RunRecord, *, accounting: Accounting, references: References) -> float:
    """Return the cost until the best score of the space, infinity for a run without it."""
    hits = np.flatnonzero(np.array(record.scores) >= references.best)
    return float(places(record, accounting)[hits[0]]) if len(hits) else math.inf


def _after_each(record: RunRecord, quantity: Quantity, references: References) -> np.ndarray:
    scores = np.array(record.scores)
    tests = np.array([math.nan if test is None else test for test in record.tests])
    match quantity:
        case Quantity.BEST:
            return np.maximum.accumulate(scores)
        case Quantity.TEST:
            is_better = scores > np.maximum.accumulate(np.concatenate([[-math.inf], scores[:-1]]))
            return tests[np.maximum.accumulate(np.where(is_better, np.arange(len(scores)), 0))]
        case Quantity.DISTINCT:
            return np.cumsum(_is_first(record)).astype(float)
        case Quantity.NEAR_BEST:
            return np.cumsum(_is_first(record) & (scores >= (1 - _NEAR) * references.best)).astype(float)
        case Quantity.TOP_TEST if references.top_test is not None:
            return np.cumsum(_is_first(record) & (tests >= references.top_test)).astype(float)
    return np.full(len(scores), math.nan)


def _is_first(record: RunRecord) -> np.ndarray:
    """Return which evaluations are the first of their architecture, [n] bool."""
    _, first = np.unique(record.hashes, return_index=True)
    is_first = np.zeros(len(record), dtype=bool)
    is_first[first] = True
    return is_first


_CHECKPOINTS = (10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
RANDOM = "random"


@dataclass(frozen=True)
class Summary:
    """A figure over S seeds; NaN where it is unknown."""

    mean: float
    low: float  # ends of the 95 % interval of the mean, NaN for one seed
    high: float
    median: float
    lower_quartile: float
    upper_quartile: float


def summary_of(values: np.ndarray, *, upper: float = math.inf) -> Summary:
    """Return the summary of one value per seed, [S], with its interval between 0 and `upper`."""
    if not np.isfinite(values).all():
        return Summary(*[math.nan] * 6)
    low, high = bounded_intervals(values[:, None], upper=upper)
    quartiles = np.quantile(values, [0.5, 0.25, 0.75])
    return Summary(float(values.mean()), float(low[0]), float(high[0]), *map(float, quartiles))


@dataclass(frozen=True)
class Optimum:
    """The search for the best score of a space."""

    share: float  # of seeds that reached it
    num_reached: int
    median_cost: float  # infinity if less than half of the seeds reached it


@dataclass(frozen=True)
class Searches:
    """The records of planned runs: method label -> one per seed."""

    title: str
    num_evaluations: int  # budget of each run
    seeds: Sequence[int]
    records: Mapping[str, Sequence[RunRecord]]
    checkpoints: Sequence[int] = field(default=())

    def __post_init__(self) -> None:
        """Choose the checkpoints."""
        checkpoints = self.checkpoints or [at for at in _CHECKPOINTS if at < self.num_evaluations]
        at = sorted({min(place, self.num_evaluations) for place in checkpoints} | {self.num_evaluations})
        object.__setattr__(self, "checkpoints", tuple(at))

    @cached_property
    def references(self) -> References:
        """Return the values that all runs are measured against."""
        return references_of([record for records in self.records.values() for record in records])

    @cached_property
    def problems(self) -> list[Searches]:
        """Return the methods by task, data and budget, each with its name: only these scores have a common scale."""
        labels = self.labels
        options = [dict(leaves(self.records[label][0].config)) for label in labels]
        problems = problems_of_options([{key: text_of(value) for key, value in each.items()} for each in options])
        if len(problems) == 1:
            return [self]
        return [
            replace(
                self, title=each.name, records={labels[place]: self.records[labels[place]] for place in each.places}
            )
            for each in problems
        ]

    @property
    def labels(self) -> list[str]:
        """Return the labels of the methods."""
        return list(self.records)

    @property
    def quantities(self) -> list[Quantity]:
        """Return the quantities that are known in every run at the last checkpoint."""
        at, accounting = np.array([self.num_evaluations]), Accounting.EVALUATIONS
        return [
            quantity
            for quantity in Quantity
            if all(np.isfinite(self.values(label, quantity, at, accounting=accounting)).all() for label in self.labels)
        ]

    def values(self, label: str, quantity: Quantity, at: np.ndarray, *, accounting: Accounting) -> np.ndarray:
        """Return a quantity of each run of a method after the costs `at` [X], [S, X]."""
        rows = [
            values_after(record, quantity, at, accounting=accounting, references=self.references)
            for record in self.records[label]
        ]
        return np.stack(rows)

    def summary(self, label: str, quantity: Quantity, at: int, *, accounting: Accounting) -> Summary:
        """Return the summary of a quantity over the seeds."""
        return summary_of(
            self.values(label, quantity, np.array([at]), accounting=accounting)[:, 0], upper=quantity.upper
        )

    def optimum(self, label: str, *, accounting: Accounting) -> Optimum | None:
        """Return the search for the optimum; None where it is not known."""
        if not self.references.is_optimum:
            return None
        costs = [
            cost_of_optimum(record, accounting=accounting, references=self.references) for record in self.records[label]
        ]
        num = sum(math.isfinite(cost) for cost in costs)
        return Optimum(num / len(costs), num, median(costs))

    def own_seconds(self, label: str) -> float:
        """Return the median seconds of the method's own work per evaluation, over all evaluations and seeds."""
        return median([seconds for record in self.records[label] for seconds in record.own_seconds])

    def proposals_per_evaluation(self, label: str) -> float:
        """Return the number of proposals per new evaluation, over all seeds."""
        records = self.records[label]
        return sum(record.num_proposals for record in records) / max(sum(map(len, records)), 1)

    def difference(
        self, first: str, second: str, quantity: Quantity, at: int, *, accounting: Accounting
    ) -> PairedDifference:
        """Return the difference of two methods."""
        one, other = (self.values(label, quantity, np.array([at]), accounting=accounting) for label in (first, second))
        return paired_difference(one[:, 0], other[:, 0])

    def verdict(self, first: str, second: str, quantity: Quantity, at: int, *, accounting: Accounting) -> str:
        """Return the difference of two methods in words."""
        difference = self.difference(first, second, quantity, at, accounting=accounting)
        return difference.verdict(first, second, f"after {at:,} {accounting}")

    def verdicts(self, baseline: str) -> list[str]:
        """Return every method's difference of the best score from a baseline in words, at the last checkpoint."""
        return [
            self.verdict(label, baseline, Quantity.BEST, self.num_evaluations, accounting=accounting)
            for label in self.labels
            if label != baseline
            for accounting in Accounting
        ]

    def baseline(self) -> str:
        """Return random search if it takes part, otherwise the first method."""
        return RANDOM if RANDOM in self.records else self.labels[0]
