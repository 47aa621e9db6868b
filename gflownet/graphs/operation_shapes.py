"""Shapes of every node of an operation graph: a computation graph whose nodes carry `operation` or `subgraph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.operation import AppliedOperation, read_operation
from gflownet.graphs.ordering import followed_edges, sorted_prefix
from gflownet.operations.neuron import Neuron
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.operations.tensor_shape import AXES, Adapter, Layout, Shape, ShapeError, broadcast, join
from gflownet.operations.values import shown, thawed
from gflownet.operations.vocabulary import activation

# Merges of the inputs at one port, by the node's aggregation.
MERGES = ("sum", "mean", "max", "min", "product", "concat")
# What a node does with inputs of unequal shapes: whether it averages positions, and whether it changes channels.
# project and auto learn a projection of the channels, pad fills them with zeros; without align, inputs broadcast.
ALIGNMENTS = {
    "pool": (True, False),
    "project": (False, True),
    "pad": (True, True),
    "auto": (True, True),
    "never": (False, False),
}
LEARNED_ALIGNMENTS = ("project", "auto")
_REPAIRS = {
    (True, False): '"align": "pool" averages positions',
    (False, True): '"align": "project" learns a projection of the channels, "pad" fills them with zeros',
    (True, True): '"align": "auto" averages positions and learns a projection of the channels, "pad" fills them',
}


class NodeShapeError(ShapeError):
    """No shape can be inferred for a node."""

    def __init__(self, node_id: int, reason: str, *, is_share: bool = False) -> None:
        super().__init__(f"node {node_id}: {reason}")
        self.node_id = node_id
        self.reason = reason
        self.is_share = is_share  # the node itself fits, but not with the others that share its subgraph


@dataclass(frozen=True)
class MergePlan:
    """The inputs at one port of a node, aligned and merged."""

    edges: tuple[Edge, ...]
    adapters: tuple[Adapter, ...]  # one per edge
    merge: str
    align: str | None  # None: inputs broadcast
    shape: Shape  # after the merge
    concat_axis: int = 0  # of concat, the batch not counted
    late: frozenset[int] = frozenset()  # ids of edges that carry the value of the time step before

    @property
    def is_learned(self) -> bool:
        """Whether a change of channels is a learned projection."""
        return self.align in LEARNED_ALIGNMENTS

    @property
    def late_edges(self) -> list[Edge]:
        """The edges that carry the value of the time step before."""
        return [edge for edge in self.edges if edge.edge_id in self.late]


@dataclass(frozen=True)
class NodeShapes:
    """A node with the shapes around it."""

    node: Node
    operation: AppliedOperation | None  # None of an input, a subgraph and a neuron
    inputs: Mapping[str, MergePlan]  # by port
    output: Shape

    @property
    def edges(self) -> list[Edge]:
        """The enabled in-edges, port by port."""
        return [edge for plan in self.inputs.values() for edge in plan.edges]

    @property
    def shared_weights(self) -> tuple[str, str] | None:
        """What names the weights of all nodes that share them: a subgraph, or the `share` of an operation."""
        attributes = self.node.attributes
        if not attributes.get("share", False):
            return None
        return ("subgraph", attributes["subgraph"]) if "subgraph" in attributes else ("operation", attributes["share"])

    @property
    def has_edge_weights(self) -> bool:
        """Whether each in-edge scales its value by a learned number, and a learned bias is added."""
        return self.node.attributes.get("edge_weight") is True

    def is_weighted(self, port: str) -> bool:
        """Return whether the edges into a port have learned weights: never those that carry a tied weight."""
        return self.has_edge_weights and port != WEIGHT_PORT

    @property
    def is_neuron(self) -> bool:
        """Whether the node names no operation: projections, scalar weights, a bias."""
        attributes = self.node.attributes
        return not ("operation" in attributes or "subgraph" in attributes or self.node.node_type is NodeType.INPUT)


def infer_shapes(
    graph: GraphElements, inputs: Sequence[Shape] = (), *, late: Iterable[int] = ()
) -> dict[int, NodeShapes]:
    """Return the shapes of every node, sources before targets.

    A recurrent edge carries the value of its source of the time step before: it fits the shape that the other edges
    give its target.

    Args:
        graph: enabled edges without a cycle but through recurrent ones.
        inputs: shapes of the INPUT nodes by ascending id, for a subgraph; empty: as the nodes declare.
        late: ids of edges that are recurrent besides those that are marked.

    Raises:
        NodeShapeError: a node whose shape cannot be inferred.
    """
    edges = followed_edges(graph, ignore_recurrent=False)
    late = frozenset(late).union(edge.edge_id for edge in edges if edge.is_recurrent)
    incoming: dict[int, list[Edge]] = {}
    for edge in edges:
        incoming.setdefault(edge.target, []).append(edge)
    input_ids = sorted(node_id for node_id, node in graph.nodes.items() if node.node_type is NodeType.INPUT)
    outside = dict(zip(input_ids, inputs, strict=True)) if inputs else {}
    order = sorted_prefix(graph.nodes, [edge for edge in edges if edge.edge_id not in late] if late else edges)
    if len(order) < len(graph.nodes):
        raise NodeShapeError(min(graph.nodes.keys() - order), "expected no cycle, got one that this node depends on")
    before = _shapes_before(graph, order, incoming, outside) if late else {}
    node_shapes: dict[int, NodeShapes] = {}
    first_shared: dict[tuple[str, str], NodeShapes] = {}
    for node_id in order:
        sources = {edge.source for edge in incoming.get(node_id, ()) if edge.edge_id in late} if late else ()
        known_shapes = node_shapes | {source: before[source] for source in sources} if sources else node_shapes
        shapes = _shapes_of(graph, node_id, incoming, known_shapes, outside)
        if shapes.shared_weights:
            _check_shared(shapes, first_shared.setdefault(shapes.shared_weights, shapes))
        node_shapes[node_id] = _with_late(shapes, late, before) if late else shapes
    return node_shapes


def _shapes_of(
    graph: GraphElements,
    node_id: int,
    incoming: Mapping[int, Sequence[Edge]],
    node_shapes: Mapping[int, NodeShapes],
    outside: Mapping[int, Shape],
) -> NodeShapes:
    """Return the shapes of a node from its in-edges with known sources."""
    node = graph.nodes[node_id]
    try:
        if node.node_type is NodeType.INPUT:
            return NodeShapes(node, None, {}, outside.get(node_id) or input_shape(node))
        shapes = _inferred(graph, node, incoming.get(node_id, ()), node_shapes)
        if shapes.output.layout is Layout.TOKENS and node.activation_function not in ("linear", "identity"):
            raise ShapeError(f"expected activation linear of {shapes.output}, got {node.activation_function}")
        return shapes
    except ValueError as error:
        raise NodeShapeError(node_id, str(error)) from None


def _shapes_before(
    graph: GraphElements, order: Sequence[int], incoming: Mapping[int, Sequence[Edge]], outside: Mapping[int, Shape]
) -> dict[int, NodeShapes]:
    """Return the shapes of a time step from those edges whose sources are known first, round by round."""
    node_shapes: dict[int, NodeShapes] = {}
    while len(node_shapes) < len(order):
        num_before = len(node_shapes)
        for node_id in order:
            ready = [edge for edge in incoming.get(node_id, ()) if edge.source in node_shapes]
            if node_id not in node_shapes and _ports(ready) == _ports(incoming.get(node_id, ())):
                node_shapes[node_id] = _shapes_of(graph, node_id, {node_id: ready}, node_shapes, outside)
        if len(node_shapes) == num_before:  # a neuron has a width of its own
            waiting = [graph.nodes[node_id] for node_id in order if node_id not in node_shapes]
            neurons = [node for node in waiting if not {"operation", "subgraph"} & node.attributes.keys()]
            if not neurons:
                message = "expected an in-edge that is not recurrent on a path from an input, got none"
                raise NodeShapeError(waiting[0].node_id, message)
            node_id = neurons[0].node_id
            node_shapes[node_id] = _shapes_of(graph, node_id, {}, node_shapes, outside)
    return node_shapes


def _ports(edges: Iterable[Edge]) -> set[Any]:
    return {edge.attributes.get("port", INPUT_PORT) for edge in edges}


def _with_late(shapes: NodeShapes, late: frozenset[int], before: Mapping[int, NodeShapes]) -> NodeShapes:
    """Return shapes with their recurrent in-edges marked. Raises NodeShapeError where these change the output."""
    node_id, expected = shapes.node.node_id, before[shapes.node.node_id].output
    if shapes.output != expected:
        raise NodeShapeError(node_id, f"expected recurrent edges that fit {expected}, got {shapes.output} with them")
    edges = [edge for edge in shapes.edges if edge.edge_id in late]
    if not edges:
        return shapes
    if any(before[edge.source].output.layout is Layout.TOKENS for edge in edges):
        raise NodeShapeError(node_id, "expected no recurrent edge from tokens, got one")
    if any(edge.attributes.get("port") == WEIGHT_PORT for edge in edges) and WEIGHT_PORT in shapes.inputs:
        raise NodeShapeError(node_id, f"expected no recurrent edge into the port {WEIGHT_PORT}, got one")
    ids = late.intersection(edge.edge_id for edge in edges)
    return replace(shapes, inputs={port: replace(plan, late=ids) for port, plan in shapes.inputs.items()})


def input_shape(node: Node) -> Shape:
    """Return the declared shape of an INPUT node. Raises ShapeError for an invalid or missing one."""
    sizes = node.attributes.get("shape", node.output_size)
    layout = node.attributes.get("layout")
    dtype = node.attributes.get("dtype", "token" if layout == Layout.TOKENS else "float")
    if layout is not None and (dtype == "token") != (layout == Layout.TOKENS):
        raise ShapeError(f"expected dtype token exactly with layout tokens, got {shown(dtype)} and {shown(layout)}")
    if dtype == "token":
        layout = Layout.TOKENS
    entries = sizes if isinstance(sizes, tuple) else (sizes,)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in entries):
        raise ShapeError(f"expected a shape of integers, got {shown(thawed(sizes))}")
    return Shape.of(entries, layout)


def merge_plans(node: Node, edges: Sequence[Edge], node_shapes: Mapping[int, NodeShapes]) -> dict[str, MergePlan]:
    """Return the aligned and merged inputs of a node by port. Raises ShapeError for shapes that do not fit."""
    ports: dict[str, list[Edge]] = {}
    for edge in sorted(edges, key=lambda edge: (edge.order, edge.edge_id)):
        ports.setdefault(edge.attributes.get("port", INPUT_PORT), []).append(edge)
    return {
        port: _source_weight(entries, node_shapes) if port == WEIGHT_PORT else _merged(node, entries, node_shapes)
        for port, entries in ports.items()
    }


def _source_weight(edges: Sequence[Edge], node_shapes: Mapping[int, NodeShapes]) -> MergePlan:
    """Return the input of the port `weight`: the weight of the source's module, not the source's output."""
    if len(edges) != 1:
        raise ShapeError(f"expected one edge into the port {WEIGHT_PORT}, got {len(edges)}")
    source = node_shapes[edges[0].source]
    if source.operation is None:
        raise ShapeError(f"expected an operation with a weight at the port {WEIGHT_PORT}, got node {edges[0].source}")
    inputs = {port: plan.shape for port, plan in source.inputs.items()}
    shape = source.operation.weight_shape(inputs)
    return MergePlan(tuple(edges), (Adapter(shape, shape),), "sum", "never", shape)


def _check_activation(node: Node) -> None:
    """Raise ShapeError for an activation with a recurrent state: only a neuron with vectors has one."""
    name = node.activation_function
    if activation(name).max_parameters(1):
        raise ShapeError(f"expected an activation without state of a node that maps tensors, got {name}")


def _check_shared(shapes: NodeShapes, first: NodeShapes) -> None:
    """Raise NodeShapeError for other input shapes or another operation than the first node with these weights."""
    kind, name = shapes.shared_weights or ("", "")
    if first.operation != shapes.operation:
        expected = f"expected the operation of node {first.node.node_id}, which shares {shown(name)}"
        reason = f"{expected}, got {shown(thawed(shapes.node.attributes['operation']))}"
        raise NodeShapeError(shapes.node.node_id, reason, is_share=True)
    expected, got = ({port: plan.shape for port, plan in each.inputs.items()} for each in (first, shapes))
    for port, shape in got.items():
        if shape != expected[port]:
            message = f"expected {expected[port]} at the port {port} of the shared {kind} {shown(name)}"
            reason = f"{message}, as at node {first.node.node_id}, got {shape}"
            raise NodeShapeError(shapes.node.node_id, reason, is_share=True)


def _merged(node: Node, edges: Sequence[Edge], node_shapes: Mapping[int, NodeShapes]) -> MergePlan:
    merge, align = node.aggregation, node.attributes.get("align")
    if merge not in MERGES:
        raise ShapeError(f"expected an aggregation out of {', '.join(MERGES)}, got {shown(merge)}")
    shapes = [node_shapes[edge.source].output for edge in edges]
    target = _joined(node, shapes)
    if target.layout is Layout.TOKENS and (len(edges) > 1 or node.attributes.get("edge_weight") is True):
        raise ShapeError(f"expected one input of tokens without edge_weight, got {', '.join(map(str, shapes))}")
    if merge == "concat" and len(shapes) > 1:
        return _concatenated(node, edges, shapes)
    if align is None and "positions" not in node.attributes and (result := broadcast(shapes)) is not None:
        adapters = tuple(Adapter(shape, result, shape != result) for shape in shapes)
        return MergePlan(tuple(edges), adapters, merge, align, result)
    adapters = tuple(Adapter(shape, target) for shape in shapes)
    _check_alignment(adapters, align, "shape" if align else "shape, with axes of size 1, or vectors over the channels")
    return MergePlan(tuple(edges), adapters, merge, align, target)


def _joined(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which the inputs of a node are aligned, of its own `positions` where it has some."""
    target, positions = join(shapes), node.attributes.get("positions")
    if positions is None:
        return target
    if target.layout in (Layout.VECTOR, Layout.TOKENS) or len(positions) != len(target.positions):
        raise ShapeError(f"expected inputs with positions of {len(positions)} axes, got {target}")
    return target.with_positions(positions)


