"""Small operation graphs."""

from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph, NodeType

CONVOLUTIONS = (
    ({"name": "conv2d", "features": 8, "kernel_size": 3, "bias": False}, "linear"),
    ({"name": "batch_norm"}, "relu"),
    ({"name": "max_pool2d", "kernel_size": 2, "stride": 2}, "linear"),
    ({"name": "conv2d", "features": 16, "kernel_size": 3, "bias": False}, "linear"),
    ({"name": "batch_norm"}, "relu"),
)


def chain(*operations: tuple[dict[str, Any], str], shape: list[int], num_outputs: int, **attributes: Any):
    """Return input -> operations (operation, activation) -> head."""
    graph = ComputationGraph()
    graph.add_node(0, NodeType.INPUT, output_size=None, attributes={"shape": shape, **attributes})
    previous = 0
    for node, (operation, activation) in enumerate(operations, start=2):
        attributes = {"operation": operation}
        graph.add_node(node, NodeType.HIDDEN, output_size=None, activation_function=activation, attributes=attributes)
        graph.add_edge(previous, node)
        previous = node
    head = {"operation": {"name": "head", "features": num_outputs}}
    graph.add_node(1, NodeType.OUTPUT, output_size=None, attributes=head)
    graph.add_edge(previous, 1)
    return graph
