"""Figures of a run against figures counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gflownet.comparison.record import RunRecord
from gflownet.comparison.result import Accounting, Quantity, References, cost_of_optimum, references_of, values_after

FREE, EVERY = Accounting.EVALUATIONS, Accounting.PROPOSALS
# Proposals 1 to 8: a, b, a, c, b, d, d, e. The repeats are proposals 3, 5 and 7.
RECORD = RunRecord(
    config={},
    hashes=["a", "b", "c", "d", "e"],
    scores=[0.50, 0.80, 0.795, 0.90, 0.90],
    tests=[0.4, 0.7, 0.75, 0.6, 0.9],
    proposals=[1, 2, 4, 6, 8],
    own_seconds=[0.0] * 5,
    num_proposals=9,
    evaluation_seconds=1.0,
    end="",
)
# At 1, 2, 3, 4, 5 and 9 evaluations or proposals.
AT = np.array([1, 2, 3, 4, 5, 9])
REFERENCES = References(best=0.80, is_optimum=True, top_test=0.7)
EXPECTED = {
    (Quantity.BEST, FREE): [0.5, 0.8, 0.8, 0.9, 0.9, 0.9],
    (Quantity.BEST, EVERY): [0.5, 0.8, 0.8, 0.8, 0.8, 0.9],
    (Quantity.TEST, FREE): [0.4, 0.7, 0.7, 0.6, 0.6, 0.6],  # the first of two equal scores is the incumbent
    (Quantity.TEST, EVERY): [0.4, 0.7, 0.7, 0.7, 0.7, 0.6],
    (Quantity.DISTINCT, FREE): [1, 2, 3, 4, 5, 5],
    (Quantity.DISTINCT, EVERY): [1, 2, 2, 3, 3, 5],
    (Quantity.NEAR_BEST, FREE): [0, 1, 2, 3, 4, 4],  # at least 0.792
    (Quantity.NEAR_BEST, EVERY): [0, 1, 1, 2, 2, 4],
    (Quantity.TOP_TEST, FREE): [0, 1, 2, 2, 3, 3],
    (Quantity.TOP_TEST, EVERY): [0, 1, 1, 2, 2, 3],
}


@pytest.mark.parametrize(("quantity", "accounting"), EXPECTED)
def test_values_after_matches_hand_count(quantity: Quantity, accounting: Accounting) -> None:
    values = values_after(RECORD, quantity, AT, accounting=accounting, references=REFERENCES)
    assert values.tolist() == EXPECTED[quantity, accounting]


def test_values_after_is_nan_before_first_evaluation() -> None:
    late = RunRecord(**{**vars(RECORD), "proposals": [3, 4, 5, 6, 7]})
    values = values_after(late, Quantity.BEST, np.array([1, 2, 3]), accounting=EVERY, references=REFERENCES)
    assert np.isnan(values).tolist() == [True, True, False]


def test_repeated_evaluation_counts_as_one_architecture() -> None:
    repeated = RunRecord(**{**vars(RECORD), "hashes": ["a", "b", "b", "d", "e"]})
    values = values_after(repeated, Quantity.NEAR_BEST, AT, accounting=FREE, references=REFERENCES)
    assert values.tolist() == [0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize(("accounting", "cost"), [(FREE, 4), (EVERY, 6)])
def test_cost_of_optimum(accounting: Accounting, cost: int) -> None:
    references = References(best=0.9, is_optimum=True, top_test=None)
    assert cost_of_optimum(RECORD, accounting=accounting, references=references) == cost
    missed = References(best=0.91, is_optimum=True, top_test=None)
    assert cost_of_optimum(RECORD, accounting=accounting, references=missed) == math.inf


def test_references_are_best_of_all_runs_without_table() -> None:
    other = RunRecord(**{**vars(RECORD), "scores": [0.95, 0.1, 0.1, 0.1, 0.1]})
    assert references_of([RECORD, other]) == References(best=0.95, is_optimum=False, top_test=None)
    known = RunRecord(**{**vars(RECORD), "optimum": 0.99, "top_test": 0.7})
    assert references_of([known, known]) == References(best=0.99, is_optimum=True, top_test=0.7)
