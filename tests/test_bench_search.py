"""Rows of scripts/bench_search.py on records made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.bench_search import Curve, Searches, sections

OPTIMUM = 0.84892


def comparison_of(label: str, *, found_at: int, num_seeds: int = 50) -> Searches:
    """Return runs of 200 evaluations with the optimum from one of them on, and top cells only."""
    scores = [OPTIMUM if place >= found_at else 0.8 for place in range(1, 201)]
    metrics = {"surrogate_coverage_all": 0.9, "method_seconds_per_evaluation": 0.1}
    curve = Curve(np.array(scores), np.full(200, 0.9437), metrics)
    return Searches(200, {label: [curve] * num_seeds}, optimum=OPTIMUM, top_test=0.94)


@pytest.mark.parametrize(
    ("found_at", "failing"),
    [
        (40, []),
        (60, ["mean best signal @50"]),
        (160, ["mean best signal @50", "mean best signal @100", "seeds with the optimum"]),
    ],
)
def test_nb201_rows_compare_with_goals(found_at: int, failing: list[str]) -> None:
    section = next(each for each in sections(Path("tables")) if each.name == "nb201_c10")
    rows = list(section.rows(comparison_of("mine", found_at=found_at), "mine"))
    short = [row.name for row in rows if not row.holds]
    assert len(short) == len(failing), short
    assert all(any(words in name for name in short) for words in failing)


def test_sections_have_different_names_and_configs() -> None:
    names = [section.name for section in sections(Path("tables"))]
    assert len(set(names)) == len(names)
    assert {"macro", "recorded", "digits", "mnist1d", "opgfn_in16", "nb201_long_c100"} <= set(names)
