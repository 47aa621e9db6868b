"""Figures of operation graphs."""

import copy
import re
from random import Random
from xml.etree import ElementTree

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_dot, to_svg
from tests.graphs.test_drawing import SVG, points
from tests.graphs.test_operation_graph_format import EXAMPLE
from tests.oracles import operation_graphs as oracle

TIMES = "\N{MULTIPLICATION SIGN}"


def boxes_of(svg: str) -> list[tuple[tuple[float, float, float, float], str]]:
    """Return (left, top, right, bottom) and the text of every box and frame."""
    boxes = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rect, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        if rect is not None and text is not None and group.find(f"{SVG}title") is not None:
            x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            boxes.append(((x, y, x + width, y + height), text.text or ""))
    return boxes


@pytest.mark.parametrize("seed", range(10))
def test_figure_boxes_and_links_do_not_overlap(seed):
    data = oracle.random_data(Random(seed), num_hidden=8)
    nodes = [node if "subgraph" not in node else {"id": node["id"], **CONV} for node in data["nodes"]]
    svg = to_svg(ComputationGraph.from_dict({**data, "nodes": nodes}))
    root, boxes = ElementTree.fromstring(svg), [box for box, _ in boxes_of(svg)]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for place, (left, top, right, bottom) in enumerate(boxes):
        assert 0 < left < right < width
        assert 0 < top < bottom < height
        for other in boxes[:place]:
            assert (
                right <= other[0] + 0.2 or other[2] <= left + 0.2 or bottom <= other[1] + 0.2 or other[3] <= top + 0.2
            )
    for path in root.iter(f"{SVG}path"):
        if path.get("fill") != "none":
            continue
        for x, y in points(path.attrib["d"]):
            assert 0 < x < width
            inside = [box for box in boxes if box[0] + 0.3 < x < box[2] - 0.3 and box[1] + 0.3 < y < box[3] - 0.3]
            assert inside == []


CONV = {"operation": {"name": "conv2d", "features": 4}}


def test_dot_draws_subgraphs_as_clusters():
    text = to_dot(ComputationGraph.from_dict(EXAMPLE))
    assert f'label="cell {TIMES} 2"' in text
    assert text.count("{") == text.count("}")
    names = set(re.findall(r"^  (n\w+) \[", text, flags=re.MULTILINE))
    ends = set(re.findall(r"^  (n\w+) -> (n\w+)", text, flags=re.MULTILINE))
    assert {end for pair in ends for end in pair} <= names


EVIL = '<script>alert("1")</script>&\x00'


@pytest.mark.parametrize(
    "change",
    [
        {"operation": {"name": EVIL}},
        {"operation": EVIL},
        {"subgraph": EVIL},
        {"aggregation": EVIL},
        {"activation_function": EVIL},
        {"align": EVIL, "repeat": EVIL},
        {"port": EVIL},
        {"operation": {"name": "linear", "features": 3}},
    ],
)
def test_invalid_operation_graphs_are_drawn(change):
    data = copy.deepcopy(EXAMPLE)
    for node in (data["nodes"][1], data["nodes"][2], data["subgraphs"]["cell"]["nodes"][1]):
        node |= change
    data["edges"] += [{"source": 3, "target": 1}, {"source": 0, "target": 99}, {"source": 0, "target": 2, "port": EVIL}]
    graph = ComputationGraph.from_dict(data)
    svg = to_svg(graph)
    assert "<script" not in svg
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert to_dot(graph).startswith("digraph {")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("edges", {"port": 1}),
        ("edges", {"port": {"a": 1}}),
        ("nodes", {"repeat": ""}),
        ("nodes", {"repeat": 1.5}),
        ("nodes", {"subgraph": {"a": 1}}),
    ],
)
def test_ill_typed_fields_are_drawn(place, change):
    """One field of an otherwise valid graph."""
    data = copy.deepcopy(EXAMPLE)
    data[place][2] |= change
    graph = ComputationGraph.from_dict(data)
    assert graph.validate() != []
    assert "invalid" in to_svg(graph)


def test_figure_has_no_external_resources():
    svg = to_svg(ComputationGraph.from_dict(EXAMPLE))
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert "<image" not in svg
    assert all(len(colour) == 7 for colour in re.findall(r"#[0-9a-fA-F]+", svg))
