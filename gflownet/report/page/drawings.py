"""Drawings of architectures of every environment from their node-link data, without torch."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from markupsafe import Markup

from gflownet.graphs import drawing as graph_drawing
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.operation_labels import colours_of
from gflownet.pictures.figure import (
    DISABLED,
    FORWARD,
    UNDIRECTED,
    Cell,
    Colours,
    Figure,
    FigureLink,
    Form,
    Item,
    shortened,
)
from gflownet.pictures.figure_layout import figure_svg

# Fill and stroke of words that are colours or ends; others have the colours of an operation.
NAMED = {
    "red": Colours("#fecaca", "#dc2626"),
    "blue": Colours("#bfdbfe", "#2563eb"),
    "green": Colours("#bbf7d0", "#16a34a"),
    "input": Colours("#e0f2fe", "#0284c7"),
    "output": Colours("#dcfce7", "#16a34a"),
}
_PLAIN_EDGE = "edge"

Edge = tuple[int, int, str]


def coloured_svg(colours: Mapping[int, str], edges: Sequence[Edge], *, directed: bool) -> str:
    """Return an SVG document of a graph with coloured nodes and edges (source, target, colour).

    Rows follow the edges; those of undirected graphs and of cycles a breadth-first walk.
    """
    labels = {node: label_of(colour) for node, colour in colours.items()}
    loops = {source: f"loop {_edge_text(colour)}".rstrip() for source, target, colour in edges if source == target}
    links = [edge for edge in edges if edge[0] != edge[1]]
    order = _order(labels, links, directed=directed)
    if not directed:
        links = [(s, t, colour) if order[s] < order[t] else (t, s, colour) for s, t, colour in links]
    style = FORWARD if directed else UNDIRECTED
    items = {}
    for node, label in labels.items():
        look = NAMED.get(label) or colours_of(label)
        cell = Cell(shortened(label, MAX_LABEL), look, f"node {node}: {label}", loops.get(node, ""))
        items[node] = Item(Form.BOX, cell)
    figure_links = [
        FigureLink(source, target, tooltip=_edge_text(colour), style=style, is_ranked=order[source] < order[target])
        for source, target, colour in links
    ]
    title = f"Graph of {len(labels)} nodes and {len(edges)} edges"
    return figure_svg(Figure(items, figure_links), title=title)


def _order(nodes: Iterable[int], edges: Sequence[Edge], *, directed: bool) -> dict[int, int]:
    """Return the place of each node along directed edges; of undirected ones and cycles, in a breadth-first walk."""
    order, neighbours = dict[int, int](), {node: list[int]() for node in nodes}
    if directed:
        sources = {node: [source for source, target, _ in edges if target == node] for node in neighbours}
        with suppress(CycleError):
            return {node: place for place, node in enumerate(TopologicalSorter(sources).static_order())}
    for source, target, _ in edges:
        neighbours[source].append(target)
        neighbours[target].append(source)
    for start in neighbours:
        queue = deque([start])
        while queue:
            if (node := queue.popleft()) not in order:
                order[node] = len(order)
                queue += neighbours[node]
    return order


def label_of(colour: str) -> str:
    """Return a colour for readers: without empty attributes, red for red|."""
    first, _, rest = colour.partition("|")
    others = [part for part in rest.split("|") if part not in ("", "0")]
    return " ".join([first, *others])


def _edge_text(colour: str) -> str:
    label = label_of(colour)
    return "" if label == _PLAIN_EDGE else label


MAX_LABEL = 24
# Larger JSON data is cut where nothing better can be shown.
MAX_DATA = 600
_EDGE = re.compile(r"(\d+)<-(\d+)")
_LAYER = re.compile(r"layer(\d+)")
_LAYER_PLACE = re.compile(r"(.+)\[(\d+)\]")  # cell[2]: a choice of the second layer
_WIDTH = re.compile(r'<svg [^>]*?width="(\d+)"')
_SIZE = re.compile(r">(?=[\d,]+ parameters)")  # start of a caption
_SMALLEST = 0.66  # scale
_EMPTY = frozenset({"none", "zero", "zeroize"})


@dataclass(frozen=True)
class Drawing:
    """A picture of an architecture, and its words; at least one of them is not empty."""

    svg: Markup | None = None
    min_width: int = 0  # pixels at which its text is still readable
    words: tuple[tuple[str, str], ...] = ()  # names and values
    code: str = ""  # a program


def drawing_of(graph: Mapping[str, Any], *, num_parameters: object = None) -> Drawing:
    """Return the drawing of node-link data; data that cannot be drawn as JSON text.

    Where the model has another number of parameters than the graph, such as a cell of it, the caption names the graph.
    """
    try:
        drawing = _drawn(graph)
        if drawing.svg is None or not isinstance(num_parameters, int):
            return drawing
        is_whole = f">{num_parameters:,} parameters" in drawing.svg
        return drawing if is_whole else replace(drawing, svg=Markup(_SIZE.sub(">this graph alone: ", drawing.svg)))
    except Exception as error:  # data of a plugin, of another version, or damaged: the page is written all the same
        text = shortened(json.dumps(graph), MAX_DATA)
        return Drawing(words=(("not drawn", f"{type(error).__name__}: {shortened(str(error), 200)}"), ("data", text)))


def _drawn(graph: Mapping[str, Any]) -> Drawing:
    nodes = graph["nodes"]
    if all("node_type" in node for node in nodes):
        return _pictured(graph_drawing.to_svg(ComputationGraph.from_dict(graph)))
    if all("name" in node and "value" in node for node in nodes):
        return _assignment({str(node["name"]): node["value"] for node in nodes})
    program = (graph.get("graph") or {}).get("program")
    if program is not None:
        return Drawing(code="\n".join(line.strip() for line in str(program).split(";")))
    colours = {int(node["id"]): str(node["colour"]) for node in nodes}
    edges = [(int(edge["source"]), int(edge["target"]), str(edge["colour"])) for edge in graph["edges"]]
    return _pictured(coloured_svg(colours, edges, directed=bool(graph.get("directed", True))))


def _pictured(svg: str, words: tuple[tuple[str, str], ...] = ()) -> Drawing:
    """Return the drawing of a document of our own functions, which escape the words of graphs."""
    width = _WIDTH.search(svg)
    return Drawing(Markup(svg), round(_SMALLEST * float(width[1])) if width else 0, words)


def _assignment(values: Mapping[str, Any]) -> Drawing:
    names, words = list(values), tuple((name, text_of(value)) for name, value in values.items())
    if all(_EDGE.fullmatch(name) for name in names):
        return _pictured(_cell(values), words)
    if all(_LAYER.fullmatch(name) for name in names):
        return _pictured(_chain([(name, text_of(values[name])) for name in sorted(names, key=_number)]))
    if any(_LAYER_PLACE.fullmatch(name) for name in names):
        return _stack(values)
    if len(names) > 1 and all(text_of(value) in ("0", "1") for value in values.values()):
        return Drawing(words=(("bits", "".join(text_of(values[name]) for name in sorted(names, key=_number))),))
    return Drawing(words=words)


def text_of(value: Any) -> str:
    """Return a value as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else 0, name)


