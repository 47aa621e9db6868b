"""Pixels of the kit's SVG figures, for programs that show no SVG."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from PIL.Image import Image

_SCALE = 2  # pixels per unit
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
_CURVE_POINTS = 16


def pixels_of(svg: str) -> Image:
    """Return a figure of `figure_svg` as an image: boxes, lines, arrows and texts, without dashes and legend."""
    from PIL import Image, ImageDraw, ImageFont

    root = ElementTree.fromstring(svg)
    size = float(root.get("width", 0)), float(root.get("height", 0))
    image = Image.new("RGB", (round(_SCALE * size[0]), round(_SCALE * size[1])), "white")
    draw = ImageDraw.Draw(image)
    legend = {id(each) for group in root.iterfind("{*}g[@transform]") for each in group.iter()}
    for element in root.iter():
        kind, colour = element.tag.rpartition("}")[2], element.get("fill", "")
        if id(element) in legend or element.get("width", "").endswith("%"):
            continue
        x, y, width, height, radius = (
            _SCALE * float(element.get(key, 0)) for key in ("x", "y", "width", "height", "rx")
        )
        if kind == "rect":
            line = round(_SCALE * float(element.get("stroke-width", 1)))
            draw.rounded_rectangle((x, y, x + width, y + height), radius, colour, element.get("stroke"), line)
        elif kind == "path" and colour == "none":
            draw.line(_points(element.get("d", "")), element.get("stroke"), round(1.5 * _SCALE))
        elif kind == "path":
            tip_x, tip_y, *_ = (_SCALE * float(each) for each in re.findall(r"-?[\d.]+", element.get("d", "")))
            draw.polygon([(tip_x, tip_y), (tip_x - 8, tip_y - 14), (tip_x + 8, tip_y - 14)], colour)
        elif kind == "text":
            font = ImageFont.load_default(_SCALE * float(element.get("font-size", 12)))
            anchor = _ANCHORS[element.get("text-anchor", "middle")]
            draw.text((x, y), element.text or "", colour, font, anchor)
    return image


def _points(commands: str) -> list[tuple[float, float]]:
    """Return the points of a line of M, V, L and C commands, curves as short straight parts."""
    points: list[tuple[float, float]] = []
    for name, text in re.findall(r"([MVLC])([^MVLC]*)", commands):
        numbers = [_SCALE * float(each) for each in text.split()]
        if name == "V":
            numbers = [points[-1][0], *numbers]
        ends = list(zip(numbers[::2], numbers[1::2], strict=True))
        if name == "C":
            (x, y), (x1, y1), (x2, y2), (x3, y3) = points[-1], *ends
            shares = [place / _CURVE_POINTS for place in range(1, _CURVE_POINTS + 1)]
            weights = [((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3) for t in shares]
            ends = [(a * x + b * x1 + c * x2 + d * x3, a * y + b * y1 + c * y2 + d * y3) for a, b, c, d in weights]
        points += ends
    return points
