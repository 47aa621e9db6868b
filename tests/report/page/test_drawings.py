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
from tests.evaluation.candidates import classifier_graph
from tests.report.page.folders import assignment_of

HOSTILE = '</svg><script>alert("x")</script>&\x00'


def words(drawing: Drawing) -> str:
    """Return all texts of a drawing, which is well-formed."""
    texts = [text for pair in drawing.words for text in pair] + [drawing.code]
    if drawing.svg is not None:
        texts += list(ElementTree.fromstring(str(drawing.svg)).itertext())
    return "\n".join(texts)


def test_network_is_drawn():
    shown = words(drawing_of(classifier_graph((4, "relu"), (8, "tanh")).to_dict()))
    assert "relu" in shown
    assert "tanh" in shown


def test_cell_has_a_box_for_each_operation_and_none_for_empty_places():
    drawing = drawing_of(assignment_of(**{"1<-0": "conv", "2<-0": "none", "2<-1": "pool"}))
    assert drawing.svg is not None
    titles = [text for text in ElementTree.fromstring(str(drawing.svg)).itertext() if text in ("conv", "pool", "none")]
    assert sorted(titles) == ["conv", "pool"]
    assert ("2<-0", "none") in drawing.words


def test_layers_are_in_the_order_of_their_numbers():
    drawing = drawing_of(assignment_of(**{f"layer{i}": f"op{i}" for i in range(12)}))
    assert drawing.svg is not None
    tooltips = [text for text in ElementTree.fromstring(str(drawing.svg)).itertext() if text.startswith("layer")]
    order = list(dict.fromkeys(text.partition(":")[0] for text in tooltips))
    assert order == [f"layer{i}" for i in range(12)]


def test_recurrent_stack_shows_layers_and_sizes():
    values = {"rank": "4", "ratio": "none", "cell[1]": "rhn", "beta[1]": "on", "cell[2]": "repeat", "cell[3]": "none"}
    drawing = drawing_of(assignment_of(**values))
    assert ("rank", "4") in drawing.words
    shown = words(drawing)
    assert "rhn" in shown
    assert "beta on" in shown
    assert "repeat" in shown
    assert "layer 3" not in shown


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


def test_choices_and_bits_are_words():
    assert drawing_of(assignment_of(kernel="rbf", bias=True, c=0.5)).words == (
        ("bias", "true"),
        ("c", "0.5"),
        ("kernel", "rbf"),
    )
    bits = drawing_of(assignment_of(**{f"x{i}": "1" if i % 3 else "0" for i in range(11)}))
    assert bits.words == (("bits", "01101101101"),)


def test_coloured_graphs_are_drawn_with_their_colours():
    cycle = ColouredGraph(
        ("red|", "blue|", "red|"), {(0, 1): "edge||0", (1, 2): "edge||0", (0, 2): "e"}, directed=False
    )
    assert words(drawing_of(cycle.to_dict())).count("red") >= 2
    loops = ColouredGraph(("a", "b"), {(0, 1): "e", (1, 0): "f", (0, 0): "g"})
    assert {"a", "b", "e", "f", "loop g"} <= set(words(drawing_of(loops.to_dict())).split("\n"))


@pytest.mark.parametrize("directed", [True, False])
def test_ring_is_drawn_in_rows_with_arrows_of_directed_edges_only(directed: bool):
    """Six nodes in a ring: rows of a breadth-first walk, from both sides of the first node."""
    edges = {(node, (node + 1) % 6) if directed or node < 5 else (0, 5): "edge" for node in range(6)}
    svg = drawing_of(ColouredGraph(tuple("abcdef"), edges, directed=directed).to_dict()).svg
    assert svg is not None
    heights = [rect.get("y") for rect in ElementTree.fromstring(svg).iter() if rect.get("rx") == "7"]
    assert sorted(heights.count(each) for each in set(heights)) == ([1, 1, 1, 3] if directed else [1, 1, 2, 2])
    assert svg.count(" h8 z") == (6 if directed else 0)
    assert "1" in words(drawing_of(ColouredGraph(("0", "1"), {(0, 1): "edge"}).to_dict()))


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
