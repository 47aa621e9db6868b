"""Drawings of computation graphs: SVG and DOT text for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gflownet import layered_drawing
from gflownet.graphs import operation_figure
from gflownet.graphs.elements import Edge, Node, NodeType, is_dense
from gflownet.graphs.ordering import followed_edges, sorted_prefix
from gflownet.layered_drawing import Box, Link, LinkStyle, shortened
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph

MAX_LABEL_LENGTH = 26

# Fill and stroke.
COLOURS = {
    NodeType.INPUT: ("#e0f2fe", "#0284c7"),
    NodeType.HIDDEN: ("#f8fafc", "#64748b"),
    NodeType.OUTPUT: ("#dcfce7", "#16a34a"),
}
FORWARD_STYLE = LinkStyle()
RECURRENT_STYLE = LinkStyle("#d97706", "7 5", "dashed")
DISABLED_STYLE = LinkStyle("#9ca3af", "1.5 4.5", "dotted")
STYLE_NAMES = {RECURRENT_STYLE: ["recurrent"], DISABLED_STYLE: ["disabled"]}


def to_svg(graph: ComputationGraph) -> str:
    """Return an SVG document, left to right, operation graphs top to bottom; details are in tooltips.

    Recurrent edges (marked, or closing a cycle) are dashed, disabled edges grey and dotted. Edges without both ends in
    the graph are left out.
    """
    if not is_dense(graph):
        return operation_figure.to_svg(graph)
    links = [link for link in _links(graph) if link.source in graph.nodes and link.target in graph.nodes]
    title = f"Computation graph of {len(graph.nodes)} nodes and {len(graph.edges)} edges"
    return layered_drawing.to_svg(_boxes(graph), links, title=title)


def to_dot(graph: ComputationGraph) -> str:
    """Return the graph in Graphviz's DOT language, with the colours and line styles of `to_svg`."""
    if not is_dense(graph):
        return operation_figure.to_dot(graph)
    return layered_drawing.to_dot(_boxes(graph), _links(graph))


def _boxes(graph: ComputationGraph) -> dict[int, Box]:
    columns = _columns(graph)
    boxes: dict[int, Box] = {}
    for node_id, node in sorted(graph.nodes.items()):
        title, detail = _labels(node)
        tooltip = f"node {node_id}: {node.activation_function}, bias {node.bias:g}{_attributes_text(node.attributes)}"
        boxes[node_id] = Box(columns[node_id], title, detail, tooltip, *COLOURS[node.node_type])
    return boxes


def _labels(node: Node) -> tuple[str, str]:
    """Return the two lines of a box: activation, then aggregation and width."""
    size = "?" if node.output_size is None else str(node.output_size)
    if node.node_type is NodeType.INPUT:
        return "input", size
    title = short_name(node.activation_function)
    if node.node_type is NodeType.OUTPUT:
        title = "output" if title == "linear" else f"output · {title}"
    detail = f"{short_name(str(thawed(node.aggregation)))} · {size}"
    return shortened(title, MAX_LABEL_LENGTH), shortened(detail, MAX_LABEL_LENGTH)


def _links(graph: ComputationGraph) -> list[Link]:
    closing = set(graph.detect_cycles())
    links: list[Link] = []
    for edge_id, edge in sorted(graph.edges.items()):
        style = FORWARD_STYLE
        if not edge.enabled:
            style = DISABLED_STYLE
        elif edge.is_recurrent or edge_id in closing:
            style = RECURRENT_STYLE
        words = [f"edge {edge_id}: {edge.source} → {edge.target}", f"weight {edge.weight:g}"]
        tooltip = ", ".join(words + STYLE_NAMES.get(style, [])) + _attributes_text(edge.attributes)
        constraint = "" if style is FORWARD_STYLE else "constraint=false"
        links.append(Link(edge.source, edge.target, tooltip, style, dot_attributes=constraint))
    return links


def _attributes_text(attributes: Mapping[str, Any]) -> str:
    return f", {json.dumps(thawed(attributes))}" if attributes else ""


def _columns(graph: ComputationGraph) -> dict[int, int]:
    """Return the column of each node: after its inputs; without inputs, before its first use; outputs last."""
    closing = set(graph.detect_cycles())
    edges = [edge for edge in followed_edges(graph, ignore_recurrent=True) if edge.edge_id not in closing]
    order = sorted_prefix(graph.nodes, edges)
    outgoing: dict[int, list[Edge]] = {node_id: [] for node_id in order}
    for edge in edges:
        outgoing[edge.source].append(edge)
    column = dict.fromkeys(order, 0)
    has_input = set()
    for node_id in order:
        for edge in outgoing[node_id]:
            column[edge.target] = max(column[edge.target], column[node_id] + 1)
            has_input.add(edge.target)
    last = max(column.values(), default=0)
    for node_id in reversed(order):
        node_type = graph.nodes[node_id].node_type
        if node_type is NodeType.OUTPUT and not outgoing[node_id]:
            column[node_id] = last
        elif node_type is NodeType.HIDDEN and node_id not in has_input and outgoing[node_id]:
            column[node_id] = max(0, min(column[edge.target] for edge in outgoing[node_id]) - 1)
    return column
