"""One visit of every node of a graph, sources before targets: merged inputs, operation and shape.

A node without a shape is a failure; the nodes that depend on it are skipped. No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gflownet.graphs.elements import (
    Edge,
    GraphElements,
    Node,
    NodeKind,
    NodeType,
    inner_ports,
    input_shape,
    maps_tensors,
)
from gflownet.graphs.merges import MergePlan, by_port, check_alignment, merged
from gflownet.graphs.operation import AppliedOperation
from gflownet.graphs.ordering import followed_edges, reachable, sorted_prefix
from gflownet.graphs.typed import Apply, Call, Failures, Input, NodeShapeError, TypedGraph, TypedNode, TypedNodes
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.operations.tensor_shape import Adapter, Layout, Shape, ShapeError, join
from gflownet.operations.values import hashable, shown, thawed
from gflownet.operations.vocabulary import aggregation

_NO_OPTIONS = hashable({})


def visited(
    graph: GraphElements, projection: str, *, name: str = "", shapes: Sequence[Shape] = (), broken: Collection[int] = ()
) -> TypedGraph:
    """Return the typed graph.

    Args:
        graph: with subgraphs and edges as in a valid graph, but at the `broken` nodes.
        projection: of neurons, see TranslationConfig.
        name: of the subgraph or composite, "" of the model.
        shapes: of the INPUT nodes by ascending id, for a subgraph; empty: as the nodes declare.
        broken: ids of nodes that are skipped with those that depend on them.
    """
    takes_columns = not (name or maps_tensors(graph))
    visit = _Visit(graph, projection, shapes, broken, takes_columns=takes_columns)
    return TypedGraph(graph, projection, name, takes_columns, visit.nodes, visit.failures)


class _Visit:
    """One visit of every node of a graph, sources before targets; the arguments are those of `visited`."""

    def __init__(
        self,
        graph: GraphElements,
        projection: str,
        shapes: Sequence[Shape],
        broken: Collection[int],
        *,
        takes_columns: bool,
    ) -> None:
        self._graph, self._projection, self._takes_columns = graph, projection, takes_columns
        self._is_multigraph = bool(self._graph.config["multigraph"])
        self.nodes: TypedNodes = {}
        self.failures: Failures = {}
        edges = followed_edges(self._graph, ignore_recurrent=False)
        late = {edge.edge_id for edge in edges if edge.is_recurrent}
        order = self._ordered(edges, late)
        if len(order) < len(self._graph.nodes) and self._takes_columns:
            late.update(self._graph.detect_cycles())
            order = self._ordered(edges, late)
        self._late = frozenset(late)  # ids of edges that carry the value of the time step before
        self._incoming: dict[int, list[Edge]] = {}
        for edge in edges:
            self._incoming.setdefault(edge.target, []).append(edge)
        self._skipped: set[int] = set()
        self._skip(broken)
        if cyclic := self._graph.nodes.keys() - self._skipped - set(order):
            self._fail(NodeShapeError(min(cyclic), "expected no cycle, got one that this node depends on"))
        inputs = sorted(node_id for node_id, node in graph.nodes.items() if node.node_type is NodeType.INPUT)
        self._outside: Mapping[int, Shape] = dict(zip(inputs, shapes, strict=True)) if shapes else {}
        self._owners = self._shared_owners(order)
        self._first: dict[tuple[str, str], int] = {}  # the first visited node of each set of weights
        before = self._shapes_before(order) if late else {}
        for node_id in order:
            self._add(node_id, before)

    def _ordered(self, edges: list[Edge], late: set[int]) -> list[int]:
        return sorted_prefix(self._graph.nodes, [edge for edge in edges if edge.edge_id not in late] if late else edges)

    def _shared_owners(self, order: Sequence[int]) -> dict[tuple[str, str], int]:
        """Return the node that makes the module of each set of shared weights: the first live one, else the first."""
        sharing = [(key, node_id) for node_id in order if (key := self._graph.nodes[node_id].shared_weights)]
        if not sharing:
            return {}
        outputs = [node_id for node_id in order if self._graph.nodes[node_id].node_type is NodeType.OUTPUT]
        live = reachable(outputs, lambda node_id: [edge.source for edge in self._incoming.get(node_id, ())])
        owners: dict[tuple[str, str], int] = {}
        for key, node_id in sorted(sharing, key=lambda each: each[1] not in live):
            owners.setdefault(key, node_id)
        return owners

    def _skip(self, starts: Iterable[int]) -> None:
        """Leave out nodes and all that depend on them, through recurrent edges, too."""
        if not starts:
            return
        targets: dict[int, list[int]] = {}
        for target, edges in self._incoming.items():
            for edge in edges:
                targets.setdefault(edge.source, []).append(target)
        self._skipped |= reachable(starts, lambda node_id: targets.get(node_id, ()))
        for node_id in self.nodes.keys() & self._skipped:
            del self.nodes[node_id]

    def _fail(self, error: NodeShapeError) -> None:
        self.failures[error.node_id] = error
        self._skip([error.node_id])

    def _add(self, node_id: int, before: Mapping[int, TypedNode]) -> None:
        if node_id in self._skipped:
            return
        edges, known = self._incoming.get(node_id, ()), self.nodes
        late = [edge for edge in edges if edge.edge_id in self._late] if before else []
        if late:
            known = known | {edge.source: before[edge.source] for edge in late}
        try:
            node = self._visited(node_id, edges, known)
            if before:
                _check_late(node, late, before)
            if self._owners and (key := node.node.shared_weights) is not None:
                first = self.nodes.get(self._first.get(key, node_id))
                if first is None:
                    self._first[key] = node_id
                else:
                    _check_shared(node, first)
        except NodeShapeError as error:
            self._fail(error)
            return
        self.nodes[node_id] = node

    def _shapes_before(self, order: Sequence[int]) -> dict[int, TypedNode]:
        """Return the shapes of a time step from those edges whose sources are known first, round by round."""
        known: dict[int, TypedNode] = {}
        while waiting := [node_id for node_id in order if node_id not in known and node_id not in self._skipped]:
            num_before = len(known) + len(self.failures)
            for node_id in waiting:
                edges = self._incoming.get(node_id, ())
                ready = [edge for edge in edges if edge.source in known]
                if node_id not in self._skipped and _ports(ready) == _ports(edges):
                    self._know(node_id, ready, known)
            if len(known) + len(self.failures) > num_before:
                continue
            neurons = [node_id for node_id in waiting if self._graph.nodes[node_id].kind is NodeKind.NEURON]
            if neurons:  # a neuron has a width of its own
                self._know(neurons[0], (), known)
                continue
            message = "expected an in-edge that is not recurrent on a path from an input, got none"
            self._fail(NodeShapeError(waiting[0], message))
        return {node_id: node for node_id, node in known.items() if node_id not in self._skipped}

    def _know(self, node_id: int, edges: Sequence[Edge], known: dict[int, TypedNode]) -> None:
        try:
            known[node_id] = self._visited(node_id, edges, known)
        except NodeShapeError as error:
            self._fail(error)

    def _visited(self, node_id: int, edges: Sequence[Edge], known: Mapping[int, TypedNode]) -> TypedNode:
        """Return a node from its in-edges with known sources. Raises NodeShapeError for one without a shape."""
        node = self._graph.nodes[node_id]
        try:
            if node.node_type is NodeType.INPUT:
                shape = self._outside.get(node_id) or input_shape(node)
                return TypedNode(node, Input(node.port), {}, shape, node_id)
            if node.kind is NodeKind.NEURON:
                return self._neuron(node, edges, known)
            typed = self._tensor_node(node, edges, known)
            if typed.output.layout is Layout.TOKENS and node.activation_function not in ("linear", "identity"):
                raise ShapeError(f"expected activation linear of {typed.output}, got {node.activation_function}")
            return typed
        except NodeShapeError:
            raise
        except ValueError as error:
            raise NodeShapeError(node_id, str(error)) from None

    def _neuron(self, node: Node, edges: Sequence[Edge], known: Mapping[int, TypedNode]) -> TypedNode:
        """Return a neuron: of one size of positions, features are projected per edge."""
        if node.output_size is None:
            raise ShapeError("expected an output_size of a node without operation, got none")
        edges = sorted(edges, key=lambda edge: (edge.order, edge.edge_id))
        shapes, attributes = [known[edge.source].output for edge in edges], node.attributes
        target = join(shapes) if any(shape.layout is not Layout.VECTOR for shape in shapes) else None
        adapters = [Adapter(each, each if target is None else target.with_channels(each.channels)) for each in shapes]
        options = _NO_OPTIONS
        if attributes:
            accepted = aggregation(node.aggregation).accepted()
            options = hashable({key: value for key, value in attributes.items() if key in accepted}) or _NO_OPTIONS
        names = node.activation_function, node.aggregation
        applied = _neuron_operation(node.output_size, *names, self._projection, options)
        merges = {
            f"{place}": MergePlan(
                (edge,),
                (adapter,),
                "sum",
                node.align,
                adapter.target,
                late=self._late and self._late & {edge.edge_id},
                reads_input=isinstance(known[edge.source].what, Input),
            )
            for place, (edge, adapter) in enumerate(zip(edges, adapters, strict=True))
        }
        at = applied.at({port: merge.shape for port, merge in merges.items()})
        output = at.output
        if target is not None:
            check_alignment(adapters, node.align, "layout and size of positions")
        what, has_signs = Apply(applied, at, ""), self._takes_columns
        return TypedNode(node, what, merges, output, node.node_id, self._is_multigraph, has_signs=has_signs)

    def _tensor_node(self, node: Node, edges: Sequence[Edge], known: Mapping[int, TypedNode]) -> TypedNode:
        """Return a node with an operation or a subgraph."""
        merges = {
            port: _source_weight(entries, known)
            if port == WEIGHT_PORT
            else merged(node, entries, [known[edge.source].output for edge in entries])
            for port, entries in by_port(edges).items()
        }
        if self._late and (late := self._late.intersection(edge.edge_id for edge in edges)):
            merges = {port: replace(plan, late=late) for port, plan in merges.items()}
        shapes = {port: plan.shape for port, plan in merges.items()}
        if node.kind is NodeKind.SUBGRAPH:
            what, output = self._call(node, shapes)
        else:
            what, output = self._apply(node, shapes)
        owner = node.node_id
        if self._owners:
            owner = self._owners.get(node.shared_weights or ("", ""), owner)
        tied = merges[WEIGHT_PORT].edges[0].source if WEIGHT_PORT in merges else None
        tied_to = known[tied].label if tied is not None else ""
        return TypedNode(node, what, merges, output, owner, self._is_multigraph, tied_to, node.has_edge_weights)

    def _apply(self, node: Node, shapes: Mapping[str, Shape]) -> tuple[Apply, Shape]:
        applied = node.applied
        try:
            output = (at := applied.at(shapes)).output
        except ShapeError as error:
            raise ShapeError(f"{applied.name}: {error}") from None
        body = applied.row.typed_body(applied.name, shapes, applied.settings, self._projection)
        return Apply(applied, at, node.share or "", () if body is None else (body,)), output

    def _call(self, node: Node, shapes: Mapping[str, Shape]) -> tuple[Call, Shape]:
        """Return a subgraph and its output after all repetitions; each reads the one before at the port input."""
        name, repeat = node.subgraph, node.repeat
        inner = self._graph.subgraph(name)
        entry, bodies = shapes.get(INPUT_PORT), [self._body(node, inner, name, shapes)]
        for _ in range(repeat - 1):
            body, output = bodies[-1], bodies[-1].output
            if shapes.get(INPUT_PORT, output) != output:
                shapes = {**shapes, INPUT_PORT: output}
                body = self._body(node, inner, name, shapes, bodies[0])
            bodies.append(body)
        is_shared = bool(node.share)
        if repeat > 1 and is_shared and any(body.output != (entry or bodies[0].output) for body in bodies):
            raise ShapeError(f"expected the output {entry} of a shared subgraph, got {bodies[0].output}")
        return Call(name, tuple(bodies), is_shared), bodies[-1].output

    def _body(
        self, node: Node, inner: GraphElements, name: str, shapes: Mapping[str, Shape], first: TypedGraph | None = None
    ) -> TypedGraph:
        body = inner.body(name, [shapes[port] for port in inner_ports(inner)], self._projection)
        for failure in body.failures.values():
            raise NodeShapeError(node.node_id, str(failure), "repeat_mismatch", body=first or body)
        return body


def _source_weight(edges: Sequence[Edge], known: Mapping[int, TypedNode]) -> MergePlan:
    """Return the input of the port `weight`: the weight of the source's module, not the source's output."""
    if len(edges) != 1:
        raise ShapeError(f"expected one edge into the port {WEIGHT_PORT}, got {len(edges)}")
    source = known[edges[0].source]
    if not isinstance(source.what, Apply) or source.is_neuron:
        raise ShapeError(f"expected an operation with a weight at the port {WEIGHT_PORT}, got node {edges[0].source}")
    shape = source.what.at.weight
    return MergePlan(tuple(edges), (Adapter(shape, shape),), "sum", "never", shape)


def _check_late(node: TypedNode, late: Sequence[Edge], before: Mapping[int, TypedNode]) -> None:
    """Raise NodeShapeError where recurrent in-edges change the output, or carry tokens or a tied weight."""
    expected = before[node.node_id].output
    if node.output != expected:
        raise NodeShapeError(node.node_id, f"expected recurrent edges that fit {expected}, got {node.output} with them")
    if any(before[edge.source].output.layout is Layout.TOKENS for edge in late):
        raise NodeShapeError(node.node_id, "expected no recurrent edge from tokens, got one")
    if any(edge.port == WEIGHT_PORT for edge in late) and WEIGHT_PORT in node.inputs:
        raise NodeShapeError(node.node_id, f"expected no recurrent edge into the port {WEIGHT_PORT}, got one")


def _check_shared(node: TypedNode, first: TypedNode) -> None:
    """Raise NodeShapeError for other input shapes or another operation than the first node with these weights."""
    kind, name = node.node.shared_weights or ("", "")
    if first.operation != node.operation:
        expected = f"expected the operation of node {first.node_id}, which shares {shown(name)}"
        reason = f"{expected}, got {shown(thawed(node.node.operation))}"
        raise NodeShapeError(node.node_id, reason, "share_mismatch")
    for port, shape in node.input_shapes.items():
        if shape != (expected := first.input_shapes[port]):
            message = f"expected {expected} at the port {port} of the shared {kind} {shown(name)}"
            reason = f"{message}, as at node {first.node_id}, got {shape}"
            raise NodeShapeError(node.node_id, reason, "share_mismatch")


def _ports(edges: Iterable[Edge]) -> set[Any]:
    return {edge.port for edge in edges}


@lru_cache(maxsize=2**12)
def _neuron_operation(
    features: int, activation_name: str, aggregation_name: str, projection: str, options: Mapping[str, Any]
) -> AppliedOperation:
    settings = (("activation", activation_name), ("aggregation", aggregation_name), ("features", features))
    return AppliedOperation("", (*settings, ("options", options), ("projection", projection)))
