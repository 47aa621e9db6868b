"""Pixels of figures, against the coordinates of their SVG."""

from xml.etree import ElementTree

import pytest
from PIL import ImageColor

from gflownet.pictures.figure import PLAIN, Cell, Colours, Figure, FigureLink, Form, Item
from gflownet.pictures.figure_layout import figure_svg
from gflownet.pictures.pixels import _points, pixels_of

BLUE = Colours("#dbeafe", "#2563eb")
FIGURE = Figure(
    {
        0: Item(Form.PILL, Cell("signal 1\N{MULTIPLICATION SIGN}40")),
        1: Item(Form.BOX, Cell("", BLUE)),
        2: Item(Form.BOX, Cell("last")),
    },
    [FigureLink(0, 1), FigureLink(1, 2), FigureLink(0, 2)],
)


def test_pixels_of_boxes_and_links() -> None:
    svg = figure_svg(FIGURE, title="three", caption="caption", legend={"linear": BLUE})
    image, root = pixels_of(svg).convert("RGB"), ElementTree.fromstring(svg)
    assert image.size == tuple(2 * int(root.get(key, 0)) for key in ("width", "height"))
    boxes = [each for each in root.iterfind("{*}g//{*}rect") if each.get("fill") in (BLUE.fill, PLAIN.fill)]
    (box,) = (each for each in boxes if each.get("fill") == BLUE.fill and float(each.get("width", 0)) > 11)
    x, y, width, height = (2 * float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
    assert image.getpixel((round(x + width / 2), round(y + height / 2))) == ImageColor.getrgb(BLUE.fill)
    assert image.getpixel((round(x + width / 2), round(y))) == ImageColor.getrgb(BLUE.stroke)
    link = next(each for each in root.iterfind("{*}g/{*}path") if each.get("fill") == "none")
    start_x, start_y = _points(link.get("d", ""))[0]
    assert image.getpixel((round(start_x), round(start_y + 4))) == ImageColor.getrgb("#475569")
    texts = image.crop((0, round(2 * float(root.get("height", 0)) - 70), image.width, image.height))
    assert len(texts.getcolors() or ()) == 1, "no legend, whose places are those of a group"


def test_points_of_a_curve_end_where_it_ends() -> None:
    points = _points("M1.0 2.0 V3.0 C1.0 5.0 4.0 5.0 4.0 7.0")
    assert points[:2] == [(2, 4), (2, 6)]
    assert points[-1] == pytest.approx((8, 14))
    assert points[9] == pytest.approx((5, 10)), "half of the curve"
    assert points == sorted(points)
