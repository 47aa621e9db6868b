"""Figures of operation graphs: a box per operation, circles for merges, dashed adapters, frames for subgraphs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import ceil

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.figure import Cell, Figure, FigureLink, Form, Item
from gflownet.graphs.figure_layout import NOTE_COLOUR, FigureLayout
from gflownet.graphs.operation_costs import OperationCost, node_cost, own_projection, total_cost
from gflownet.graphs.operation_dot import figure_dot
from gflownet.graphs.operation_labels import (
    MAX_LABEL_LENGTH,
    TIMES,
    adapter_text,
    applied_operation,
    cost_text,
    frame_title,
    node_tooltip,
    operation_label,
    unread_operation,
)
from gflownet.graphs.operation_problems import known_shapes
from gflownet.graphs.operation_shapes import MergePlan, NodeShapes, infer_shapes, inner_ports
from gflownet.graphs.ordering import sorted_prefix
from gflownet.graphs.outside_classes import has_missing_modules, nested_graphs
from gflownet.layered_drawing import LinkStyle, shortened, xml_text
from gflownet.operations.operation import INPUT_PORT, Category
from gflownet.operations.tensor_shape import Adapter, Layout
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name

MARGIN = 22.0
# Fill and stroke.
COLOURS: Mapping[Category, tuple[str, str]] = {
    Category.CONVOLUTION: ("#dbeafe", "#2563eb"),
    Category.LINEAR: ("#e0e7ff", "#4f46e5"),
    Category.ATTENTION: ("#ffedd5", "#ea580c"),
    Category.RECURRENT: ("#fce7f3", "#db2777"),
    Category.POOLING: ("#dcfce7", "#16a34a"),
    Category.NORMALISATION: ("#f3e8ff", "#9333ea"),
    Category.TOKENS: ("#ccfbf1", "#0d9488"),
    Category.RESHAPING: ("#fef9c3", "#ca8a04"),
    Category.OTHER: ("#f1f5f9", "#64748b"),
}
_PLAIN = ("#ffffff", "#475569")
_FRAME = ("#f8fafc", "#94a3b8")
_MERGE_SIGNS = {"sum": "+", "product": TIMES, "mean": "mean", "concat": "concat", "max": "max", "min": "min"}
_ADAPTED = LinkStyle("#64748b", "4 3", "dashed")
_DISABLED = LinkStyle("#9ca3af", "1.5 4.5", "dotted")


def to_svg(graph: GraphElements) -> str:
    """Return an SVG document, top to bottom, with parameters and multiply-adds in the title and a legend."""
    node_shapes = _drawn_shapes(graph)
    layout = FigureLayout(figure_of(graph, node_shapes))
    caption, used = _caption(graph, node_shapes), _categories(graph)
    legend_width = max(layout.width, 260.0)
    legend, legend_height = _legend(used, legend_width)
    width, height = legend_width + 2 * MARGIN, layout.height + legend_height + 34 + 2 * MARGIN
    bottom = MARGIN + layout.height + 26
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" '
            'text-anchor="middle">',
            f"<title>{xml_text(f'Operation graph of {len(graph.nodes)} nodes: {caption}')}</title>",
            '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
            *layout.svg(MARGIN + (legend_width - layout.width) / 2, MARGIN),
            f'<text x="{width / 2:.1f}" y="{bottom:.1f}" font-size="11" fill="{NOTE_COLOUR}">{caption}</text>',
            f'<g transform="translate({MARGIN:.0f} {bottom + 12:.0f})">{legend}</g>',
            "</svg>\n",
        )
    )


def to_dot(graph: GraphElements) -> str:
    """Return the figure in Graphviz's DOT language."""
    return figure_dot(figure_of(graph, _drawn_shapes(graph)))


def _drawn_shapes(graph: GraphElements) -> Mapping[int, NodeShapes]:
    """Return the shapes of the nodes; none of a graph with classes that are not imported: drawing runs no such code."""
    return {} if has_missing_modules(graph) else known_shapes(graph)


