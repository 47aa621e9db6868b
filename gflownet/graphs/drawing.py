"""Drawings of computation graphs, top to bottom: SVG and DOT text for Graphviz.

A box per operation or neuron, circles for merges, dashed adapters, frames for subgraphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.elements import (
    DEFAULT_WEIGHT,
    Edge,
    GraphElements,
    Node,
    NodeKind,
    NodeType,
    applied_subgraph,
    is_imported,
    maps_tensors,
    names_classes,
    nested_graphs,
)
from gflownet.graphs.merges import MergePlan
from gflownet.graphs.operation_labels import (
    CATEGORY_COLOURS,
    MAX_LABEL_LENGTH,
    adapter_text,
    applied_operation,
    attributes_text,
    cost_text,
    frame_title,
    merge_sign,
    node_text,
    node_tooltip,
    shape_text,
)
from gflownet.graphs.ordering import sorted_prefix
from gflownet.graphs.typed import OperationCost, TypedNode
from gflownet.operations.operation import INPUT_PORT, Category
from gflownet.operations.tensor_shape import Adapter, Layout
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name
from gflownet.pictures.figure import (
    ADAPTED,
    DISABLED,
    FORWARD,
    RECURRENT,
    Cell,
    Colours,
    Figure,
    FigureLink,
    Form,
    Item,
    LinkStyle,
    figure_dot,
    shortened,
)
from gflownet.pictures.figure_layout import figure_svg

_FRAME = Colours("#f8fafc", "#94a3b8")
_OUTPUT_WIDTH = 2.8  # of the border
_MARKS = {RECURRENT: ", recurrent", DISABLED: ", disabled"}


def to_svg(graph: ComputationGraph) -> str:
    """Return an SVG document, with parameters and multiply-adds below; details are in tooltips.

    Recurrent edges (marked, or closing a cycle) are dashed, disabled edges grey and dotted. Edges without both ends in
    the graph are left out.
    """
    figure, caption = _Builder(graph, _drawn_shapes(graph), is_inner=False).figure(), _caption(graph)
    title = f"Computation graph of {len(graph.nodes)} nodes and {len(graph.edges)} edges: {caption}"
    return figure_svg(figure, title=title, caption=caption, legend=_legend(graph))


def to_dot(graph: ComputationGraph) -> str:
    """Return the graph in Graphviz's DOT language, with the colours and line styles of `to_svg`."""
    return figure_dot(_Builder(graph, _drawn_shapes(graph), is_inner=False).figure())


def _drawn_shapes(graph: ComputationGraph) -> Mapping[int, TypedNode]:
    """Return the shapes of the nodes; none of a graph with classes that are not imported: drawing runs no such code."""
    return {} if names_classes(graph, is_imported) else graph.typed().nodes


