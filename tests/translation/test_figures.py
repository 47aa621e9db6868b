"""docs/images/aggregations.svg equals a new drawing; GFLOWNET_UPDATE_FIGURES=1 writes it."""

import os
from pathlib import Path
from xml.etree import ElementTree

from gflownet.operations.vocabulary import AGGREGATIONS
from tests.translation.aggregation_figure import EXAMPLES, draw

FIGURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "aggregations.svg"


def test_aggregation_figure_is_up_to_date():
    drawing = draw()
    ElementTree.fromstring(drawing)
    if os.environ.get("GFLOWNET_UPDATE_FIGURES"):
        FIGURE.write_text(drawing, encoding="utf-8")
    assert FIGURE.read_text(encoding="utf-8") == drawing, (
        "GFLOWNET_UPDATE_FIGURES=1 pytest tests/translation/test_figures.py"
    )


def test_aggregation_figure_has_every_aggregation():
    assert [example.aggregation for example in EXAMPLES] == list(AGGREGATIONS)
