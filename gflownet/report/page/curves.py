"""Curves of a run over its steps, from metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gflownet.pictures.bar_charts import Bar, bar_chart
from gflownet.pictures.chart import Chart
from gflownet.pictures.line_charts import Line, line_chart, moving_mean
from gflownet.report.page.run_data import RunData
from gflownet.search.config import MIXED_MODELS, ORIGINS

# Share of the steps in a moving mean.
SMOOTHED_SHARE = 0.05
STEP = "step"


def curves_of(run: RunData) -> list[Chart]:
    """Return the curves of all metrics that the run has."""
    rows = run.metrics
    built = [
        _scores(rows),
        _smoothed(rows, "log_reward_mean", "Mean log-reward of a batch", "log R(x)"),
        _smoothed(rows, "loss", "Loss", "loss"),
        _plain(rows, "log_Z", "Learned log Z", "log Z"),
        _plain(rows, "num_distinct", "Different architectures", "number so far", start=0.0),
        _shares(rows),
        _smoothed(rows, "busy_share", "Evaluator at work", "share of the time", start=0.0),
        _plain(rows, "hypervolume", "Hypervolume of the Pareto front", "hypervolume"),
        _proposals(rows),
        _surrogate(rows, "weight", "Surrogate: weight of each model", "weight"),
        _surrogate(rows, "rank", "Surrogate: rank correlation of predictions and scores", "Spearman's correlation"),
    ]
    return [chart for chart in built if chart is not None]


def values_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a metric of every row, NaN where it is missing or not a number."""
    values = [row.get(name) for row in rows]
    return [float(v) if isinstance(v, int | float) and math.isfinite(v) else math.nan for v in values]


def steps_of(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the step of every row."""
    return [float(row["step"]) for row in rows]


def smoothed_lines(x: Sequence[float], y: Sequence[float], *, name: str, colour: int = 0) -> list[Line]:
    """Return a faint line of the values and, of more than a few, the line of their moving mean."""
    is_finite = [math.isfinite(value) for value in y]
    window = round(SMOOTHED_SHARE * sum(is_finite))
    if window < 2:
        return [Line(name, x, y, colour=colour)]
    mean = Line(f"{name}, mean of {window} steps", x, moving_mean(y, window), colour=colour)
    return [Line(name, x, y, is_faint=True, colour=colour), mean]


def _scores(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    x = steps_of(rows)
    best = Line("best so far", x, values_of(rows, "score_best"), colour=1)
    means = smoothed_lines(x, values_of(rows, "score_mean"), name="mean of a batch")
    return line_chart("curve-score", "Score of sampled architectures", [*means, best], x_label=STEP, y_label="score")


def _smoothed(
    rows: Sequence[Mapping[str, Any]], name: str, title: str, label: str, *, start: float | None = None
) -> Chart | None:
    lines = smoothed_lines(steps_of(rows), values_of(rows, name), name=label)
    return line_chart(_key(name), title, lines, x_label=STEP, y_label=label, start=start)


def _plain(
    rows: Sequence[Mapping[str, Any]], name: str, title: str, label: str, *, start: float | None = None
) -> Chart | None:
    lines = [Line(label, steps_of(rows), values_of(rows, name))]
    return line_chart(_key(name), title, lines, x_label=STEP, y_label=label, start=start, is_log=False)


def _shares(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    x = steps_of(rows)
    lines = [
        *smoothed_lines(x, values_of(rows, "cached_share"), name="known before"),
        *smoothed_lines(x, values_of(rows, "failed_share"), name="failed", colour=1),
    ]
    return line_chart(
        "curve-shares",
        "Samples known before, and failed",
        lines,
        x_label=STEP,
        y_label="share of a batch",
        start=0.0,
        is_log=False,
        note="Known before: evaluated in an earlier step, or by another run with the same store; costs nothing again.",
    )


def _proposals(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return the number of proposals of each origin, and how many of them are among the ten best."""
    last = next((row for row in reversed(rows) if any(f"proposed_{name}_total" in row for name in ORIGINS)), {})
    totals = {name: int(last.get(f"proposed_{name}_total", 0)) for name in ORIGINS}
    best = {name: int(last.get(f"proposed_{name}_best", 0)) for name in ORIGINS}
    bars = [
        Bar(ORIGINS[name], num, f"{num:,}, {best[name]} of the {sum(best.values())} best")
        for name, num in totals.items()
        if num
    ]
    title = "Proposed candidates by their origin"
    return bar_chart("proposals", title, bars, x_label="candidates", header=("origin", "candidates"))


def _surrogate(rows: Sequence[Mapping[str, Any]], name: str, title: str, label: str) -> Chart | None:
    """Return the figures of each model of the mixture; rank correlations also of the predictions of proposals."""
    keys = {f"surrogate_{name}_{model}": words for model, words in MIXED_MODELS.items()}
    if name == "rank":
        keys["surrogate_rank_correlation"] = "mixture, last 50 proposals"
    # Before the first fit all correlations are 0 and all weights are equal.
    rows = [row for row in rows if any(row.get(f"surrogate_rank_{model}") for model in MIXED_MODELS)]
    x = steps_of(rows)
    lines = [Line(words, x, values_of(rows, key)) for key, words in keys.items() if any(key in row for row in rows)]
    note = "By cross-validation on the evaluations so far." if len(lines) > 1 else ""
    return line_chart(_key(f"surrogate_{name}"), title, lines, x_label=STEP, y_label=label, is_log=False, note=note)


def _key(name: str) -> str:
    return "curve-" + name.replace("_", "-").lower()
