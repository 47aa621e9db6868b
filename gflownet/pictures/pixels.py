"""Pixels of the kit's SVG figures, for programs that show no SVG."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from PIL.Image import Image

_SCALE = 2  # pixels per unit
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
# The font of Pillow has no such signs.
_TEXT = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{HORIZONTAL ELLIPSIS}": "..."})
_NUM_COLOURS = 64
_SHARES = [place / 16 for place in range(1, 17)]  # points of a curve


def pixels_of(svg: str) -> Image:
    """Return a figure of `figure_svg` as an image: boxes, lines, arrows and texts, without dashes and legend."""
    from PIL import Image, ImageDraw, ImageFont

    root = ElementTree.fromstring(svg)
    image = Image.new("RGB", [round(_SCALE * float(root.get(key, 0))) for key in ("width", "height")], "white")
    draw = ImageDraw.Draw(image)
    for legend in root.findall("{*}g[@transform]"):
        root.remove(legend)
    for element in [*root.iterfind("{*}g//"), *root.iterfind("{*}text")]:
        places = (_SCALE * float(element.get(key, 0)) for key in ("x", "y", "width", "height", "rx", "stroke-width"))
        kind, colour, (x, y, width, height, radius, line) = element.tag.rpartition("}")[2], element.get("fill"), places
        commands, stroke = element.get("d", ""), element.get("stroke")
        if kind == "rect":
            draw.rounded_rectangle((x, y, x + width, y + height), radius, colour, stroke, round(line))
        elif kind == "path" and colour == "none":
            draw.line(_points(commands), stroke, round(line))
        elif kind == "path":
            x, y = (_SCALE * float(each) for each in re.findall(r"[\d.]+", commands)[:2])
            draw.polygon([(x, y), (x - 8, y - 14), (x + 8, y - 14)], colour)
        elif kind == "text":
            font = ImageFont.load_default(_SCALE * float(element.get("font-size", 12)))
            text, anchor = (element.text or "").translate(_TEXT), _ANCHORS[element.get("text-anchor", "middle")]
            draw.text((x, y), text, colour, font, anchor)
    return image.quantize(_NUM_COLOURS)


def _points(commands: str) -> list[tuple[float, float]]:
    """Return the points of a line of M, V, L and C commands, curves as short straight parts."""
    points: list[tuple[float, float]] = []
    for name, text in re.findall(r"([MVLC])([^MVLC]*)", commands):
        numbers = [_SCALE * float(each) for each in text.split()]
        numbers = [points[-1][0], *numbers] if name == "V" else numbers
        ends = list(zip(numbers[::2], numbers[1::2], strict=True))
        if name == "C":
            first, second, third, fourth = (complex(*each) for each in (points[-1], *ends))
            curve = [
                (1 - t) ** 3 * first + 3 * t * (1 - t) ** 2 * second + 3 * t**2 * (1 - t) * third + t**3 * fourth
                for t in _SHARES
            ]
            ends = [(each.real, each.imag) for each in curve]
        points += ends
    return points
