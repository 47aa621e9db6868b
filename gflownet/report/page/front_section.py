"""Section about the Pareto front: points linked to drawings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.pictures.chart import Chart, number_text
from gflownet.pictures.line_charts import Highlight, scatter_chart
from gflownet.report.page.best import Ranked
from gflownet.report.page.drawings import drawing_of
from gflownet.report.page.run_data import RunData, figure_of, mapping_of

# Architectures of the front that are drawn.
MAX_DRAWN = 24


@dataclass(frozen=True)
class FrontSection:
    """Scatter charts and the drawn front, best in the first objective first."""

    charts: Sequence[Chart]
    ranked: Sequence[Ranked]
    num_front: int
    objectives: str


def front_section(run: RunData) -> FrontSection | None:
    """Return the front of a run with several objectives; before its end only the points; None with one objective."""
    objectives = run.option("evaluation.objectives")
    names = [str(name) for name in objectives] if isinstance(objectives, list | tuple) else []
    if len(names) < 2 or not run.feasible:
        return None
    drawn = run.front[:MAX_DRAWN]
    charts = [_chart(run, names[0], other, drawn) for other in names[1:]]
    return FrontSection(
        charts=[chart for chart in charts if chart is not None],
        ranked=[_card(entry, rank, names) for rank, entry in enumerate(drawn)],
        num_front=len(run.front),
        objectives=" and ".join(names) if len(names) == 2 else ", ".join(names),
    )


def _chart(run: RunData, first: str, other: str, front: Sequence[Mapping[str, Any]]) -> Chart | None:
    points = [(record.metrics.get(other, math.nan), record.metrics.get(first, math.nan)) for record in run.feasible]
    highlights = [
        Highlight(x, y, f"front {rank}: {first} {number_text(y)}, {other} {number_text(x)}", f"#front-{rank}")
        for rank, entry in enumerate(front)
        if math.isfinite(x := _metric(entry, other)) and math.isfinite(y := _metric(entry, first))
    ]
    return scatter_chart(
        f"front-{other}-chart".replace("_", "-").replace(" ", "-"),
        f"{first} against {other}",
        points,
        highlights,
        x_label=other,
        y_label=first,
        names=(f"evaluated{run.limit_words}", "on the front"),
        is_joined=True,
        note="A point of the front is a link to its drawing." if highlights else "",
    )


def _card(entry: Mapping[str, Any], rank: int, names: Sequence[str]) -> Ranked:
    facts = [(name, number_text(_metric(entry, name))) for name in names]
    return Ranked(f"front-{rank}", f"Front {rank}", facts, drawing_of(mapping_of(entry.get("graph"))))


def _metric(entry: Mapping[str, Any], name: str) -> float:
    return figure_of(mapping_of(entry.get("metrics")).get(name))
