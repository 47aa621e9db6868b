"""Figures of a run after a number of evaluations or of proposals.

Letters: S seeds, n new evaluations of a run, X places of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gflownet.comparison.record import RunRecord
from gflownet.report.compared.intervals import MAX_SCORE

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
    """Return the figure after each evaluation, [n]."""
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
