"""Diversity and novelty over the run, and scores of early and late architectures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gflownet.errors import counted
from gflownet.pictures.bar_charts import Sample, histogram
from gflownet.pictures.chart import Chart, number_text
from gflownet.pictures.line_charts import Line, line_chart
from gflownet.report.page.curves import STEP, smoothed_lines, steps_of, values_of
from gflownet.report.page.run_data import RunData

NUM_WINDOWS = 20
MIN_WINDOW = 8
NUM_TOP = 50
# Architectures of a group whose pairs are compared: all pairs of more take too long.
MAX_COMPARED = 60
# Share of the evaluations that count as early and as late.
QUARTER = 0.25
MIN_SAMPLE = 8


@dataclass(frozen=True)
class DiversitySection:
    """Charts, and their meaning in sentences."""

    charts: Sequence[Chart]
    sentences: Sequence[str]


def diversity_section(run: RunData) -> DiversitySection | None:
    """Return novelty and diversity, None without data."""
    charts = [chart for chart in (_novelty(run), _distances(run)) if chart is not None]
    return DiversitySection(charts, list(_sentences(run))) if charts else None


def distribution_section(run: RunData) -> DiversitySection | None:
    """Return the scores of early and late architectures against all, None with too few."""
    records = run.feasible
    if len(records) < 2 * MIN_SAMPLE:
        return None
    num = max(MIN_SAMPLE, round(QUARTER * len(records)))
    scores = [record.score for record in records]
    chart = histogram(
        "scores",
        f"Scores of evaluated architectures{run.limit_words}",
        [Sample("all", scores), Sample("first quarter", scores[:num]), Sample("last quarter", scores[-num:])],
        x_label="score",
    )
    rewards = _reward_chart(run)
    return DiversitySection(
        [each for each in (chart, rewards) if each is not None], [_shift(scores[:num], scores[-num:])]
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


def _novelty(run: RunData) -> Chart | None:
    cached = values_of(run.metrics, "cached_share")
    new = [1 - value for value in cached]
    lines = smoothed_lines(steps_of(run.metrics), new, name="new architectures")
    return line_chart(
        "novelty",
        "Novelty: share of new architectures in a batch",
        lines,
        x_label=STEP,
        y_label="share of a batch",
        start=0.0,
        is_log=False,
        note="A policy that has found the good regions samples them again: a falling share is expected near the end.",
    )


def _distances(run: RunData) -> Chart | None:
    """Return the mean distance of pairs among the architectures of a window, and among the best so far."""
    records = run.feasible
    window = max(MIN_WINDOW, math.ceil(len(records) / NUM_WINDOWS))
    if len(records) < 2 * window:
        return None
    ends = list(range(window, len(records) + 1, window))
    groups = [_spread(range(end - window, end)) for end in ends]
    recent = [mean_distance([_shape_and_features(run, i) for i in group]) for group in groups]
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


def _spread(group: Sequence[int]) -> list[int]:
    """Return at most `MAX_COMPARED` entries, evenly spread."""
    if len(group) <= MAX_COMPARED:
        return list(group)
    return [group[round(i)] for i in np.linspace(0, len(group) - 1, MAX_COMPARED).tolist()]


def _sentences(run: RunData) -> list[str]:
    if not run.feasible:
        return []
    top = sorted(run.feasible, key=lambda record: -record.score)[:NUM_TOP]
    best, last = top[0].score, top[-1].score
    distinct = len({(record.hash, record.key) for record in run.searched})
    return [
        f"{counted(distinct, 'different architecture')} {'was' if distinct == 1 else 'were'} evaluated; the best "
        f"{len(top)}{run.limit_words} score between {number_text(last)} and {number_text(best)}."
    ]


def _reward_chart(run: RunData) -> Chart | None:
    """Return the mean score of batches, repeats included, against quantiles of all evaluated architectures."""
    rows = [row for row in run.metrics if isinstance(row.get("score_mean"), int | float)]
    if len(rows) < 2:
        return None
    x = steps_of(rows)
    scores = np.asarray([record.score for record in run.feasible])
    low, median, high = np.quantile(scores, [0.25, 0.5, 0.75]).tolist()
    lines = [
        *smoothed_lines(x, values_of(rows, "score_mean"), name="mean of a batch"),
        Line("median of all evaluated", x, [median] * len(x), [low] * len(x), [high] * len(x), colour=2),
    ]
    return line_chart(
        "sampled-scores",
        f"Sampled architectures against all evaluated{run.limit_words}",
        lines,
        x_label=STEP,
        y_label="score",
        note="A batch counts repeats; the band holds the middle half of all evaluated architectures, each once.",
    )


def _shift(early: Sequence[float], late: Sequence[float]) -> str:
    first, last = float(np.median(early)), float(np.median(late))
    word = "higher than" if last > first else "lower than" if last < first else "equal to"
    return (
        f"The median of the last quarter of new architectures, {number_text(last)}, is {word} that in the first "
        f"quarter, {number_text(first)}. Each architecture counts once, when it was first evaluated."
    )
