"""Parameters and multiply-adds of operation graphs, from the rows of their operations; nothing is built."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.graphs.elements import GraphElements, NodeType
from gflownet.graphs.operation import INPUT_PORT
from gflownet.graphs.operation_shapes import NodeShapes, infer_shapes, inner_ports


@dataclass(frozen=True)
class OperationCost:
    """Size of a node or a graph."""

    num_parameters: int = 0
    multiply_adds: int = 0  # of one example

    def __add__(self, other: OperationCost) -> OperationCost:
        return OperationCost(self.num_parameters + other.num_parameters, self.multiply_adds + other.multiply_adds)


def graph_cost(graph: GraphElements) -> OperationCost:
    """Return the cost of a valid operation graph. Raises NodeShapeError for an invalid one."""
    return _total(graph, infer_shapes(graph))


def node_cost(graph: GraphElements, node: NodeShapes) -> OperationCost:
    """Return the cost of one node and of the adapters on its in-edges."""
    total = OperationCost()
    for plan in node.inputs.values():
        if plan.align == "auto":
            for adapter in plan.adapters:
                total += OperationCost(adapter.num_parameters, adapter.multiply_adds)
    inputs = {port: plan.shape for port, plan in node.inputs.items()}
    if node.operation is not None:
        row, settings = node.operation.row, node.operation.settings
        return total + OperationCost(row.num_parameters(inputs, settings), row.multiply_adds(inputs, settings))
    if "subgraph" not in node.node.attributes:
        return total
    inner = graph.subgraph(node.node.attributes["subgraph"])
    shares = node.node.attributes.get("share", False)
    for repetition in range(node.node.attributes.get("repeat", 1)):
        known = infer_shapes(inner, [inputs[port] for port in inner_ports(inner)])
        cost = _total(inner, known)
        is_new = repetition == 0 or not shares
        total += OperationCost(cost.num_parameters if is_new else 0, cost.multiply_adds)
        (output,) = (each.output for each in known.values() if each.node.node_type is NodeType.OUTPUT)
        inputs[INPUT_PORT] = output
    return total


def _total(graph: GraphElements, known: dict[int, NodeShapes]) -> OperationCost:
    return sum((node_cost(graph, node) for node in known.values()), OperationCost())
