"""Charts: axes, thinning, texts, and the figures of their tables."""

from __future__ import annotations

import math
import re
from importlib.resources import files
from itertools import product

import numpy as np
import pytest

from gflownet.pictures.bar_charts import Bar, Estimate, Sample, bar_chart, histogram, interval_chart
from gflownet.pictures.chart import Chart, Scale, duration_text, number_text, scale_of
from gflownet.pictures.line_charts import MAX_POINTS, Highlight, Line, line_chart, moving_mean, scatter_chart, thinned

MINUS = "\N{MINUS SIGN}"


def built(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.93471, "0.9347"), (12_345.6, "12,346"), (3.0, "3"), (0.0, "0"), (-1.25, f"{MINUS}1.25")),
        *((math.nan, "\N{EN DASH}"), (None, "\N{EN DASH}"), (2.5e9, "2.5e9"), (3e-6, f"3e{MINUS}6")),
    ],
)
def test_number_text(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (4.04, "4.0 s"), (61.0, "1 min 1 s"), (3600.0, "1 h"), (90_061.0, "1 d 1 h"), (59.6, "1 min")],
)
def test_duration_text(seconds, text):
    assert duration_text(seconds) == text


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


def test_scale_of_no_finite_value_is_none():
    assert scale_of([math.nan, math.inf]) is None


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


def test_histogram_has_quantiles_and_shares():
    values = np.random.default_rng(1).normal(size=500).tolist()
    chart = built(histogram("h", "H", [Sample("all", values), Sample("few", [0.0, 1.0])], x_label="score"))
    assert chart.table is not None
    name, number, *quantiles = chart.table.rows[0]
    assert (name, number) == ("all", "500")
    assert quantiles == [number_text(value) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])]
    y_ticks = [mark.text for mark in chart.marks if mark.attributes.get("text-anchor") == "end"]
    assert y_ticks == ["0", "0.2", "0.4"], "half of the second sample is in each of two bins"
    assert histogram("h", "H", [Sample("all", [])], x_label="score") is None


def test_bar_and_interval_charts_name_every_row():
    bars = built(bar_chart("b", "B", [Bar("a", 3.0, "3 s"), Bar("b", 1.0, "1 s")], x_label="s", header=("x", "y")))
    widths = [float(mark.attributes["width"]) for mark in bars.marks if mark.tag == "rect"]
    assert widths[0] / widths[1] == pytest.approx(3.0, rel=0.02)
    estimates = [Estimate("one", 0.5, 0.4, 0.6, is_marked=True), Estimate("two", 0.1, 0.1, 0.1)]
    chart = built(interval_chart("i", "I", estimates, x_label="x", header=("a", "b", "c")))
    assert chart.table is not None
    assert chart.table.rows[0] == ["one", "0.5", "0.4 to 0.6"]
    assert chart.table.rows[1][2] == "no interval"
    assert bar_chart("b", "B", [], x_label="s", header=("x", "y")) is None
    assert interval_chart("i", "I", [], x_label="x", header=()) is None


def test_scatter_chart_links_highlights_and_draws_points_on_a_pixel_once():
    points = [(1.0, 1.0)] * 1000 + [(2.0, 3.0), (math.nan, 1.0)]
    highlights = [Highlight(2.0, 3.0, "front 0", "#front-0")]
    chart = built(scatter_chart("s", "S", points, highlights, x_label="x", y_label="y", names=("all", "front")))
    (dots,) = [mark.attributes["d"] for mark in chart.marks if mark.attributes.get("class") == "dots s0"]
    assert dots.count("M") == 2
    assert [mark.href for mark in chart.marks if mark.href] == ["#front-0"]


THEMES = {"light": 0, "dark": 1}
TEXTS, SURFACES = ("ink", "soft", "accent", "good", "bad", "warn"), ("page", "card", "code")
LINES = tuple(f"c{index}" for index in range(8))


def colours(theme: str) -> dict[str, str]:
    text = files("gflownet.report.page").joinpath("templates/style.css.j2").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", blocks[THEMES[theme]]))


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_of_known_colours():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_and_lines_have_enough_contrast(theme):
    found = colours(theme)
    low = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in product(TEXTS, SURFACES)}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    lines = {name: contrast(found[name], found["card"]) for name in LINES}
    assert {name: ratio for name, ratio in lines.items() if ratio < 3} == {}