def _concatenated(node: Node, edges: Sequence[Edge], shapes: Sequence[Shape]) -> MergePlan:
    """Return the inputs side by side along an axis: the channels, or one of positions."""
    name, align, target = node.attributes.get("axis", AXES[0]), node.attributes.get("align"), _joined(node, shapes)
    if name not in target.axes:
        got = ", ".join(map(str, shapes))
        raise ShapeError(f"expected inputs of one layout with {name} for axis={name}, got {got}")
    axis = target.axes[name]
    sizes = [shape.channels if name == AXES[0] else shape.sizes[axis] for shape in shapes]
    adapters = tuple(Adapter(shape, target.with_size(axis, size)) for shape, size in zip(shapes, sizes, strict=True))
    kind = "layout and size of positions" if name == AXES[0] else f"size of every axis but {name}"
    _check_alignment(adapters, align, kind, _axis_repair(shapes))
    return MergePlan(tuple(edges), adapters, "concat", align, target.with_size(axis, sum(sizes)), axis)


def _axis_repair(shapes: Sequence[Shape]) -> str:
    """Return the repair of a concat of shapes that differ along one axis only."""
    if len({shape.layout for shape in shapes}) > 1:
        return ""
    names = {axis: each for each, axis in shapes[0].axes.items() if len({shape.sizes[axis] for shape in shapes}) > 1}
    return f', "axis": "{names.popitem()[1]}" appends them' if len(names) == 1 else ""


