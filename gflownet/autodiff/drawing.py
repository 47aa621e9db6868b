"""Drawings of tensor graphs: SVG, DOT text for Graphviz, and networkx graphs."""

from __future__ import annotations

from typing import Any

import networkx as nx

from gflownet.autodiff.graph import Graph
from gflownet.autodiff.listing import Declaration
from gflownet.autodiff.nodes import LeafNode, Node, dtype_name
from gflownet.autodiff.serialisation import write
from gflownet.autodiff.text import lines
from gflownet.pictures.figure import Cell, Colours, Figure, FigureLink, Form, Item, figure_dot, shortened
from gflownet.pictures.figure_layout import figure_svg

MAX_TITLE_LENGTH = 44
TIMES = "\N{MULTIPLICATION SIGN}"

# Fill and stroke.
COLOURS = {
    "transform": Colours("#f8fafc", "#64748b"),
    "elementwise": Colours("#fef9c3", "#ca8a04"),
    "linear": Colours("#ede9fe", "#7c3aed"),
    "nonlinear": Colours("#ffe4e6", "#e11d48"),
    "cast": Colours("#f1f5f9", "#94a3b8"),
    "input": Colours("#e0f2fe", "#0284c7"),
    "parameter": Colours("#dcfce7", "#16a34a"),
    "constant": Colours("#f3f4f6", "#6b7280"),
}
CUSTOM_COLOURS = Colours("#ccfbf1", "#0d9488")
OUTPUT_STROKE_WIDTH = 2.8


def to_svg(graph: Graph | Node) -> str:
    """Return the graph as an SVG document, top to bottom; a box shows a node's formula, shape and dtype.

    Outputs have a thick border. The edge of a left operand enters left of the edge of the right operand.
    """
    figure = _figure(graph)
    return figure_svg(figure, title=f"Tensor graph of {len(figure.items)} nodes")


def to_dot(graph: Graph | Node) -> str:
    """Return the graph in Graphviz's DOT language, top to bottom; the arrows of two operands are marked L and R."""
    return figure_dot(_figure(graph))


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
        exported.add_node(entry["id"], **{**fields, "dtype": dtype_name(node.dtype)})
        exported.nodes[entry["id"]]["is_output"] = node in graph.outputs
        for position, source in enumerate(node.inputs):
            exported.add_edge(id_of[source], entry["id"], position=position, indices=_indices(entry, position))
    return exported


def _figure(graph: Graph | Node) -> Figure:
    graph = Graph(graph) if isinstance(graph, Node) else graph
    numbers = {node: number for number, node in enumerate(graph.nodes())}
    items: dict[int, Item] = {}
    links: list[FigureLink] = []
    for node, line in lines(graph.nodes()).items():
        title, key = str(line), node.type_name()
        if isinstance(node, LeafNode) and isinstance(line, Declaration):
            key = node.kind.name.lower()
            title = f"{key} {line.name}" + (f" = {line.remark}" if line.remark else "")
        detail = f"{TIMES.join(map(str, node.shape)) or 'scalar'} {dtype_name(node.dtype)}"
        tooltip = f"{title}, {detail}, {type(node).__name__}"
        width = OUTPUT_STROKE_WIDTH if node in graph.outputs else Cell.stroke_width
        colours = COLOURS.get(key, CUSTOM_COLOURS)
        cell = Cell(shortened(title, MAX_TITLE_LENGTH), colours, tooltip, detail, width)
        items[numbers[node]] = Item(Form.BOX, cell)
        for side, source in enumerate(node.inputs):
            marks = "LR" if len(node.inputs) == 2 else range(len(node.inputs))
            mark = f"{marks[side]}" if len(node.inputs) > 1 else ""
            links.append(FigureLink(numbers[source], numbers[node], mark, position=side))
    return Figure(items, links)


def _indices(entry: dict[str, Any], position: int) -> list[int] | None:
    """Return the signed indices of an operand; functions, casts and custom nodes have none."""
    fields = ("indexSrcL", "indexSrcR") if "indexSrcL" in entry else ("indexSrc",)
    return entry.get(fields[position]) if position < len(fields) else None
