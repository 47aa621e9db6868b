"""Planned searches: figures counted by hand, intervals, paired differences, verdicts and files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from gflownet.cli.console import make_console
from gflownet.report.compared.figures import mean_intervals
from gflownet.report.compared.record import RunRecord
from gflownet.report.compared.search_tables import draw, print_searches, to_json
from gflownet.report.compared.searches import (
    Accounting,
    Quantity,
    References,
    Searches,
    cost_of_optimum,
    references_of,
    summary_of,
    values_after,
)

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


def record(scores: list[float], *, optimum: float = 0.7 + 0.2, repeats: int = 0) -> RunRecord:
    """Return a run with `repeats` known proposals before each new one."""
    proposals = [(index + 1) * (repeats + 1) for index in range(len(scores))]
    return RunRecord(
        config={"seed": 0},
        hashes=[str(index) for index in range(len(scores))],
        scores=scores,
        tests=[None] * len(scores),
        proposals=proposals,
        own_seconds=[0.1] * len(scores),
        num_proposals=proposals[-1],
        evaluation_seconds=1.0,
        end="",
        optimum=optimum,
    )


@pytest.fixture(scope="module")
def searches() -> Searches:
    """Return three methods with five seeds: better is 0.1 above random in each, same is random with repeats."""
    starts = [0.1, 0.3, 0.5, 0.5, 0.7]
    random = [record([start, start, start + 0.1]) for start in starts]
    better = [record([start + 0.1, start + 0.1, start + 0.2]) for start in starts]
    same = [record([start, start, start + 0.1], repeats=1) for start in starts]
    records = {"better": better, "random": random, "same": same}
    return Searches(title="test", num_evaluations=3, seeds=[0, 1, 2, 3, 4], records=records, checkpoints=[1])


def test_difference_is_paired(searches: Searches) -> None:
    difference = searches.difference("better", "random", Quantity.BEST, 3, accounting=FREE)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    verdict = searches.verdict("better", "random", Quantity.BEST, 3, accounting=FREE)
    assert verdict == "better is above random after 3 evaluations: +0.1000 [+0.1000, +0.1000]"
    other = searches.verdict("random", "better", Quantity.BEST, 3, accounting=FREE)
    assert other.startswith("random is below better")


def test_of_four_seeds_has_no_verdict(searches: Searches) -> None:
    few = {label: records[:4] for label, records in searches.records.items()}
    verdict = replace(searches, seeds=[0, 1, 2, 3], records=few).verdict(
        "better", "random", Quantity.BEST, 3, accounting=FREE
    )
    assert "above" not in verdict
    assert verdict.endswith("4 seeds are too few for a verdict (at least 5)")


def test_accountings_differ_for_repeats(searches: Searches) -> None:
    free, every = (
        searches.verdict("same", "random", Quantity.BEST, 3, accounting=accounting) for accounting in Accounting
    )
    assert free.startswith("no difference seen between same and random after 3 evaluations: +0.0000")
    assert every.startswith("same is below random after 3 proposals: -0.1000")


def test_optimum_counts_seeds_and_cost(searches: Searches) -> None:
    optimum = searches.optimum("better", accounting=FREE)
    assert optimum is not None
    assert (optimum.num_reached, optimum.share, optimum.median_cost) == (1, 0.2, math.inf)
    assert searches.baseline() == "random"
    assert list(searches.checkpoints) == [1, 3]


def test_methods_of_other_tasks_are_not_ranked_together(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    """`better` has another task, with scores up to 90 instead of 0.9."""
    other = [
        replace(each, config={"task": "images"}, scores=[100 * score for score in each.scores], optimum=90.0)
        for each in searches.records["better"]
    ]
    mixed = replace(searches, records={**searches.records, "better": other})
    content = json.loads(to_json(mixed, command=[]))
    assert [problem["methods"] for problem in content["problems"]] == [["better"], ["random", "same"]]
    assert [problem["references"]["best"] for problem in content["problems"]] == [90.0, pytest.approx(0.9)]
    assert {(each["first"], each["second"]) for each in content["differences"]} == {("random", "same")}
    assert list(content["methods"]) == ["better", "random", "same"]
    print_searches(mixed, make_console())
    text = capsys.readouterr().out
    assert text.startswith("the methods differ in task, data or budget: their scores are not ranked together\n")
    assert "\ntask=images\nbest score" in text
    assert "better is" not in text
    assert "no difference seen between same and random" in text
    drawn = draw(mixed)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "task=images: best score" in drawn
    assert all(f">{label}</text>" in drawn for label in mixed.labels)


def test_to_json_has_curves_of_all_seeds(searches: Searches) -> None:
    content = json.loads(to_json(searches, command=["--seeds", "4"]))
    better = content["methods"]["better"]
    assert [run["scores"] for run in better["runs"]] == [each.scores for each in searches.records["better"]]
    assert better["figures"]["evaluations"]["best"]["3"]["mean"] == pytest.approx(0.62)
    assert better["optimum"]["proposals"] == {"share": 0.2, "num_reached": 1, "median_cost": None}
    assert len(content["differences"]) == 3 * len(Accounting) * len(searches.quantities) * 2
    assert content["command"] == ["--seeds", "4"]


def test_draw_writes_readable_labels_and_coloured_lines(searches: Searches) -> None:
    text = draw(searches)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(re.search(rf">{label}<", text) for label in ("better", "random", "same", "best score"))
    assert all(f'class="{form} s{place} d0"' in text for form in ("line", "band") for place in range(3))


def test_print_searches_shows_means_and_verdicts(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    print_searches(searches, make_console())
    text = capsys.readouterr().out
    assert re.search(r"better +0\.5200 \[.*\] +0\.6200 \[", text)
    assert "better is above random after 3 evaluations: +0.1000" in text
    assert "best score of the space: 0.9000" in text
    assert "1/5" in text


@pytest.mark.parametrize("num_seeds", [2, 3, 4, 5, 7, 8, 20])
def test_mean_intervals_cover_normal_means(num_seeds: int) -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(num_seeds, 400))
    low, high = mean_intervals(samples)
    assert 0.92 <= ((low <= 3.0) & (high >= 3.0)).mean() <= 0.98


def test_summary_of_known_values() -> None:
    summary = summary_of(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (summary.mean, summary.median) == (3.0, 2.5)
    assert (summary.lower_quartile, summary.upper_quartile) == (1.75, 3.75)
    margin = 3.182446 * math.sqrt(14 / 3) / 2  # Student's t for 3 degrees of freedom
    assert (summary.low, summary.high) == pytest.approx((0.0, 3.0 + margin)), "a score is not negative"


def test_summary_of_unknown_value_is_unknown() -> None:
    assert math.isnan(summary_of(np.array([0.5, math.nan])).mean)
