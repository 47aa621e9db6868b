"""Figures of operation graphs."""

import copy
import re
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_dot, to_svg
from gflownet.graphs.operation import read_operation
from gflownet.graphs.operation_labels import operation_label
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


def texts_of(graph: ComputationGraph) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(to_svg(graph)).iter(f"{SVG}text")]


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


def test_figure_texts():
    data = copy.deepcopy(EXAMPLE)
    data["nodes"].insert(2, {"id": 7, "operation": {"name": "batch_norm"}})
    data["edges"][1:2] = [{"source": 1, "target": 7}, {"source": 7, "target": 2}, {"source": 0, "target": 3}]
    next(node for node in data["nodes"] if node["id"] == 3)["align"] = "auto"
    texts = texts_of(ComputationGraph.from_dict(data))
    image = f"4{TIMES}8{TIMES}8"
    expected = [
        f"image 3{TIMES}8{TIMES}8",
        f"conv 3{TIMES}3, 4 · relu",
        "batch norm",
        f"cell {TIMES} 2",
        f"1{TIMES}1 conv, 4",
        "+",
        "head, 10",
        "output 10",
        image,
        "convolution",
        "normalisation",
    ]
    assert set(expected) <= set(texts)
    assert texts.count(f"conv 3{TIMES}3, 4") == 2  # the cell is drawn once
    assert any(re.fullmatch(r"[\d,]+ parameters, [\d,]+ multiply-adds", text) for text in texts)


@pytest.mark.parametrize(
    ("operation", "label"),
    [
        ({"name": "conv2d", "features": 16}, f"conv 3{TIMES}3, 16"),
        ({"name": "conv2d", "features": 16, "kernel_size": 5, "stride": 2}, f"conv 5{TIMES}5, 16 /2"),
        ({"name": "conv1d", "features": 16}, "conv 3, 16"),
        ({"name": "max_pool2d"}, f"max pool 2{TIMES}2"),
        ({"name": "self_attention", "heads": 4}, "self-attention, 4 heads"),
        ({"name": "linear", "features": 10}, "linear, 10"),
        ({"name": "batch_norm"}, "batch norm"),
    ],
)
def test_operation_labels(operation, label):
    assert operation_label(read_operation(operation)) == label


def test_long_chain_grows_downwards():
    nodes: list[dict[str, Any]] = [{"id": 0, "shape": [4, 8, 8]}, *({"id": n, **CONV} for n in range(1, 40))]
    edges = [{"source": n, "target": n + 1} for n in range(39)]
    root = ElementTree.fromstring(to_svg(ComputationGraph.from_dict({"nodes": nodes, "edges": edges})))
    assert float(root.attrib["width"]) < 400
    boxes = boxes_of(to_svg(ComputationGraph.from_dict({"nodes": nodes, "edges": edges})))
    assert len({round((box[0] + box[2]) / 2) for box, _ in boxes}) == 1


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
