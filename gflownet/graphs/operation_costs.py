"""Parameters and multiply-adds of operation graphs, from the rows of their operations; nothing is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from gflownet.graphs.elements import GraphElements, NodeType, is_dense
from gflownet.graphs.operation_shapes import NodeShapeError, NodeShapes, infer_shapes, neuron_settings, repetitions
from gflownet.graphs.ordering import reachable
from gflownet.operations.neuron import Neuron
from gflownet.operations.tensor_shape import ShapeError


@dataclass(frozen=True)
class OperationCost:
    """Size of a node or a graph."""

    num_parameters: int = 0
    multiply_adds: int = 0  # of one example
    elementwise_flops: int = 0  # of neurons, counted in dense graphs only

    @property
    def flops(self) -> int:
        """2 per multiply-add, and the elementwise operations of neurons."""
        return 2 * self.multiply_adds + self.elementwise_flops

    def __add__(self, other: OperationCost) -> OperationCost:
        return OperationCost(
            self.num_parameters + other.num_parameters,
            self.multiply_adds + other.multiply_adds,
            self.elementwise_flops + other.elementwise_flops,
        )


def graph_cost(graph: GraphElements, projection: str | None = None, *, late: Iterable[int] = ()) -> OperationCost:
    """Return the cost of the model of a valid graph. Raises NodeShapeError for an invalid one.

    Args:
        graph: whole; dead nodes are left out, but neurons of a dense graph keep their parameters.
        projection: overrides the setting of the graph.
        late: ids of recurrent edges besides those that are marked.
    """
    return inferred_cost(graph, infer_shapes(graph, late=late), projection)


def inferred_cost(
    graph: GraphElements, node_shapes: Mapping[int, NodeShapes], projection: str | None = None
) -> OperationCost:
    """Return the cost of `graph_cost` for a graph with known shapes."""
    projection = projection or own_projection(graph)
    cost = total_cost(graph, node_shapes, projection)
    if not is_dense(graph):
        return replace(cost, elementwise_flops=0)
    live = live_nodes(node_shapes)
    dead = [node for node_id, node in node_shapes.items() if node.is_neuron and node_id not in live]
    return cost + OperationCost(sum(_neuron_cost(node, projection).num_parameters for node in dead))


def total_cost(graph: GraphElements, node_shapes: Mapping[int, NodeShapes], projection: str) -> OperationCost:
    """Return the cost of the nodes with a path to an output."""
    live = live_nodes(node_shapes)
    costs = node_costs(graph, {node_id: node for node_id, node in node_shapes.items() if node_id in live}, projection)
    return sum(costs.values(), OperationCost())


def node_costs(
    graph: GraphElements, node_shapes: Mapping[int, NodeShapes], projection: str = "auto"
) -> dict[int, OperationCost]:
    """Return the cost of every node; weights that several nodes share count at the first of them."""
    costs, applied = {}, set[tuple[str, str]]()
    for node_id, node in node_shapes.items():
        costs[node_id] = node_cost(graph, node, projection, is_first=node.shared_weights not in applied)
        if node.shared_weights is not None:
            applied.add(node.shared_weights)
    return costs


def live_nodes(node_shapes: Mapping[int, NodeShapes]) -> set[int]:
    """Return the OUTPUT nodes and all nodes with a path to one."""
    outputs = [node_id for node_id, each in node_shapes.items() if each.node.node_type is NodeType.OUTPUT]
    return reachable(outputs, lambda node_id: [edge.source for edge in node_shapes[node_id].edges])


def node_cost(
    graph: GraphElements, node: NodeShapes, projection: str = "auto", *, is_first: bool = True
) -> OperationCost:
    """Return the cost of one node, of the adapters on its in-edges and of their learned weights.

    Args:
        graph: of the node.
        node: with its shapes.
        projection: of nodes without operation, see TranslationConfig.
        is_first: whether weights that other nodes share count.

    Raises:
        NodeShapeError: a user's class fails.
    """
    try:
        return _node_cost(graph, node, projection, is_first=is_first)
    except ShapeError as error:
        name = node.operation.name if node.operation is not None else f"subgraph {node.node.attributes['subgraph']}"
        raise NodeShapeError(node.node.node_id, f"{name}: {error}") from None


def _node_cost(graph: GraphElements, node: NodeShapes, projection: str, *, is_first: bool) -> OperationCost:
    if node.is_neuron:
        return _neuron_cost(node, projection)
    total = OperationCost()
    for plan in node.inputs.values():
        if plan.is_learned:
            for adapter in plan.adapters:
                total += OperationCost(adapter.num_parameters, adapter.multiply_adds)
    if node.has_edge_weights:
        total += OperationCost(1 + sum(len(plan.edges) for port, plan in node.inputs.items() if node.is_weighted(port)))
    inputs = {port: plan.shape for port, plan in node.inputs.items()}
    if node.operation is not None:
        num_parameters, multiply_adds = node.operation.cost(inputs)
        return total + OperationCost(num_parameters if is_first else 0, multiply_adds)
    if "subgraph" not in node.node.attributes:
        return total
    return total + _subgraph_cost(graph, node, projection, is_first=is_first)


def _subgraph_cost(graph: GraphElements, node: NodeShapes, projection: str, *, is_first: bool) -> OperationCost:
    inputs = {port: plan.shape for port, plan in node.inputs.items()}
    inner = graph.subgraph(node.node.attributes["subgraph"])
    total, cost = OperationCost(), OperationCost()
    node_shapes: dict[int, NodeShapes] = {}
    for repetition, shapes in enumerate(repetitions(inner, inputs, node.node.attributes.get("repeat", 1))):
        if shapes is not node_shapes:
            node_shapes, cost = shapes, total_cost(inner, shapes, projection)
        is_new = not node.shared_weights or (is_first and repetition == 0)
        total += OperationCost(cost.num_parameters if is_new else 0, cost.multiply_adds)
    return total


def own_projection(graph: GraphElements) -> str:
    """Return the projection in the translation settings of a graph, auto by default."""
    settings = graph.config.get("translation")
    return settings.get("projection", "auto") if isinstance(settings, Mapping) else "auto"


def _neuron_cost(node: NodeShapes, projection: str) -> OperationCost:
    """Return the cost of a neuron, over all positions."""
    (plan,) = node.inputs.values()
    inputs = {f"{place}": adapter.target for place, adapter in enumerate(plan.adapters)}
    settings = neuron_settings(node.node, projection)
    neuron, positions = Neuron.plan(inputs, settings), prod(node.output.positions)
    return OperationCost(
        neuron.num_parameters(), neuron.multiply_adds() * positions, neuron.elementwise_flops() * positions
    )