def _check_alignment(adapters: Sequence[Adapter], align: str | None, kind: str, repair: str = "") -> None:
    """Raise ShapeError for a change of positions or channels that the node does not ask for, with its repair."""
    changes = any(each.changes_positions for each in adapters), any(each.changes_channels for each in adapters)
    if all(allowed >= change for allowed, change in zip(ALIGNMENTS[align or "never"], changes, strict=True)):
        return
    setting = f" with align={align}" if align else ""
    got, repair = ", ".join(str(adapter.source) for adapter in adapters), f"{_REPAIRS[changes]}{repair}"
    sources = {adapter.source for adapter in adapters}
    if len({source.sizes for source in sources}) == 1 < len(sources):  # the layouts differ
        repair = '"layout", a setting of modules and functions, says which axes an output has'
    raise ShapeError(f"expected inputs of one {kind}{setting}, got {got}; {repair}")


def _inferred(
    graph: GraphElements, node: Node, edges: Sequence[Edge], node_shapes: Mapping[int, NodeShapes]
) -> NodeShapes:
    if "subgraph" not in node.attributes and "operation" not in node.attributes:
        return _neuron(node, edges, node_shapes)
    _check_activation(node)
    plans = merge_plans(node, edges, node_shapes)
    if "subgraph" in node.attributes:
        return NodeShapes(node, None, plans, _subgraph_output(graph, node, plans))
    applied = read_operation(node.attributes["operation"])
    required = applied.required_ports
    missing, ports = [port for port in required if port not in plans], (*required, *applied.row.optional_ports)
    if missing or any(port not in ports for port in plans):
        expected, got = ", ".join(ports), ", ".join(plans) or "none"
        raise ShapeError(f"{applied.name}: expected edges into the ports {expected}, got {got}")
    inputs = {port: plan.shape for port, plan in plans.items()}
    try:
        return NodeShapes(node, applied, plans, applied.infer_shape(inputs))
    except ShapeError as error:
        raise ShapeError(f"{applied.name}: {error}") from None


