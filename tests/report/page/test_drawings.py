"""Drawings of every kind of architecture: well-formed, complete, escaped."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from gflownet.envs.tensor_program import TensorProgram
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_svg
from gflownet.report.page.drawings import Drawing, drawing_of
from tests.report.page.folders import assignment_of

HOSTILE = '</svg><script>alert("x")</script>&\x00'


def words(drawing: Drawing) -> str:
    """Return all texts of a drawing, which is well-formed."""
    texts = [text for pair in drawing.words for text in pair] + [drawing.code]
    if drawing.svg is not None:
        texts += list(ElementTree.fromstring(str(drawing.svg)).itertext())
    return "\n".join(texts)


def test_cell_has_a_box_for_each_operation_and_none_for_empty_places():
    drawing = drawing_of(assignment_of(**{"1<-0": "conv", "2<-0": "none", "2<-1": "pool"}))
    assert drawing.svg is not None
    titles = [text for text in ElementTree.fromstring(str(drawing.svg)).itertext() if text in ("conv", "pool", "none")]
    assert sorted(titles) == ["conv", "pool"]
    assert ("2<-0", "none") in drawing.words


def fills_of(word: str, svg: str) -> list[str | None]:
    """Return the fills of the boxes with a word."""
    groups = [group for group in ElementTree.fromstring(svg).iter() if group.tag.endswith("}g")]
    return [group[1].get("fill") for group in groups if word in group.itertext()]


def test_operation_has_one_colour_in_all_drawings():
    fills = []
    for names in (("avg_pool_3x3", "nor_conv_3x3"), ("nor_conv_3x3",), ("zap", "nor_conv_3x3")):
        svg = drawing_of(assignment_of(**{f"layer{place}": name for place, name in enumerate(names)})).svg
        assert svg is not None
        fills += fills_of("nor_conv_3x3", svg)
    nodes = [{"id": 0, "shape": [3, 8, 8]}, {"id": 1, "operation": {"name": "conv2d", "features": 4}}]
    network = ComputationGraph.from_dict({"nodes": nodes, "edges": [{"source": 0, "target": 1}]})
    assert len(fills) == 3
    assert len(set(fills)) == 1
    assert f'fill="{fills[0]}"' in to_svg(network)
    for colours in (("a", "zap"), ("zap",), ("0", "b", "zap")):
        svg = drawing_of(ColouredGraph(colours, {}, directed=False).to_dict()).svg
        assert svg is not None
        fills += fills_of("zap", svg)
    assert len(set(fills[3:])) == 1
    assert len(fills) == 6


def test_program_is_code():
    data = {**ColouredGraph(("A|", "*|"), {(0, 1): "e"}).to_dict(), "graph": {"program": "t = A * A; u = t + t"}}
    assert drawing_of(data).code == "t = A * A\nu = t + t"
    assert TensorProgram.from_dict(data).graph.node_colours == ("A|", "*|")


@pytest.mark.parametrize(
    "graph",
    [
        assignment_of(**{HOSTILE: HOSTILE}),
        assignment_of(**{"1<-0": HOSTILE}),
        assignment_of(layer0=HOSTILE),
        assignment_of(**{"cell[1]": HOSTILE}),
        ColouredGraph((HOSTILE, "b"), {(0, 1): HOSTILE}).to_dict(),
        ColouredGraph((HOSTILE, "b"), {(0, 1): HOSTILE}, directed=False).to_dict(),
    ],
)
def test_hostile_words_stay_text(graph):
    drawing = drawing_of(graph)
    assert drawing.svg is not None or drawing.words
    if drawing.svg is not None:
        assert "script" not in {
            element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawing.svg).iter()
        }
        assert "<script" not in drawing.svg


@pytest.mark.parametrize("data", [{}, {"nodes": []}, {"nodes": [{"id": 0}]}, {"nodes": [{"node_type": "x", "id": 1}]}])
def test_other_data_are_shown_as_text(data: dict[str, Any]):
    drawing = drawing_of(data)
    assert drawing.svg is not None or drawing.words
