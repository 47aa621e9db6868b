"""Shapes, parameters and FLOPs of a graph, computed from its plan without tensors or torch."""

from dataclasses import dataclass
from math import prod

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.operation_shapes import is_operation_graph
from gflownet.translation.operation_summary import OperationSummary, summarise_operations
from gflownet.translation.plan import ModelPlan, NodePlan
from gflownet.translation.planning import checked_options, checked_plan


@dataclass(frozen=True)
class NodeSummary:
    """One non-INPUT node; FLOPs are per row of the batch."""

    node_id: int
    operation: str  # "aggregation -> activation"
    source_sizes: tuple[int, ...]  # widths of the sources of the enabled in-edges
    aggregated_size: int  # the width between aggregation and post
    output_size: int
    num_parameters: int  # of the node and its in-edges
    matrix_flops: int  # 2 per multiply-add of a matrix product
    elementwise_flops: int  # 1 per element and operation, activations included
    is_live: bool  # a dead node has parameters but is not computed

    @property
    def flops(self) -> int:
        """All FLOPs of the node for one row; 0 for a dead node."""
        return self.matrix_flops + self.elementwise_flops if self.is_live else 0


@dataclass(frozen=True)
class GraphSummary:
    """A whole graph."""

    num_parameters: int
    flops: int  # per row of the batch and time step, dead nodes left out
    input_size: int
    output_size: int
    state_size: int  # floats per row of the recurrent state
    nodes: tuple[NodeSummary, ...]  # in the order of evaluation

    @property
    def dead_node_ids(self) -> tuple[int, ...]:
        """Nodes that reach no output: pruned from forward."""
        return tuple(node.node_id for node in self.nodes if not node.is_live)

    def __str__(self) -> str:
        rows = [("node", "operation", "from", "to", "parameters", "FLOPs")]
        for node in self.nodes:
            sources = "+".join(map(str, node.source_sizes)) or "-"
            flops = f"{node.flops:,}" if node.is_live else "dead"
            rows.append(
                (str(node.node_id), node.operation, sources, str(node.output_size), f"{node.num_parameters:,}", flops)
            )
        rows.append(
            ("total", "", str(self.input_size), str(self.output_size), f"{self.num_parameters:,}", f"{self.flops:,}")
        )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def summary(graph: ComputationGraph, *, projection: str | None = None) -> GraphSummary | OperationSummary:
    """Return the summary of the model of a graph; `projection` overrides the setting of the graph.

    Raises: ValueError for an invalid graph.
    """
    if is_operation_graph(graph):
        return summarise_operations(graph, checked_options(graph, {"projection": projection}).projection)
    return summarise_plan(checked_plan(graph, {"projection": projection}))


def summarise_plan(plan: ModelPlan) -> GraphSummary:
    """Return the summary of a plan."""
    nodes = tuple(_summarise_node(node) for node in plan.nodes)
    return GraphSummary(
        num_parameters=sum(node.num_parameters for node in nodes),
        flops=sum(node.flops for node in nodes),
        input_size=plan.input_size,
        output_size=plan.output_size,
        state_size=sum(slot.size for slot in plan.slots),
        nodes=nodes,
    )


def _summarise_node(node: NodePlan) -> NodeSummary:
    return NodeSummary(
        node_id=node.node_id,
        operation=f"{node.aggregation} -> {node.activation}",
        source_sizes=tuple(edge.source_size for edge in node.edges),
        aggregated_size=node.aggregated_size,
        output_size=node.output_size,
        num_parameters=sum(prod(parameter.shape) for parameter in node.parameters()),
        matrix_flops=_matrix_flops(node),
        elementwise_flops=_elementwise_flops(node),
        is_live=node.is_live,
    )


def _matrix_flops(node: NodePlan) -> int:
    d, count, size = node.message_size, len(node.edges), node.output_size
    multiply_adds = sum(edge.source_size * d for edge in node.edges if edge.is_projected)
    multiply_adds += node.aggregation_class.multiply_adds(node.attributes, d, count)
    if node.has_post and node.edges:
        multiply_adds += node.aggregated_size * size
    return 2 * (multiply_adds + node.activation_class.multiply_adds(size))


def _elementwise_flops(node: NodePlan) -> int:
    d, count, size = node.message_size, len(node.edges), node.output_size
    flops = count * d + size  # weights of the edges, bias
    flops += node.aggregation_class.elementwise_flops(node.attributes, d, count)
    return flops + node.activation_class.elementwise_flops(size)