def _neuron(node: Node, edges: Sequence[Edge], node_shapes: Mapping[int, NodeShapes]) -> NodeShapes:
    """Return the shapes of a neuron: of one size of positions, features are projected per edge."""
    if node.output_size is None:
        raise ShapeError("expected an output_size of a node without operation, got none")
    edges = sorted(edges, key=lambda edge: (edge.order, edge.edge_id))
    shapes = [node_shapes[edge.source].output for edge in edges]
    align = node.attributes.get("align")
    if all(shape.layout is Layout.VECTOR for shape in shapes):  # of a dense graph
        output = target = Shape((node.output_size,), Layout.VECTOR)
        adapters = tuple(Adapter(shape, shape) for shape in shapes)
    else:
        output = Neuron.infer_shape({f"{place}": shape for place, shape in enumerate(shapes)}, neuron_settings(node))
        target = join(shapes)
        adapters = tuple(Adapter(shape, target.with_channels(shape.channels)) for shape in shapes)
        _check_alignment(adapters, align, "layout and size of positions")
    plan = MergePlan(tuple(edges), adapters, node.aggregation, align, target)
    return NodeShapes(node, None, {INPUT_PORT: plan}, output)


def neuron_settings(node: Node, projection: str = "auto") -> dict[str, Any]:
    """Return the settings of the row `Neuron` for a node without operation."""
    fixed = {"features": node.output_size, "activation": node.activation_function, "aggregation": node.aggregation}
    return {**node.attributes, **fixed, "projection": projection}


