"""The figure of docs/translation.md shows what the translator computes today."""

from pathlib import Path
from xml.etree import ElementTree

from gflownet.graphs.vocabulary import AGGREGATIONS
from scripts.draw_aggregations import EXAMPLES, draw

FIGURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "aggregations.svg"


def test_the_committed_figure_is_what_the_script_draws_now():
    drawn = draw()
    ElementTree.fromstring(drawn)
    assert FIGURE.read_text(encoding="utf-8") == drawn, (
        "python scripts/draw_aggregations.py docs/images/aggregations.svg"
    )


def test_every_aggregation_has_a_panel():
    assert [example.aggregation for example in EXAMPLES] == list(AGGREGATIONS)