def _cell(values: Mapping[str, Any]) -> str:
    """Return a cell whose places are edges `target<-source`; operations are boxes, empty ones grey and dotted."""
    ends = {name: (int(match[1]), int(match[2])) for name in values if (match := _EDGE.fullmatch(name))}
    last = max(target for target, _ in ends.values())
    items = {}
    for node in range(last + 1):
        name = "input" if node == 0 else "output" if node == last else f"node {node}"
        cell = Cell(name if node in (0, last) else "+", tooltip=f"{name}{', sum' if node else ''}")
        items[node] = Item(Form.PILL if node in (0, last) else Form.CIRCLE, cell)
    links = []
    for key, (name, (target, source)) in enumerate(ends.items(), start=last + 1):
        operation = text_of(values[name])
        if operation in _EMPTY:
            links.append(FigureLink(source, target, "", f"{name}: {operation}", DISABLED))
            continue
        label = shortened(operation, MAX_LABEL)
        cell = Cell(label, colours_of(operation), f"{name}: {operation}", f"{source} → {target}")
        items[key] = Item(Form.BOX, cell)
        links += [FigureLink(source, key), FigureLink(key, target)]
    return figure_svg(Figure(items, links), title=f"Cell of {last + 1} nodes and {len(ends)} places")


def _chain(layers: Sequence[tuple[str, str]], details: Sequence[str] = ()) -> str:
    items = {0: Item(Form.PILL, Cell("input", tooltip="input"))}
    for row, (name, kind) in enumerate(layers, start=1):
        detail = shortened(details[row - 1] if details else name, MAX_LABEL + 6)
        cell = Cell(shortened(kind, MAX_LABEL), colours_of(kind), f"{name}: {kind}", detail)
        items[row] = Item(Form.BOX, cell)
    last = len(layers) + 1
    items[last] = Item(Form.PILL, Cell("output", tooltip="output"))
    links = [FigureLink(row, row + 1) for row in range(last)]
    return figure_svg(Figure(items, links), title=f"Chain of {len(layers)} layers")


def _stack(values: Mapping[str, Any]) -> Drawing:
    """Return a recurrent stack: a box for each layer with its options, and the sizes of the whole stack as words."""
    layers: dict[int, dict[str, str]] = {}
    words = []
    for name, value in values.items():
        match = _LAYER_PLACE.fullmatch(name)
        if text_of(value) == "none":
            continue
        if match:
            layers.setdefault(int(match[2]), {})[match[1]] = text_of(value)
        else:
            words.append((name, text_of(value)))
    chain, details = [], []
    for number, options in sorted(layers.items()):
        detail = ", ".join(f"{name} {value}" for name, value in options.items() if name != "cell")
        chain.append((f"layer {number}", options.get("cell", "?")))
        details.append(detail or f"layer {number}")
    sizes = tuple(words) or (("layers", str(len(chain))),)
    return _pictured(_chain(chain, details), sizes) if chain else Drawing(words=sizes)
