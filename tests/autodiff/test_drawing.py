"""Drawings and networkx graphs of tensor graphs."""

from __future__ import annotations

import shutil
import subprocess
from xml.etree import ElementTree

import networkx as nx
import pytest
import torch

from gflownet.autodiff import derivatives
from gflownet.autodiff.drawing import to_dot, to_networkx, to_svg
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import LeafKind, LeafNode
from gflownet.autodiff.text import parse
from tests.autodiff.random_graphs import random_graph

SVG = "{http://www.w3.org/2000/svg}"
TEXT = """
    input x[6,4]
    parameter w[4,3]
    constant half
    z[n,c] = sum_i x[n,i] w[i,c]
    h[n,c] = tanh(z[n,c])
    y[n,c] = h[n,c] * h[n,c]
    s = sum_nc 0.5 * y[n,c]
    loss = s - half
"""


def graphs() -> list[Graph]:
    result = [parse(TEXT).graph(), *(Graph.from_dict(random_graph(seed).graph) for seed in range(30))]
    example = result[0]
    return [*result, Graph(derivatives.hessian(example.sink, example.node("w")))]


def boxes(svg: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    result = []
    for box in svg.iterfind(f"{SVG}g/{SVG}rect"):
        x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        result.append((x, y, x + width, y + height))
    return result


@pytest.mark.parametrize("graph", graphs())
def test_svg_has_box_per_node_and_edge_per_operand(graph: Graph) -> None:
    svg = ElementTree.fromstring(to_svg(graph))
    result = boxes(svg)
    num_edges = sum(len(node.inputs) for node in graph.nodes())
    assert len(result) == len(graph.nodes())
    assert len(svg.findall(f"{SVG}g/{SVG}path")) == 2 * num_edges
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for number, (left, top, right, bottom) in enumerate(result):
        assert 0 < left < right < width
        assert 0 < top < bottom < height
        for other in result[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    order = dict(zip(graph.nodes(), result, strict=True))
    assert all(order[source][3] < order[node][1] for node in graph.nodes() for source in node.inputs)


def test_svg_shows_formulas() -> None:
    text = to_svg(parse(TEXT).graph())
    for words in (
        "z[i,j] = sum_k x[i,k] w[k,j]",
        "h[i,j] = tanh(z[i,j])",
        "constant half",
        "6\N{MULTIPLICATION SIGN}3 float64",
        "scalar",
    ):
        assert words in text
    assert text.count('stroke-width="2.8"') == 1


def test_svg_leaf_is_one_row_before_first_use() -> None:
    graph = parse(TEXT).graph()
    places = dict(zip(graph.nodes(), boxes(ElementTree.fromstring(to_svg(graph))), strict=True))
    assert places[graph.node("half")][1] == places[graph.node("s")][1]
    assert places[graph.node("x")][1] == places[graph.node("w")][1]


def test_svg_escapes_names() -> None:
    leaf = LeafNode([2], kind=LeafKind.PARAMETER, name='<a & "b">')
    assert ElementTree.fromstring(to_svg(leaf)) is not None
    assert "parameter t_1" in to_dot(leaf)


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
@pytest.mark.parametrize("graph", graphs()[:3])
def test_graphviz_draws_dot_text(graph: Graph) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=to_dot(graph), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    svg = ElementTree.fromstring(done.stdout)
    kinds = [group.attrib["class"] for group in svg.iterfind(f"{SVG}g/{SVG}g")]
    assert kinds.count("node") == len(graph.nodes())
    assert kinds.count("edge") == sum(len(node.inputs) for node in graph.nodes())


def test_dot_text_has_every_node_and_edge() -> None:
    lines = to_dot(parse(TEXT).graph()).splitlines()
    assert sum("->" in line for line in lines) == 8
    assert sum("label=" in line and "->" not in line for line in lines) == 8
    assert any('headlabel="R"' in line for line in lines)


@pytest.mark.parametrize("graph", graphs())
def test_to_networkx_has_all_nodes_and_edges(graph: Graph) -> None:
    result = to_networkx(graph)
    assert nx.is_directed_acyclic_graph(result)
    assert list(result) == list(graph.ids)
    assert [name for name, is_output in result.nodes(data="is_output") if is_output] == [
        name for name, node in graph.ids.items() if node in graph.outputs
    ]
    for name, node in graph.ids.items():
        entering = sorted(result.in_edges(name, data=True), key=lambda edge: edge[2]["position"])
        assert [graph.node(source) for source, _, _ in entering] == list(node.inputs)
        assert result.nodes[name]["shape"] == list(node.shape)
        assert getattr(torch, result.nodes[name]["dtype"]) is node.dtype


def test_to_networkx_example() -> None:
    result = to_networkx(parse(TEXT).graph())
    assert result.nodes["z"]["type"] == "linear"
    assert result.number_of_edges("h", "y") == 2
    assert result.get_edge_data("w", "z")[0] == {"position": 1, "indices": [-3, 2]}
    assert result.get_edge_data("z", "h")[0]["indices"] is None
    assert list(to_networkx(LeafNode([2]))) == [0]
