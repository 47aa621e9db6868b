import re
from random import Random
from xml.etree import ElementTree

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_dot, to_svg
from tests.oracles import graphs as oracle

TOLERANCE = 0.2  # coordinates are written with one digit
SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph: ComputationGraph) -> tuple[list[tuple[float, ...]], list[str]]:
    """Return the boxes (left, top, right, bottom) and the path data of the edges without arrows."""
    root = ElementTree.fromstring(to_svg(graph))
    boxes = []
    for rect in root.iterfind(f"{SVG}g/{SVG}rect"):
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        boxes.append((x, y, x + width, y + height))
    paths = [path.attrib["d"] for path in root.iterfind(f".//{SVG}path") if path.get("fill") == "none"]
    return boxes, paths


def points(path: str) -> list[tuple[float, float]]:
    """Return points along a path of M, H, V, L and C commands."""
    path_points: list[tuple[float, float]] = []
    for command, arguments in re.findall(r"([MHVLC])([^MHVLC]*)", path):
        numbers = [float(number) for number in arguments.split()]
        if command == "M":
            path_points.append((numbers[0], numbers[1]))
            continue
        x, y = path_points[-1]
        end = {"H": [*numbers, y], "V": [x, *numbers]}.get(command, numbers)
        corners = [x, y, *(numbers if command == "C" else [x, y, *end, *end])]
        for step in range(1, 21):
            t = step / 20
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
            x, y = (sum(w * c for w, c in zip(weights, corners[i::2], strict=True)) for i in (0, 1))
            path_points.append((x, y))
    return path_points


@pytest.mark.parametrize("seed", range(8))
def test_svg_boxes_and_edges_lie_in_document_without_overlap(seed):
    graph = oracle.random_computation_graph(Random(seed), num_hidden=9, num_edges=14)
    boxes, paths = drawn(graph)
    assert len(boxes) == len(graph.nodes)
    assert len(paths) == len(graph.edges)
    for place, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:place]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
        for path in paths:
            inside = [(x, y) for x, y in points(path) if left + TOLERANCE < x < right - TOLERANCE and top < y < bottom]
            assert inside == []
    root = ElementTree.fromstring(to_svg(graph))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    corners = [corner for box in boxes for corner in ((box[0], box[1]), (box[2], box[3]))]
    for x, y in [*corners, *(point for path in paths for point in points(path))]:
        assert 0 < x < width
        assert 0 < y < height


def test_svg_edges_connect_boxes():
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=1)
    graph.add_node(1, "hidden", output_size=1)
    graph.add_node(2, "output", output_size=1)
    for source, target in ((0, 1), (1, 2), (0, 2), (2, 1), (1, 1)):
        graph.add_edge(source, target)
    boxes, paths = drawn(graph)
    assert boxes[0][3] < boxes[1][1] < boxes[1][3] < boxes[2][1]
    for edge, path in zip(graph.edges.values(), paths, strict=True):
        (x, y), *_, (end_x, end_y) = points(path)
        assert y == pytest.approx(boxes[edge.source][3])
        assert end_y == pytest.approx(boxes[edge.target][1] - 7)
        assert boxes[edge.source][0] < x < boxes[edge.source][2]
        assert boxes[edge.target][0] < end_x < boxes[edge.target][2]


EVIL = '<script>alert("1")</script>&\x00'


def test_svg_escapes_names():
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=1)
    graph.add_node(1, "hidden", output_size=1, activation_function=EVIL, attributes={"aggregation": EVIL, EVIL: EVIL})
    graph.add_edge(0, 1, attributes={EVIL: EVIL})
    svg = to_svg(graph)
    assert "<script" not in svg
    root = ElementTree.fromstring(svg)
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert f"{EVIL[:-1]}\N{REPLACEMENT CHARACTER}" in shown
    tooltips = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert f"node 1: {EVIL[:-1]}\N{REPLACEMENT CHARACTER}, bias 0" in "".join(tooltips)
    assert not list(root.iter(f"{SVG}script"))


def test_dot_replaces_unprintable_characters():
    graph = ComputationGraph()
    graph.add_node(0, "hidden", output_size=1, activation_function="\ud800\x1b[31m\u202e<b>\\N")
    text = to_dot(graph)
    mark = "\N{REPLACEMENT CHARACTER}"
    assert f'label="{mark}{mark}[31m{mark}<b>\\\\N\\nsum' in text.encode().decode()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"nodes": [{"id": 0, "node_type": "hidden"}]},
        {"nodes": [{"id": 0, "node_type": "output"}], "edges": [{"source": 0, "target": 5}]},
        {"nodes": [{"id": 0, "node_type": "input"}], "edges": [{"source": 0, "target": 0, "weight": float("nan")}]},
    ],
)
def test_invalid_graphs_are_drawn(data):
    graph = ComputationGraph.from_dict(data)
    assert ElementTree.fromstring(to_svg(graph)).tag == f"{SVG}svg"
    assert to_dot(graph).startswith("digraph {")


def test_neuron_within_operations_is_one_box_with_its_recurrent_edge():
    data = {
        "nodes": [
            {"id": 0, "shape": [4]},
            {"id": 1, "operation": {"name": "linear", "features": 6}},
            {"id": 2, "node_type": "hidden", "output_size": 3, "activation_function": "tanh"},
            {"id": 3, "node_type": "output", "operation": {"name": "linear", "features": 2}},
        ],
        "edges": [
            {"source": 0, "target": 1},
            {"source": 1, "target": 2},
            {"source": 2, "target": 2, "attributes": {"is_recurrent": True}},
            {"source": 2, "target": 3},
        ],
    }
    graph = ComputationGraph.from_dict(data)
    texts = [text.text for text in ElementTree.fromstring(to_svg(graph)).iter(f"{SVG}text")]
    assert [texts.count(text) for text in ("tanh", "sum · 3", "linear, 6", "+")] == [1, 1, 1, 0]
    assert len(drawn(graph)[1]) == 5  # with the link to the pill of the output
