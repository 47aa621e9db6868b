"""Shapes, parameters and FLOPs of a graph, computed from its shapes without tensors or torch."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import Apply, Call, Input, TypedGraph, TypedNode
from gflownet.operations.tensor_shape import AXES, Adapter, Layout, Shape
from gflownet.operations.vocabulary import short_name
from gflownet.translation.planning import checked


@dataclass(frozen=True)
class NodeSummary:
    """One non-INPUT node; costs are of one example and include adapters and all repetitions of a subgraph."""

    node_id: int
    operation: str  # merge, operation with the settings that are not defaults, activation
    inputs: tuple[Shape, ...]  # of a neuron, one per in-edge; else after the merge, one per port
    output: Shape
    num_parameters: int  # of the node and its in-edges
    multiply_adds: int  # of matrix products and convolutions
    elementwise_flops: int  # 1 per element and operation, activations included; counted in dense graphs only
    adapters: tuple[str, ...]  # what aligns the in-edges
    is_live: bool  # a dead node is not computed

    @property
    def output_size(self) -> int:
        """Features or channels of the output."""
        return self.output.channels

    @property
    def matrix_flops(self) -> int:
        """2 per multiply-add."""
        return 2 * self.multiply_adds

    @property
    def flops(self) -> int:
        """All FLOPs of the node for one example; 0 for a dead node."""
        return self.matrix_flops + self.elementwise_flops if self.is_live else 0


@dataclass(frozen=True)
class GraphSummary:
    """A whole graph."""

    num_parameters: int
    multiply_adds: int  # of one example and time step, dead nodes left out
    flops: int  # 2 per multiply-add, and the elementwise operations of a dense graph
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    state_size: int  # floats per row of the recurrent state
    nodes: tuple[NodeSummary, ...]  # in the order of evaluation

    @property
    def input_size(self) -> int:
        """The number of elements of one example."""
        return sum(shape.num_elements for shape in self.inputs)

    @property
    def output_size(self) -> int:
        """The number of elements of the outputs for one example."""
        return sum(shape.num_elements for shape in self.outputs)

    @property
    def dead_node_ids(self) -> tuple[int, ...]:
        """Nodes that reach no output: not computed."""
        return tuple(node.node_id for node in self.nodes if not node.is_live)

    def __str__(self) -> str:
        rows = [("node", "operation", "from", "to", "parameters", "FLOPs", "adapters")]
        for node in self.nodes:
            sources, cost = _text(node.inputs), f"{node.flops:,}" if node.is_live else "dead"
            row = (str(node.node_id), node.operation, sources, _text((node.output,)), f"{node.num_parameters:,}", cost)
            rows.append((*row, ", ".join(node.adapters)))
        total = (_text(self.inputs), _text(self.outputs), f"{self.num_parameters:,}", f"{self.flops:,}")
        rows.append(("total", "", *total, ""))
        if not any(node.adapters for node in self.nodes):
            rows = [row[:-1] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def _text(shapes: tuple[Shape, ...]) -> str:
    words = [str(shape.channels) if shape.layout is Layout.VECTOR else str(shape) for shape in shapes]
    return " + ".join(words) or "-"


def summary(graph: ComputationGraph, *, projection: str | None = None) -> GraphSummary:
    """Return the summary of the model of a graph; `projection` overrides the setting of the graph.

    Raises: ValueError for an invalid graph.
    """
    typed, _ = checked(graph, {"projection": projection})
    nodes = tuple(_summarise_node(typed, node) for node in typed.nodes.values() if not isinstance(node.what, Input))
    return GraphSummary(
        num_parameters=typed.cost.num_parameters,
        multiply_adds=typed.cost.multiply_adds,
        flops=typed.cost.flops,
        inputs=tuple(shape for _, _, shape in typed.inputs),
        outputs=tuple(shape for _, shape in typed.outputs),
        state_size=sum(slot.size for slot in typed.slots),
        nodes=nodes,
    )


def _summarise_node(typed: TypedGraph, node: TypedNode) -> NodeSummary:
    shapes = (plan.adapters[0].source if node.is_neuron else plan.shape for plan in node.inputs.values())
    return NodeSummary(
        node_id=node.node_id,
        operation=operation_text(node),
        inputs=tuple(shapes),
        output=node.output,
        num_parameters=node.cost.num_parameters,
        multiply_adds=node.cost.multiply_adds,
        elementwise_flops=node.cost.elementwise_flops if typed.takes_columns else 0,
        adapters=_adapter_texts(node),
        is_live=node.node_id in typed.live,
    )


def operation_text(node: TypedNode) -> str:
    """Return a node as text: "mean -> conv2d(features=16) -> relu"; only settings that are not defaults."""
    what, words = node.what, []
    if node.is_neuron:
        return f"{node.node.aggregation} -> {node.node.activation_function}"
    if merge := next((plan for plan in node.inputs.values() if len(plan.edges) > 1), None):
        words.append(f"{merge.merge}(axis={merge.axis})" if merge.axis != AXES[0] else merge.merge)
    if isinstance(what, Apply):
        row = what.operation.row
        settings = [f"{k}={v}" for k, v in what.operation.items if v != row.settings[k].default]
        shared = f" shared as {what.share}" if what.share else ""
        words.append(short_name(what.operation.name) + (f"({', '.join(settings)})" if settings else "") + shared)
    elif isinstance(what, Call):
        repeat = len(what.bodies)
        words.append(f"{what.name}{f' x {repeat}' if repeat > 1 else ''}{' shared' if what.is_shared else ''}")
    if node.node.activation_function != "linear":
        words.append(short_name(node.node.activation_function))
    return " -> ".join(words)


def _adapter_texts(node: TypedNode) -> tuple[str, ...]:
    """Return the in-edges that something aligns; those of a neuron are projected, which its parameters count."""
    texts = (
        f"{edge.source}: {text}"
        for plan in node.inputs.values()
        for edge, adapter in zip(plan.edges, plan.adapters, strict=True)
        if (text := _adapter_text(adapter, plan.align))
    )
    return tuple(texts)


def _adapter_text(adapter: Adapter, align: str | None) -> str:
    words = [f"broadcast to {adapter.target}"] if adapter.is_broadcast else []
    if adapter.pools_to_vector:
        words.append("mean over positions")
    elif adapter.pools_positions:
        sizes = ("x".join(map(str, shape.positions)) for shape in (adapter.source, adapter.target))
        kind = "average pooling" if adapter.averages_positions else "nearest positions"
        words.append("{} {} to {}".format(kind, *sizes))
    if adapter.changes_channels:
        kind = "zeros for channels" if align == "pad" else "learned projection"
        words.append(f"{kind} {adapter.source.channels} to {adapter.target.channels}")
    return ", ".join(words)
