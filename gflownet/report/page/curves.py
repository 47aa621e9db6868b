"""Charts of a run over its steps and evaluations: metrics, diversity, early and late scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gflownet.pictures.bar_charts import Bar, Sample, bar_chart, histogram
from gflownet.pictures.chart import Chart
from gflownet.pictures.line_charts import Line, line_chart, moving_mean
from gflownet.report.page.run_data import RunData
from gflownet.search.config import ORIGINS

# Share of the steps in a moving mean.
SMOOTHED_SHARE = 0.05
STEP = "step"


def curves_of(run: RunData) -> list[Chart]:
    """Return the curves of all metrics that the run has."""
    rows = run.metrics
    built = [
        _scores(rows, run.score_name),
        _curve(rows, "log_reward_mean", "Mean log-reward of a batch", "log R(x)", is_smoothed=True),
        _curve(rows, "loss", "Loss", "loss", is_smoothed=True),
        _curve(rows, "likelihood_loss", "Sampler: loss of maximum likelihood", "nats", is_smoothed=True),
        _curve(rows, "log_Z", "Learned log Z", "log Z"),
        _curve(rows, "predicted_score_mean", "Sampler: mean predicted score of its samples", "predicted score"),
        _curve(rows, "sampler_rank_correlation", "Sampler: rank correlation of log p and log R", "correlation"),
        _curve(rows, "num_distinct", "Different architectures", "number so far", start=0.0),
        _distances(run),
        _distribution(run),
        _shares(rows),
        _curve(rows, "busy_share", "Evaluator at work", "share of the time", start=0.0, is_smoothed=True),
        _curve(rows, "hypervolume", "Hypervolume of the Pareto front", "hypervolume"),
        _proposals(rows),
        _curve(rows, "surrogate_rank_correlation", "Surrogate: rank correlation, last 50 proposals", "correlation"),
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


def _scores(rows: Sequence[Mapping[str, Any]], name: str) -> Chart | None:
    x = steps_of(rows)
    best = Line("best so far", x, values_of(rows, "score_best"), colour=1)
    means = smoothed_lines(x, values_of(rows, "score_mean"), name="mean of a batch")
    return line_chart("curve-score", "Score of sampled architectures", [*means, best], x_label=STEP, y_label=name)


def _curve(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    title: str,
    label: str,
    *,
    start: float | None = None,
    is_smoothed: bool = False,
) -> Chart | None:
    x, y = steps_of(rows), values_of(rows, name)
    lines = smoothed_lines(x, y, name=label) if is_smoothed else [Line(label, x, y)]
    is_log = None if is_smoothed else False
    return line_chart(_key(name), title, lines, x_label=STEP, y_label=label, start=start, is_log=is_log)


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


def _key(name: str) -> str:
    return "curve-" + name.replace("_", "-").lower()


NUM_WINDOWS = 20
MIN_WINDOW = 8
NUM_TOP = 50
# Architectures of a group whose pairs are compared: all pairs of more take too long.
MAX_COMPARED = 60
# Share of the evaluations that count as early and as late.
QUARTER = 0.25
MIN_SAMPLE = 8


def _distribution(run: RunData) -> Chart | None:
    """Return the scores of early and late architectures against all, None with too few."""
    records = run.feasible
    if len(records) < 2 * MIN_SAMPLE:
        return None
    num = max(MIN_SAMPLE, round(QUARTER * len(records)))
    scores = [record.score for record in records]
    return histogram(
        "scores",
        f"Scores of evaluated architectures{run.limit_words}",
        [Sample("all", scores), Sample("first quarter", scores[:num]), Sample("last quarter", scores[-num:])],
        x_label=run.score_name,
    )


def mean_distance(features: Sequence[set[object]]) -> float:
    """Return the mean Jaccard distance of all pairs of feature sets; NaN for fewer than two.

    The distance is the share of the features of either that only one of them has (Jaccard 1912).
    """
    if len(features) < 2:
        return math.nan
    names = {name: column for column, name in enumerate(sorted({each for one in features for each in one}, key=repr))}
    table = np.zeros((len(features), len(names)))
    for row, one in enumerate(features):
        table[row, [names[each] for each in one]] = 1.0
    both = table @ table.T
    sizes = table.sum(1)
    either = sizes[:, None] + sizes[None] - both
    distances = 1 - np.divide(both, either, out=np.ones_like(both), where=either > 0)
    return float(distances[np.triu_indices(len(features), 1)].mean())


def _distances(run: RunData) -> Chart | None:
    """Return the mean distance of pairs among the architectures of a window, and among the best so far."""
    records = run.feasible
    window = max(MIN_WINDOW, math.ceil(len(records) / NUM_WINDOWS))
    if len(records) < 2 * window:
        return None
    ends = list(range(window, len(records) + 1, window))
    spread = np.linspace(0, window - 1, min(window, MAX_COMPARED)).round().astype(int).tolist()
    recent = [mean_distance([_shape_and_features(run, end - window + i) for i in spread]) for end in ends]
    scores = np.asarray([record.score for record in records])
    tops = [np.argsort(-scores[:end], kind="stable")[:NUM_TOP].tolist() for end in ends]
    best = [mean_distance([_shape_and_features(run, i) for i in top]) for top in tops]
    lines = [Line("evaluated lately", ends, recent), Line(f"best {NUM_TOP} so far", ends, best)]
    return line_chart(
        "distances",
        "Diversity: mean distance of two architectures",
        lines,
        x_label="evaluations",
        y_label="share of features that differ",
        start=0.0,
        is_log=False,
        note="Jaccard distance of features (operations, places, connections, size): 0 equal, 1 nothing in common.",
    )


def _shape_and_features(run: RunData, position: int) -> set[object]:
    each = run.described[position]
    return {*each.features, ("nodes", each.num_nodes), ("edges", each.num_edges)}
