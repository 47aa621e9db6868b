"""Section about references: the best architectures next to random ones and classical baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gflownet.report.page.axes import number_text
from gflownet.report.page.best import score_words
from gflownet.report.page.chart import Chart
from gflownet.report.page.interval_chart import Estimate, interval_chart
from gflownet.report.page.run_data import RunData
from gflownet.report.verdict import Side, verdict_of

NUM_RANKS = 5


@dataclass(frozen=True)
class ReferenceSection:
    """A chart, and the comparison in words."""

    chart: Chart
    sentences: Sequence[str]


def reference_section(run: RunData) -> ReferenceSection | None:
    """Return the references of a run with the best ranks, None without references."""
    ranks = [each for place, entry in enumerate(run.top[:NUM_RANKS]) if (each := _rank(entry, place)) is not None]
    known = [(each, entry) for entry in run.references if (each := _reference(entry)) is not None]
    references = [each for each, _ in known]
    if not references:
        return None
    chart = interval_chart(
        "references-chart",
        "Score on new seeds, with 95 % intervals",
        [*ranks, *references],
        x_label="score",
        header=("architecture", "score", "95 % interval", "test score", "parameters"),
        legend=("found by this run", "reference"),
    )
    if chart is None:
        return None
    sides = [
        _side(each, has_interval=bool(entry.get("interval")), load=str(entry.get("load") or ""))
        for each, entry in known
    ]
    best = next((entry["final"] for entry in run.top if _rank(entry, 0) is not None), {})
    if not ranks:
        return ReferenceSection(chart, ())
    side = _side(ranks[0], has_interval=bool(best.get("interval")))
    return ReferenceSection(chart, verdict_of(replace(side, name=side.name.lower()), sides))


def _rank(entry: Mapping[str, Any], place: int) -> Estimate | None:
    final = entry.get("final")
    if not isinstance(final, Mapping) or not isinstance(final.get("mean"), int | float):
        return None
    name, href = f"Rank {entry.get('rank')}", f"#rank-{place}"
    return _estimate(name, final["mean"], final.get("interval"), entry, href=href, is_marked=True)


def _reference(entry: Mapping[str, Any]) -> Estimate | None:
    if not isinstance(entry.get("mean"), int | float):
        return None
    return _estimate(str(entry.get("name")), entry["mean"], entry.get("interval"), entry)


def _estimate(
    name: str, mean: float, interval: object, entry: Mapping[str, Any], *, href: str = "", is_marked: bool = False
) -> Estimate:
    low, high = (
        interval
        if isinstance(interval, list) and len(interval) == 2 and all(isinstance(end, int | float) for end in interval)
        else (mean, mean)
    )
    cells = [score_words(entry.get("test_score"), None), _count_text(entry.get("num_parameters"))]
    return Estimate(name, float(mean), float(low), float(high), cells=cells, is_marked=is_marked, href=href)


def _side(estimate: Estimate, *, has_interval: bool, load: str = "") -> Side:
    low, high = (estimate.low, estimate.high) if has_interval else (math.nan, math.nan)
    return Side(estimate.name, estimate.value, low, high, load)


def _count_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else number_text(None)