def figure_of(graph: GraphElements, node_shapes: Mapping[int, NodeShapes], *, is_inner: bool = False) -> Figure:
    """Return the figure of a graph; nodes without inferred shapes are drawn without them."""
    builder = _Builder(graph, node_shapes, is_inner=is_inner)
    return builder.figure()


class _Builder:
    """Items and links of one graph, in topological order."""

    def __init__(self, graph: GraphElements, node_shapes: Mapping[int, NodeShapes], *, is_inner: bool) -> None:
        self._graph, self._known, self._is_inner = graph, node_shapes, is_inner
        self._items: dict[int, Item] = {}
        self._links: list[FigureLink] = []
        self._ends: dict[int, tuple[int, int | None]] = {}  # node -> item whose bottom is its output, port inside
        self._keys = count()
        self.ports: dict[str, int] = {}  # of a subgraph: item by port
        edges = [edge for edge in graph.edges.values() if edge.source in graph.nodes and edge.target in graph.nodes]
        self._order = sorted_prefix(graph.nodes, edges)
        inside = set(self._order)
        self._incoming: dict[int, list[Edge]] = {}
        self._num_uses: dict[int, int] = {}
        for edge in sorted(edges, key=lambda edge: (edge.order, edge.edge_id)):
            if edge.source in inside and edge.target in inside:
                self._incoming.setdefault(edge.target, []).append(edge)
                self._num_uses[edge.source] = self._num_uses.get(edge.source, 0) + 1

    def figure(self) -> Figure:
        """Return the figure; outputs are in the last row."""
        for node_id in self._order:
            node = self._graph.nodes[node_id]
            if node.node_type is NodeType.INPUT:
                self._add_input(node)
            else:
                self._add_node(node)
        outputs = [node_id for node_id in self._order if self._graph.nodes[node_id].node_type is NodeType.OUTPUT]
        last = max((item.row for item in self._items.values()), default=-1) + 1
        self.outputs = {}
        for node_id in outputs:
            source, port = self._ends[node_id]
            shape = self._shape_text(node_id)
            cell = Cell(f"output {shape}".strip(), *_PLAIN, f"node {node_id}")
            form = Form.PORT if self._is_inner else Form.PILL
            key = self._add(Item(last, form, () if self._is_inner else (cell,)))
            self.outputs[node_id] = key
            self._links.append(FigureLink(source, key, exit=port))
        return Figure(self._items, self._links)

    def _add(self, item: Item) -> int:
        key = next(self._keys)
        self._items[key] = item
        return key

    def _row_after(self, sources: list[int]) -> int:
        return max((self._items[key].row for key in sources), default=-1) + 1

    def _shape_text(self, node_id: int) -> str:
        return TIMES.join(map(str, self._known[node_id].output.sizes)) if node_id in self._known else ""

    def _add_input(self, node: Node) -> None:
        port = str(node.attributes.get("port", INPUT_PORT))
        if self._is_inner:
            key = self._add(Item(0, Form.PORT, ()))
            self.ports.setdefault(port, key)
        else:
            kind = self._known[node.node_id].output.layout if node.node_id in self._known else "input"
            kind = "input" if kind == Layout.VECTOR else kind
            cell = Cell(f"{kind} {self._shape_text(node.node_id)}".strip(), *_PLAIN, node_tooltip(node))
            key = self._add(Item(0, Form.PILL, (cell,)))
        self._ends[node.node_id] = key, None

    def _add_node(self, node: Node) -> None:
        by_port: dict[str, list[Edge]] = {}
        for edge in self._incoming.get(node.node_id, []):
            by_port.setdefault(str(edge.attributes.get("port", INPUT_PORT)), []).append(edge)
        cells = self._cells(node)
        entries: list[tuple[int, FigureLink]] = []
        for port, edges in by_port.items():
            plan = self._known[node.node_id].inputs.get(port) if node.node_id in self._known else None
            label = "" if port == INPUT_PORT else port
            entries.append((0, self._merged(node, edges, plan, label)))
        only_merges = not cells and len(entries) == 1 and len(by_port.get(INPUT_PORT, ())) > 1
        if only_merges:
            key = entries[0][1].source
            self._items[key] = _with_note(self._items[key], self._note(node))
            self._ends[node.node_id] = key, None
            return
        self._add_box(node, cells, [link for _, link in entries], list(by_port))

    def _add_box(self, node: Node, cells: tuple[Cell, ...], links: list[FigureLink], ports: list[str]) -> None:
        row = self._row_after([link.source for link in links])
        inner = self._inner(node)
        cells = cells or (Cell("identity", *COLOURS[Category.OTHER], node_tooltip(node)),)
        above = links[0].source if len(links) == 1 else None
        if inner is None and above is not None and self._is_glued(node, above):
            item = self._items[above]
            self._items[above] = Item(item.row, item.form, (*item.cells, *cells), self._note(node))
            self._ends[node.node_id] = above, None
            return
        if inner is None:
            key = self._add(Item(row, Form.BOX, cells, self._note(node)))
            self._ends[node.node_id] = key, None
            self._links += [_to(link, key) for link in links]
            return
        builder, figure = inner
        key = self._add(Item(row, Form.FRAME, cells, self._note(node), figure))
        self._links += [_to(link, key, entry=builder.ports.get(port)) for link, port in zip(links, ports, strict=True)]
        self._ends[node.node_id] = key, next(iter(builder.outputs.values()), None)

    def _is_glued(self, node: Node, above: int) -> bool:
        """Return whether a normalisation or the like is drawn as part of the box that it follows alone."""
        if len(self._incoming[node.node_id]) > 1:
            return False
        (edge,) = self._incoming[node.node_id]
        is_box = self._items[above].form is Form.BOX and self._ends[edge.source][0] == above
        if not is_box or self._num_uses[edge.source] > 1 or not edge.enabled or node.node_id not in self._known:
            return False
        applied = self._known[node.node_id].operation
        kinds = (Category.NORMALISATION, Category.OTHER)
        same = self._known[node.node_id].output == self._known[edge.source].output
        return same and applied is not None and applied.row.category in kinds and len(self._items[above].cells) < 4

    def _merged(self, node: Node, edges: list[Edge], plan: MergePlan | None, label: str) -> FigureLink:
        """Return the link from the aligned and merged inputs of a port, without its target."""
        adapters = {edge.edge_id: each for edge, each in zip(plan.edges, plan.adapters, strict=True)} if plan else {}
        links = [self._adapted(edge, adapters.get(edge.edge_id), plan) for edge in edges]
        if len(links) == 1:
            return FigureLink(links[0].source, -1, label, links[0].tooltip, links[0].style, exit=links[0].exit)
        sign = _MERGE_SIGNS.get(str(node.aggregation), short_name(str(thawed(node.aggregation))))
        cell = Cell(sign, *_PLAIN, f"node {node.node_id}: {thawed(node.aggregation)} of {len(links)} inputs")
        key = self._add(Item(self._row_after([link.source for link in links]), Form.CIRCLE, (cell,)))
        self._links += [_to(link, key) for link in links]
        return FigureLink(key, -1, label)

    def _adapted(self, edge: Edge, adapter: Adapter | None, plan: MergePlan | None) -> FigureLink:
        source, exit_port = self._ends[edge.source]
        tooltip = f"edge {edge.edge_id}: {edge.source} → {edge.target}"
        style = LinkStyle() if edge.enabled else _DISABLED
        text = adapter_text(adapter, plan.align) if adapter is not None and plan is not None else ""
        if not text:
            return FigureLink(source, -1, "", tooltip, style, exit=exit_port)
        cell = Cell(text, *_PLAIN, f"{tooltip}, adapted: {text}")
        key = self._add(Item(self._row_after([source]), Form.SMALL, (cell,)))
        self._links.append(FigureLink(source, key, "", tooltip, _ADAPTED, exit=exit_port))
        return FigureLink(key, -1, "", tooltip, _ADAPTED)

    def _cells(self, node: Node) -> tuple[Cell, ...]:
        """Return the line of a node's box; none for an identity without activation."""
        shapes = self._known.get(node.node_id)
        if "subgraph" in node.attributes:
            return (Cell(frame_title(node), *_FRAME, node_tooltip(node, self._cost(node))),)
        activation = short_name(node.activation_function)
        activation = "" if activation in ("linear", "identity") else activation
        applied = applied_operation(node)
        if applied is None:
            text = f"linear, {node.output_size}" if node.output_size is not None else unread_operation(node)
            colours = COLOURS[Category.LINEAR if node.output_size is not None else Category.OTHER]
        else:
            layout = next((plan.shape.layout for plan in shapes.inputs.values()), None) if shapes else None
            text, colours = operation_label(applied, layout), COLOURS[applied.row.category]
            if applied.name == "identity":
                if not activation:
                    return ()
                text, activation = activation, ""
        text = shortened(f"{text} · {activation}" if activation else text, MAX_LABEL_LENGTH)
        return (Cell(text, *colours, node_tooltip(node, self._cost(node))),)

    def _cost(self, node: Node) -> OperationCost | None:
        if node.node_id not in self._known:
            return None
        shapes = self._known[node.node_id]
        sharing = (each for each in self._known.values() if each.shared_subgraph == shapes.shared_subgraph)
        try:
            return node_cost(self._graph, shapes, is_first=not shapes.shared_subgraph or next(sharing) is shapes)
        except ValueError:  # a user's class that cannot be counted
            return None

    def _note(self, node: Node) -> str:
        return "" if node.node_type is NodeType.OUTPUT else self._shape_text(node.node_id)

    def _inner(self, node: Node) -> tuple[_Builder, Figure] | None:
        """Return the builder and the figure of a node's subgraph at its first repetition."""
        if "subgraph" not in node.attributes:
            return None
        try:
            inner = self._graph.subgraph(node.attributes["subgraph"])
        except ValueError:
            return None
        node_shapes: Mapping[int, NodeShapes] = {}
        if node.node_id in self._known:
            shapes = {port: plan.shape for port, plan in self._known[node.node_id].inputs.items()}
            node_shapes = infer_shapes(inner, [shapes[port] for port in inner_ports(inner)])
        builder = _Builder(inner, node_shapes, is_inner=True)
        return builder, builder.figure()


