"""Charts: axes, thinning, texts, and the figures of their tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gflownet.pictures.chart import Chart, Scale, scale_of
from gflownet.pictures.line_charts import MAX_POINTS, Highlight, Line, line_chart, moving_mean, scatter_chart, thinned

MINUS = "\N{MINUS SIGN}"


def built(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [-3.0, 12.5], [0.93, 0.94], [5.0], [1e-9, 1.0, 1e9], [1e5, 1e9], [0.0, 0.0], [-1e-30, 1e-30]]
)
def test_ticks_are_inside_of_the_axis_and_increase(values):
    scale = scale_of(values)
    assert scale is not None
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    assert scale.ticks == sorted(set(scale.ticks))
    assert 1 <= len(scale.ticks) <= 9
    shares = [scale.share(value) for value in sorted(values)]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


def test_values_of_a_large_ratio_get_a_logarithmic_axis():
    assert scale_of([1.0, 1000.0]).is_log  # type: ignore[union-attr]
    assert not scale_of([1.0, 100.0]).is_log  # type: ignore[union-attr]
    assert not scale_of([-1.0, 1000.0]).is_log  # type: ignore[union-attr]
    assert Scale(1.0, 100.0, is_log=True).share(10.0) == pytest.approx(0.5)


def test_thinned_curve_keeps_ends_and_extremes():
    values = np.random.default_rng(0).normal(size=10_000)
    values[5_000:5_010] = math.nan
    places = thinned(values.tolist())
    assert len(places) <= MAX_POINTS + 2
    assert {0, 9_999, int(np.nanargmin(values)), int(np.nanargmax(values))} <= set(places)
    assert thinned([1.0, 2.0]) == [0, 1]


def test_moving_mean_equals_slow_version():
    values = [1.0, math.nan, 3.0, 4.0, 10.0, -2.0]
    expected = [
        np.nanmean(values[max(0, i - 2) : i + 1]) if math.isfinite(value) else math.nan
        for i, value in enumerate(values)
    ]
    assert moving_mean(values, 3) == pytest.approx(expected, nan_ok=True)
    assert moving_mean([1.0, 2.0], 10) == pytest.approx([1.0, 1.5])


def test_line_chart_breaks_at_gaps_and_lists_its_figures():
    line = Line("loss", [1, 2, 3, 4], [4.0, math.nan, 2.0, 1.0])
    chart = built(line_chart("c", "Loss", [line], x_label="step", y_label="loss"))
    (path,) = [mark.attributes["d"] for mark in chart.marks if mark.attributes.get("class") == "line s0 d0"]
    assert path.count("M") == 2
    assert chart.table is not None
    assert [*chart.table.rows][:2] == [["1", "4"], ["2", "\N{EN DASH}"]]
    assert "loss: 4 at 1, 1 at 4, between 1 and 4." in chart.description
    assert line_chart("c", "none", [Line("a", [1], [math.nan])], x_label="x", y_label="y") is None


def test_band_is_drawn_between_its_ends():
    line = Line("a", [0, 10], [1.0, 2.0], low=[0.0, 1.0], high=[2.0, 3.0])
    chart = built(line_chart("c", "A", [line], x_label="x", y_label="y"))
    (band,) = [mark.attributes["d"] for mark in chart.marks if mark.attributes.get("class") == "band s0 d0"]
    corners = band.strip("MZ").split("L")
    assert len(corners) == 4
    (_, top), (_, bottom) = (map(float, corner.split()) for corner in (corners[0], corners[-1]))
    assert top < bottom  # pixels from the top


def test_scatter_chart_links_highlights_and_draws_points_on_a_pixel_once():
    points = [(1.0, 1.0)] * 1000 + [(2.0, 3.0), (math.nan, 1.0)]
    highlights = [Highlight(2.0, 3.0, "front 0", "#front-0")]
    chart = built(scatter_chart("s", "S", points, highlights, x_label="x", y_label="y", names=("all", "front")))
    (dots,) = [mark.attributes["d"] for mark in chart.marks if mark.attributes.get("class") == "dots s0"]
    assert dots.count("M") == 2
    assert [mark.href for mark in chart.marks if mark.href] == ["#front-0"]


TEXTS, SURFACES = ("ink", "soft", "accent", "good", "bad", "warn"), ("page", "card", "code")
