"""Drawings of tensor graphs: SVG, DOT text for Graphviz, and networkx graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx

from gflownet import layered_drawing
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.listing import Declaration, dtype_name
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.serialisation import write
from gflownet.autodiff.text import lines
from gflownet.layered_drawing import Box, Link, shortened

MAX_TITLE_LENGTH = 44

# Fill and stroke.
COLOURS = {
    "transform": ("#f8fafc", "#64748b"),
    "elementwise": ("#fef9c3", "#ca8a04"),
    "linear": ("#ede9fe", "#7c3aed"),
    "nonlinear": ("#ffe4e6", "#e11d48"),
    "cast": ("#f1f5f9", "#94a3b8"),
    "input": ("#e0f2fe", "#0284c7"),
    "parameter": ("#dcfce7", "#16a34a"),
    "constant": ("#f3f4f6", "#6b7280"),
}
CUSTOM_COLOURS = ("#ccfbf1", "#0d9488")
OUTPUT_STROKE_WIDTH = 2.8


def to_svg(graph: Graph | Node) -> str:
    """Return the graph as an SVG document, left to right; a box shows a node's formula, shape and dtype.

    Outputs have a thick border. The edge of a left operand enters above the edge of the right operand.
    """
    boxes, links = _boxes_and_links(graph)
    return layered_drawing.to_svg(boxes, links, title=f"Tensor graph of {len(boxes)} nodes")


def to_dot(graph: Graph | Node) -> str:
    """Return the graph in Graphviz's DOT language, left to right; the arrows of two operands are marked L and R."""
    return layered_drawing.to_dot(*_boxes_and_links(graph))


def to_networkx(graph: Graph | Node) -> nx.MultiDiGraph:
    """Return a networkx graph with an edge from each operand to its user, in topological order.

    Nodes are keyed by id and have the fields of their JSON form, `dtype` and `is_output`; an edge has the `position` of
    its operand (1 for a right operand) and its `indices`. A node used twice has two edges.
    """
    graph = Graph(graph) if isinstance(graph, Node) else graph
    id_of = {node: identifier for identifier, node in graph.ids.items()}
    exported = nx.MultiDiGraph()
    for entry in write(graph.ids, graph.outputs)["nodes"]:
        node = graph.node(entry["id"])
        fields = {field: value for field, value in entry.items() if field not in ("id", "src", "srcL", "srcR")}
        exported.add_node(entry["id"], **{**fields, "dtype": str(node.dtype).removeprefix("torch.")})
        exported.nodes[entry["id"]]["is_output"] = node in graph.outputs
        for position, source in enumerate(node.inputs):
            exported.add_edge(id_of[source], entry["id"], position=position, indices=_indices(entry, position))
    return exported


def _boxes_and_links(graph: Graph | Node) -> tuple[dict[int, Box], list[Link]]:
    graph = Graph(graph) if isinstance(graph, Node) else graph
    columns = _columns(graph.nodes())
    numbers = {node: number for number, node in enumerate(graph.nodes())}
    boxes: dict[int, Box] = {}
    links: list[Link] = []
    for node, line in lines(graph.nodes()).items():
        title, key = str(line), node.type_name()
        if isinstance(node, LeafNode) and isinstance(line, Declaration):
            content = "" if line.content is None else f" = {line.content}"
            key = node.kind.name.lower()
            title = f"{key} {line.name}{content}"
        shape = "\N{MULTIPLICATION SIGN}".join(map(str, node.shape)) or "scalar"
        detail = f"{shape} {dtype_name(node.dtype)}"
        tooltip = f"{title}, {detail}, {type(node).__name__}"
        box = Box(columns[node], shortened(title, MAX_TITLE_LENGTH), detail, tooltip, *COLOURS.get(key, CUSTOM_COLOURS))
        boxes[numbers[node]] = replace(box, stroke_width=OUTPUT_STROKE_WIDTH) if node in graph.outputs else box
        for side, source in enumerate(node.inputs):
            marks = "LR" if len(node.inputs) == 2 else range(len(node.inputs))
            mark = f'headlabel="{marks[side]}"' if len(node.inputs) > 1 else ""
            links.append(Link(numbers[source], numbers[node], position=side, dot_attributes=mark))
    return boxes, links


def _columns(nodes: Sequence[Node]) -> dict[Node, int]:
    """Return the column of each node: after all its operands; a leaf one column before its first use."""
    columns: dict[Node, int] = {}
    first_uses: dict[Node, int] = {}
    for node in nodes:
        columns[node] = 1 + max((columns[source] for source in node.inputs), default=-1)
        for source in node.inputs:
            first_uses[source] = min(columns[node], first_uses.get(source, columns[node]))
    for node in nodes:
        if isinstance(node, LeafNode) and node in first_uses:
            columns[node] = first_uses[node] - 1
    return columns


def _indices(entry: dict[str, Any], position: int) -> list[int] | None:
    """Return the signed indices of an operand; functions, casts and custom nodes have none."""
    fields = ("indexSrcL", "indexSrcR") if "indexSrcL" in entry else ("indexSrc",)
    return entry.get(fields[position]) if position < len(fields) else None
