"""Section about references: the best architectures next to random ones and classical baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.pictures.bar_charts import Estimate, interval_chart
from gflownet.pictures.chart import Chart, number_text
from gflownet.report.page.best import score_words
from gflownet.report.page.run_data import RunData, figure_of, mapping_of, number_of
from gflownet.report.verdict import Side, verdict_of

NUM_RANKS = 5


@dataclass(frozen=True)
class ReferenceSection:
    """A chart, and the comparison in words."""

    chart: Chart
    sentences: Sequence[str]


def reference_section(run: RunData) -> ReferenceSection | None:
    """Return the references of a run with the best ranks, None without references."""
    ranks = [
        (side, _estimate(side, entry, href=f"#rank-{place}"))
        for place, entry in enumerate(run.top[:NUM_RANKS])
        if (side := _side(f"rank {entry.get('rank')}", mapping_of(entry.get("final")))) is not None
    ]
    references = [
        (side, _estimate(side, entry))
        for entry in run.references
        if (side := _side(str(entry.get("name")), entry)) is not None
    ]
    chart = interval_chart(
        "references-chart",
        "Score on new seeds, with 95 % intervals",
        [estimate for _, estimate in (*ranks, *references)],
        x_label="score",
        header=("architecture", "score", "95 % interval", "test score", "parameters"),
        legend=("found by this run", "reference"),
    )
    if chart is None or not references:
        return None
    return ReferenceSection(chart, verdict_of(ranks[0][0], [side for side, _ in references]) if ranks else ())


def _side(name: str, entry: Mapping[str, Any]) -> Side | None:
    """Return mean and interval of an entry, None without a mean."""
    mean, ends = number_of(entry.get("mean")), entry.get("interval")
    low, high = map(figure_of, ends) if isinstance(ends, list) and len(ends) == 2 else (math.nan, math.nan)
    return None if mean is None else Side(name, mean, low, high, str(entry.get("load") or ""))


def _estimate(side: Side, entry: Mapping[str, Any], *, href: str = "") -> Estimate:
    """Return a row of the chart; those with a link are ranks."""
    low, high = (side.mean, side.mean) if math.isnan(side.low + side.high) else (side.low, side.high)
    num_parameters = entry.get("num_parameters")
    size = f"{num_parameters:,}" if isinstance(num_parameters, int) else number_text(None)
    cells = [score_words(entry.get("test_score"), None), size]
    name = side.name.capitalize() if href else side.name
    return Estimate(name, side.mean, low, high, cells=cells, is_marked=bool(href), href=href)