class _Builder:
    """Items and links of one graph, in topological order."""

    def __init__(self, graph: GraphElements, node_shapes: Mapping[int, TypedNode], *, is_inner: bool) -> None:
        self._graph, self._known, self._is_inner = graph, node_shapes, is_inner
        self._items: dict[int, Item] = {}
        self._links: list[FigureLink] = []
        self._starts: dict[int, tuple[int, Mapping[str, int]]] = {}  # node -> item that its inputs enter, ports inside
        self._ends: dict[int, tuple[int, int | None]] = {}  # node -> item whose bottom is its output, port inside
        self._keys = count()
        self.ports: dict[str, int] = {}  # of a subgraph: item by port
        self.outputs: dict[int, int] = {}  # node -> item of form PORT
        self._closing = set(graph.detect_cycles())
        self._edges = [
            edge for edge in graph.edges.values() if edge.source in graph.nodes and edge.target in graph.nodes
        ]
        followed = [edge for edge in self._edges if not edge.is_recurrent and edge.edge_id not in self._closing]
        self._order = sorted_prefix(graph.nodes, followed)
        if len(self._order) < len(graph.nodes):  # a disabled edge closes a cycle
            self._order = sorted_prefix(graph.nodes, [edge for edge in followed if edge.enabled])
        rank = {node_id: place for place, node_id in enumerate(self._order)}
        self._incoming: dict[int, list[Edge]] = {}
        self._late: list[Edge] = []  # recurrent, or from a node further below
        for edge in sorted(self._edges, key=lambda edge: (edge.order, edge.edge_id)):
            is_late = edge not in followed or rank[edge.source] >= rank[edge.target]
            (self._late if is_late else self._incoming.setdefault(edge.target, [])).append(edge)

    def figure(self) -> Figure:
        """Return the figure; outputs are in the last row."""
        for node_id in self._order:
            node = self._graph.nodes[node_id]
            if node.node_type is NodeType.INPUT:
                self._add_input(node)
            elif is_neuron(self._graph, node):
                self._add_neuron(node)
            else:
                self._add_node(node)
        for node in (self._graph.nodes[node_id] for node_id in self._order):
            if node.node_type is NodeType.OUTPUT:
                self._add_output(node)
        for edge in self._late:
            key, ports = self._starts[edge.target]
            source, exit_port = self._ends[edge.source]
            entry = ports.get(str(edge.port))
            tooltip, style = self._edge_look(edge)
            self._links.append(FigureLink(source, key, "", tooltip, style, entry, exit_port, is_ranked=False))
        return Figure(self._items, self._links)

    def _add_output(self, node: Node) -> None:
        source, port = self._ends[node.node_id]
        if not self._is_inner and is_neuron(self._graph, node):
            return
        cell = Cell(f"output {self._shape_text(node.node_id)}".strip(), tooltip=f"node {node.node_id}")
        key = self._add(Item(Form.PORT if self._is_inner else Form.PILL, cell, is_last=True))
        self.outputs[node.node_id] = key
        self._links.append(FigureLink(source, key, exit=port))

    def _add(self, item: Item) -> int:
        key = next(self._keys)
        self._items[key] = item
        return key

    def _shape_text(self, node_id: int) -> str:
        return shape_text(self._known[node_id].output) if node_id in self._known else ""

    def _add_input(self, node: Node) -> None:
        port = str(node.port)
        if self._is_inner:
            key = self._add(Item(Form.PORT, Cell("")))
            self.ports.setdefault(port, key)
        else:
            kind = self._known[node.node_id].output.layout if node.node_id in self._known else "input"
            kind = "input" if kind == Layout.VECTOR else kind
            shape = self._shape_text(node.node_id) or str(node.output_size or "")
            cell = Cell(f"{kind} {shape}".strip(), tooltip=node_tooltip(node))
            key = self._add(Item(Form.PILL, cell))
        self._starts[node.node_id] = key, {}
        self._ends[node.node_id] = key, None

    def _add_neuron(self, node: Node) -> None:
        """Add a box that all in-edges enter: its aggregation is the second line."""
        edges = self._incoming.get(node.node_id, [])
        links = [self._adapted(edge, None, None) for edge in edges]
        is_output = node.node_type is NodeType.OUTPUT
        key = self._add(Item(Form.BOX, _neuron_cell(node), is_last=is_output))
        self._links += [_to(link, key) for link in links]
        self._starts[node.node_id], self._ends[node.node_id] = (key, {}), (key, None)

    def _add_node(self, node: Node) -> None:
        by_port: dict[str, list[Edge]] = {}
        for edge in self._incoming.get(node.node_id, []):
            by_port.setdefault(str(edge.port), []).append(edge)
        cell = self._cell(node)
        entries: list[FigureLink] = []
        for port, edges in by_port.items():
            plan = self._known[node.node_id].inputs.get(port) if node.node_id in self._known else None
            label = "" if port == INPUT_PORT else port
            entries.append(self._merged(node, edges, plan, label))
        only_merges = cell is None and len(entries) == 1 and len(by_port.get(INPUT_PORT, ())) > 1
        if only_merges:
            key = entries[0].source
            self._items[key] = replace(self._items[key], note=self._note(node))
            self._starts[node.node_id], self._ends[node.node_id] = (key, {}), (key, None)
            return
        self._add_box(node, cell, entries, list(by_port))

    def _add_box(self, node: Node, cell: Cell | None, links: list[FigureLink], ports: list[str]) -> None:
        inner = self._inner(node)
        cell = cell or Cell("identity", CATEGORY_COLOURS[Category.OTHER], node_tooltip(node))
        if inner is None:
            key = self._add(Item(Form.BOX, cell, self._note(node)))
            self._starts[node.node_id], self._ends[node.node_id] = (key, {}), (key, None)
            self._links += [_to(link, key) for link in links]
            return
        builder, figure = inner
        key = self._add(Item(Form.FRAME, cell, self._note(node), figure))
        self._links += [_to(link, key, entry=builder.ports.get(port)) for link, port in zip(links, ports, strict=True)]
        self._starts[node.node_id] = key, builder.ports
        self._ends[node.node_id] = key, next(iter(builder.outputs.values()), None)

    def _merged(self, node: Node, edges: list[Edge], plan: MergePlan | None, label: str) -> FigureLink:
        """Return the link from the aligned and merged inputs of a port, without its target."""
        adapters = {edge.edge_id: each for edge, each in zip(plan.edges, plan.adapters, strict=True)} if plan else {}
        links = [self._adapted(edge, adapters.get(edge.edge_id), plan) for edge in edges]
        if len(links) == 1:
            return FigureLink(links[0].source, -1, label, links[0].tooltip, links[0].style, exit=links[0].exit)
        cell = Cell(merge_sign(node), tooltip=f"node {node.node_id}: {thawed(node.aggregation)} of {len(links)} inputs")
        key = self._add(Item(Form.CIRCLE, cell))
        self._links += [_to(link, key) for link in links]
        return FigureLink(key, -1, label)

    def _adapted(self, edge: Edge, adapter: Adapter | None, plan: MergePlan | None) -> FigureLink:
        source, exit_port = self._ends[edge.source]
        tooltip, style = self._edge_look(edge)
        text = adapter_text(adapter, plan.align) if adapter is not None and plan is not None else ""
        if not text:
            return FigureLink(source, -1, "", tooltip, style, exit=exit_port)
        cell = Cell(text, tooltip=f"{tooltip}, adapted: {text}")
        key = self._add(Item(Form.SMALL, cell))
        self._links.append(FigureLink(source, key, "", tooltip, ADAPTED, exit=exit_port))
        return FigureLink(key, -1, "", tooltip, ADAPTED)

    def _edge_look(self, edge: Edge) -> tuple[str, LinkStyle]:
        """Return tooltip and style of an edge."""
        style = FORWARD
        if not edge.enabled:
            style = DISABLED
        elif edge.is_recurrent or edge.edge_id in self._closing:
            style = RECURRENT
        weight = f", weight {edge.weight:g}" if edge.weight != DEFAULT_WEIGHT else ""
        tooltip = f"edge {edge.edge_id}: {edge.source} → {edge.target}{weight}{_MARKS.get(style, '')}"
        return tooltip + attributes_text(edge.attributes), style

    def _cell(self, node: Node) -> Cell | None:
        """Return the line of a node's box; None for an identity without activation."""
        if node.kind is NodeKind.SUBGRAPH:
            return Cell(frame_title(node), _FRAME, node_tooltip(node, self._cost(node)))
        shapes = self._known.get(node.node_id)
        layout = next((plan.shape.layout for plan in shapes.inputs.values()), None) if shapes else None
        text = node_text(node, layout)
        applied = applied_operation(node)
        category = Category.OTHER if applied is None else applied.row.category
        return Cell(text, CATEGORY_COLOURS[category], node_tooltip(node, self._cost(node))) if text else None

    def _cost(self, node: Node) -> OperationCost | None:
        if node.node_id not in self._known:
            return None
        try:
            return self._known[node.node_id].cost
        except ValueError:  # a user's class that cannot be counted
            return None

    def _note(self, node: Node) -> str:
        return "" if node.node_type is NodeType.OUTPUT else self._shape_text(node.node_id)

    def _inner(self, node: Node) -> tuple[_Builder, Figure] | None:
        """Return the builder and the figure of a node's subgraph at its first repetition."""
        inner = applied_subgraph(self._graph, node)
        if inner is None:
            return None
        node_shapes: Mapping[int, TypedNode] = {}
        if node.node_id in self._known:
            node_shapes = self._known[node.node_id].bodies[0].nodes
        builder = _Builder(inner, node_shapes, is_inner=True)
        return builder, builder.figure()


