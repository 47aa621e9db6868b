"""Contrast of the colours of both themes (WCAG 2.2, 1.4.3 and 1.4.11)."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import product

import pytest

from gflownet.pictures.chart import SERIES_COLOURS

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


def test_series_have_the_same_colours_in_pages_and_files():
    assert tuple(colours("light")[line] for line in LINES) == SERIES_COLOURS
