"""Paired differences, verdicts and optimum of a comparison, on records made by hand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from gflownet.comparison.accounting import Accounting, Quantity
from gflownet.comparison.drawing import draw
from gflownet.comparison.record import RunRecord
from gflownet.comparison.report import print_comparison
from gflownet.comparison.result import Comparison
from gflownet.comparison.result_file import to_json
from gflownet.terminal.console import make_console

FREE = Accounting.EVALUATIONS


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
def comparison() -> Comparison:
    """Return three methods with five seeds: better is 0.1 above random in each, same is random with repeats."""
    starts = [0.1, 0.3, 0.5, 0.5, 0.7]
    random = [record([start, start, start + 0.1]) for start in starts]
    better = [record([start + 0.1, start + 0.1, start + 0.2]) for start in starts]
    same = [record([start, start, start + 0.1], repeats=1) for start in starts]
    records = {"better": better, "random": random, "same": same}
    return Comparison(title="test", num_evaluations=3, seeds=[0, 1, 2, 3, 4], records=records, checkpoints=[1])


def test_comparison_difference_is_paired(comparison: Comparison) -> None:
    difference = comparison.difference("better", "random", Quantity.BEST, 3, accounting=FREE)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    assert difference.verdict == "better is above random after 3 evaluations: +0.1000 [+0.1000, +0.1000]"
    other = comparison.difference("random", "better", Quantity.BEST, 3, accounting=FREE)
    assert other.verdict.startswith("random is below better")


def test_comparison_of_four_seeds_has_no_verdict(comparison: Comparison) -> None:
    few = {label: records[:4] for label, records in comparison.records.items()}
    difference = replace(comparison, seeds=[0, 1, 2, 3], records=few).difference(
        "better", "random", Quantity.BEST, 3, accounting=FREE
    )
    assert "above" not in difference.verdict
    assert difference.verdict.endswith("4 seeds are too few for a verdict (at least 5)")


def test_comparison_accountings_differ_for_repeats(comparison: Comparison) -> None:
    free, every = (
        comparison.difference("same", "random", Quantity.BEST, 3, accounting=accounting) for accounting in Accounting
    )
    assert free.mean == 0
    assert free.verdict.startswith("no difference seen between same and random after 3 evaluations")
    assert every.mean == pytest.approx(-0.1)
    assert every.verdict.startswith("same is below random after 3 proposals")


def test_comparison_optimum_counts_seeds_and_cost(comparison: Comparison) -> None:
    optimum = comparison.optimum("better", accounting=FREE)
    assert optimum is not None
    assert (optimum.num_reached, optimum.share, optimum.median_cost) == (1, 0.2, math.inf)
    assert comparison.baseline() == "random"
    assert list(comparison.checkpoints) == [1, 3]


def test_to_json_has_curves_of_all_seeds(comparison: Comparison) -> None:
    content = json.loads(to_json(comparison, command=["--seeds", "4"]))
    better = content["methods"]["better"]
    assert [run["scores"] for run in better["runs"]] == [each.scores for each in comparison.records["better"]]
    assert better["figures"]["evaluations"]["best"]["3"]["mean"] == pytest.approx(0.62)
    assert better["optimum"]["proposals"] == {"share": 0.2, "num_reached": 1, "median_cost": None}
    assert len(content["differences"]) == 3 * len(Accounting) * len(comparison.quantities) * 2
    assert content["command"] == ["--seeds", "4"]


def test_draw_writes_readable_labels_and_coloured_lines(comparison: Comparison) -> None:
    text = draw(comparison)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(re.search(rf">{label}<", text) for label in ("better", "random", "same", "best score"))
    assert all(f'class="{form} s{place} d0"' in text for form in ("line", "band") for place in range(3))


def test_print_comparison_shows_means_and_verdicts(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(comparison, make_console())
    text = capsys.readouterr().out
    assert re.search(r"better +0\.5200 \[.*\] +0\.6200 \[", text)
    assert "better is above random after 3 evaluations: +0.1000" in text
    assert "best score of the space: 0.9000" in text
    assert "1/5" in text