def inner_ports(inner: GraphElements) -> dict[str, int]:
    """Return the INPUT node of a subgraph for each port (its attribute `port`, else input), by ascending id."""
    inputs = [node for _, node in sorted(inner.nodes.items()) if node.node_type is NodeType.INPUT]
    return {node.attributes.get("port", INPUT_PORT): node.node_id for node in inputs}


def _subgraph_output(graph: GraphElements, node: Node, plans: Mapping[str, MergePlan]) -> Shape:
    """Return the output shape of a subgraph after all repetitions; each reads the one before at the port input."""
    inner = graph.subgraph(node.attributes["subgraph"])
    ports = inner_ports(inner)
    if set(ports) != set(plans):
        raise ShapeError(f"expected edges into the ports {', '.join(ports)}, got {', '.join(plans) or 'none'}")
    shapes = {port: plan.shape for port, plan in plans.items()}
    repeat = node.attributes.get("repeat", 1)
    outputs = [output_shape(node_shapes) for node_shapes in repetitions(inner, shapes, repeat)]
    entry = shapes.get(INPUT_PORT, outputs[0])
    if repeat > 1 and node.attributes.get("share", False) and any(output != entry for output in outputs):
        raise ShapeError(f"expected the output {entry} of a shared subgraph, got {outputs[0]}")
    return outputs[-1]


def repetitions(
    inner: GraphElements, inputs: Mapping[str, Shape], num_repetitions: int
) -> Iterator[dict[int, NodeShapes]]:
    """Yield the shapes in a subgraph for each repetition; the output of one is the port `input` of the next."""
    ports = inner_ports(inner)
    node_shapes = infer_shapes(inner, [inputs[port] for port in ports])
    yield node_shapes
    for _ in range(num_repetitions - 1):
        output = output_shape(node_shapes)
        if inputs.get(INPUT_PORT, output) != output:
            inputs = {**inputs, INPUT_PORT: output}
            node_shapes = infer_shapes(inner, [inputs[port] for port in ports])
        yield node_shapes


def output_shape(node_shapes: Mapping[int, NodeShapes]) -> Shape:
    """Return the shape of the one OUTPUT node of a subgraph. Raises ShapeError for another number of them."""
    outputs = [each.output for each in node_shapes.values() if each.node.node_type is NodeType.OUTPUT]
    if len(outputs) != 1:
        raise ShapeError(f"expected one output node in a subgraph, got {len(outputs)}")
    return outputs[0]