def _to(link: FigureLink, key: int, *, entry: int | None = None) -> FigureLink:
    return FigureLink(link.source, key, link.label, link.tooltip, link.style, entry, link.exit)


def is_neuron(graph: GraphElements, node: Node) -> bool:
    """Return whether a node is a neuron: aggregation, bias and activation of a width."""
    return node.kind is NodeKind.NEURON and (node.output_size is not None or not maps_tensors(graph))


def _neuron_cell(node: Node) -> Cell:
    title, is_output = short_name(node.activation_function), node.node_type is NodeType.OUTPUT
    if is_output:
        title = "output" if title == "linear" else f"output · {title}"
    size = "?" if node.output_size is None else str(node.output_size)
    return Cell(
        shortened(title, MAX_LABEL_LENGTH),
        CATEGORY_COLOURS[Category.LINEAR],
        node_tooltip(node),
        shortened(f"{short_name(str(thawed(node.aggregation)))} · {size}", MAX_LABEL_LENGTH),
        _OUTPUT_WIDTH if is_output else Cell.stroke_width,
    )


def _caption(graph: ComputationGraph) -> str:
    if names_classes(graph, is_imported):
        return "without shapes: classes that are not imported"
    try:
        known = graph.typed()
        return cost_text(known.live_cost) if len(known.nodes) == len(graph.nodes) else "invalid"
    except ValueError:  # a user's class that cannot be counted
        return "invalid"


def _legend(graph: GraphElements) -> dict[str, Colours]:
    """Return the categories of all operations, those of subgraphs included, in the order of the colours."""
    used: set[Category] = set()
    for node in (node for each in nested_graphs(graph) for node in each.nodes.values()):
        applied = applied_operation(node)
        if applied is not None and (applied.name != "identity" or node.activation_function != "linear"):
            used.add(applied.row.category)
    return {str(category): colours for category, colours in CATEGORY_COLOURS.items() if category in used}
