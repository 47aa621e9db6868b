"""Rows of scripts/bench_search.py on records made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflownet.report.compared.record import RunRecord
from gflownet.report.compared.searches import Searches
from scripts.bench_search import sections

OPTIMUM = 0.84892


def comparison_of(label: str, *, found_at: int, num_seeds: int = 50, repeats: int = 0) -> Searches:
    """Return runs of 200 evaluations with the optimum from one of them on, and top cells only."""
    scores = [OPTIMUM if place >= found_at else 0.8 for place in range(1, 201)]
    record = RunRecord(
        config={},
        hashes=[str(place) for place in range(200)],
        scores=scores,
        tests=[0.9437] * 200,
        proposals=[place * (repeats + 1) for place in range(1, 201)],
        own_seconds=[0.1] * 200,
        num_proposals=200 * (repeats + 1),
        evaluation_seconds=0.0,
        end="",
        optimum=OPTIMUM,
        top_test=0.94,
        metrics={"surrogate_coverage_all": 0.9},
    )
    records = {label: [record] * num_seeds}
    return Searches(title="", num_evaluations=200, seeds=range(num_seeds), records=records)


@pytest.mark.parametrize(
    ("found_at", "repeats", "failing"),
    [
        (40, 0, []),
        (60, 0, ["mean best signal @50"]),
        (160, 0, ["mean best signal @50", "mean best signal @100", "seeds with the optimum", "after 110 proposals"]),
        (50, 2, ["mean best signal after 110 proposals"]),
    ],
)
def test_nb201_rows_compare_with_goals(found_at: int, repeats: int, failing: list[str]) -> None:
    section = next(each for each in sections(Path("tables")) if each.name == "nb201_c10")
    rows = list(section.rows(comparison_of("mine", found_at=found_at, repeats=repeats), "mine"))
    short = [row.name for row in rows if not row.holds]
    assert len(short) == len(failing), short
    assert all(any(words in name for name in short) for words in failing)


def test_sections_have_different_names_and_configs() -> None:
    names = [section.name for section in sections(Path("tables"))]
    assert len(set(names)) == len(names)
    assert {"macro", "recorded", "digits", "mnist1d", "opgfn_in16", "nb201_long_c100"} <= set(names)