def _to(link: FigureLink, key: int, *, entry: int | None = None) -> FigureLink:
    return FigureLink(link.source, key, link.label, link.tooltip, link.style, entry, link.exit)


def _with_note(item: Item, note: str) -> Item:
    return Item(item.row, item.form, item.cells, note, item.inner)


def _caption(graph: GraphElements, node_shapes: Mapping[int, NodeShapes]) -> str:
    if has_missing_modules(graph):
        return "without shapes: classes that are not imported"
    try:
        is_valid = node_shapes.keys() == graph.nodes.keys()
        return cost_text(total_cost(graph, node_shapes, own_projection(graph))) if is_valid else "invalid"
    except ValueError:  # a user's class that cannot be counted
        return "invalid"


def _categories(graph: GraphElements) -> list[Category]:
    """Return the categories of all operations, those of subgraphs included, in the order of the colours."""
    used: set[Category] = set()
    for node in (node for each in nested_graphs(graph) for node in each.nodes.values()):
        applied = applied_operation(node)
        if applied is not None and (applied.name != "identity" or node.activation_function != "linear"):
            used.add(applied.row.category)
    return [category for category in COLOURS if category in used]


def _legend(categories: list[Category], width: float) -> tuple[str, float]:
    """Return a square and a name for every category, in lines of a width, and the height."""
    step = 112.0
    per_line = max(1, int(width // step))
    parts = []
    for place, category in enumerate(categories):
        x, y = step * (place % per_line), 18.0 * (place // per_line)
        fill, stroke = COLOURS[category]
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="11" height="11" rx="3" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{x + 17:.0f}" y="{y + 9.5:.1f}" font-size="10.5" text-anchor="start" '
            f'fill="{NOTE_COLOUR}">{category}</text>'
        )
    return "".join(parts), 18.0 * ceil(len(categories) / per_line)
