"""Shapes, parameters and multiply-adds of an operation graph; nothing is built."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.operation_costs import OperationCost, live_nodes, node_costs, own_projection
from gflownet.graphs.operation_shapes import NodeShapes, infer_shapes
from gflownet.graphs.tensor_shape import Adapter, Shape
from gflownet.graphs.vocabulary import short_name


@dataclass(frozen=True)
class OperationNodeSummary:
    """One node; costs are of one example and include its adapters and all repetitions of a subgraph."""

    node_id: int
    operation: str  # merge, operation with the settings that are not defaults, activation
    inputs: tuple[Shape, ...]  # after the merge, one per port
    output: Shape
    num_parameters: int
    multiply_adds: int
    adapters: tuple[str, ...]  # what aligns the in-edges
    is_live: bool  # a dead node is not part of the model

    @property
    def flops(self) -> int:
        """2 per multiply-add; 0 of a dead node."""
        return 2 * self.multiply_adds if self.is_live else 0


@dataclass(frozen=True)
class OperationSummary:
    """A whole operation graph; dead nodes do not count."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    num_parameters: int
    multiply_adds: int  # of one example
    nodes: tuple[OperationNodeSummary, ...]  # in the order of evaluation

    @property
    def flops(self) -> int:
        """2 per multiply-add, of one example."""
        return 2 * self.multiply_adds

    @property
    def dead_node_ids(self) -> tuple[int, ...]:
        """Nodes that reach no output: left out of the model."""
        return tuple(node.node_id for node in self.nodes if not node.is_live)

    def __str__(self) -> str:
        rows = [("node", "operation", "from", "to", "parameters", "multiply-adds", "adapters")]
        for node in self.nodes:
            sources, adapters = " + ".join(map(str, node.inputs)) or "-", ", ".join(node.adapters)
            cost = f"{node.multiply_adds:,}" if node.is_live else "dead"
            row = (str(node.node_id), node.operation, sources, str(node.output), f"{node.num_parameters:,}", cost)
            rows.append((*row, adapters))
        inputs, outputs = " + ".join(map(str, self.inputs)), " + ".join(map(str, self.outputs))
        rows.append(("total", "", inputs, outputs, f"{self.num_parameters:,}", f"{self.multiply_adds:,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def summarise_operations(graph: ComputationGraph, projection: str | None = None) -> OperationSummary:
    """Return the summary of a valid operation graph; `projection` overrides its setting."""
    known = infer_shapes(graph)
    live = live_nodes(known)
    projection = projection or own_projection(graph)
    # Live nodes first: they count the weights that dead ones share.
    by_life = dict(sorted(known.items(), key=lambda item: item[0] not in live))
    costs, nodes = node_costs(graph, by_life, projection), []
    for node_id, shapes in known.items():
        if shapes.node.node_type is not NodeType.INPUT:
            nodes.append(_summarised(shapes, costs[node_id], is_live=node_id in live))
    return OperationSummary(
        inputs=tuple(known[node_id].output for node_id in graph.input_node_ids),
        outputs=tuple(known[node_id].output for node_id in graph.output_node_ids),
        num_parameters=sum(node.num_parameters for node in nodes if node.is_live),
        multiply_adds=sum(node.multiply_adds for node in nodes if node.is_live),
        nodes=tuple(nodes),
    )


def _summarised(shapes: NodeShapes, cost: OperationCost, *, is_live: bool) -> OperationNodeSummary:
    adapters = [
        f"{edge.source}: {text}"
        for plan in shapes.inputs.values()
        for edge, adapter in zip(plan.edges, plan.adapters, strict=True)
        if (text := _adapter_text(adapter, plan.align))
    ]
    return OperationNodeSummary(
        node_id=shapes.node.node_id,
        operation=operation_text(shapes),
        inputs=tuple(plan.shape for plan in shapes.inputs.values()),
        output=shapes.output,
        num_parameters=cost.num_parameters,
        multiply_adds=cost.multiply_adds,
        adapters=tuple(adapters),
        is_live=is_live,
    )


def operation_text(shapes: NodeShapes) -> str:
    """Return a node as text: "mean -> conv2d(features=16) -> relu"; only settings that are not defaults."""
    node, words = shapes.node, []
    if shapes.is_ordinary or any(len(plan.edges) > 1 for plan in shapes.inputs.values()):
        axis = node.attributes.get("axis", "channels")
        words.append(f"{node.aggregation}{f'(axis={axis})' if axis != 'channels' else ''}")
    if shapes.operation is not None:
        row = shapes.operation.row
        settings = [f"{k}={v}" for k, v in shapes.operation.items if v != row.settings[k].default]
        words.append(short_name(shapes.operation.name) + (f"({', '.join(settings)})" if settings else ""))
    elif not shapes.is_ordinary:
        repeat = node.attributes.get("repeat", 1)
        shared = " shared" if shapes.shared_subgraph else ""
        words.append(f"{node.attributes['subgraph']}{f' x {repeat}' if repeat > 1 else ''}{shared}")
    if node.activation_function != "linear":
        words.append(short_name(node.activation_function))
    return " -> ".join(words)


def _adapter_text(adapter: Adapter, align: str | None) -> str:
    words = [f"broadcast to {adapter.target}"] if adapter.is_broadcast else []
    if adapter.pools_to_vector:
        words.append("mean over positions")
    elif adapter.pools_positions:
        sizes = ("x".join(map(str, shape.positions)) for shape in (adapter.source, adapter.target))
        words.append("average pooling {} to {}".format(*sizes))
    if adapter.changes_channels:
        kind = "zeros for channels" if align == "pad" else "learned projection"
        words.append(f"{kind} {adapter.source.channels} to {adapter.target.channels}")
    return ", ".join(words)
