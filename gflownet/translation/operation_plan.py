"""The immutable plan of an operation graph: order of computation, modules, adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.operation_shapes import NodeShapes, infer_shapes
from gflownet.graphs.tensor_shape import Shape


@dataclass(frozen=True)
class OperationPlan:
    """A whole model."""

    inputs: tuple[tuple[int, Shape], ...]  # node id and shape, by ascending id: the arguments of forward
    nodes: tuple[NodeShapes, ...]  # non-INPUT nodes, sources before targets
    outputs: tuple[int, ...]
    key: tuple[Any, ...]  # the structural key it was built from


def build_operation_plan(graph: ComputationGraph, key: tuple[Any, ...]) -> OperationPlan:
    """Return the plan of a valid operation graph."""
    shapes = infer_shapes(graph)
    inputs = tuple((node_id, shapes[node_id].output) for node_id in graph.input_node_ids)
    nodes = tuple(each for each in shapes.values() if each.node.node_type is not NodeType.INPUT)
    return OperationPlan(inputs, nodes, tuple(graph.output_node_ids), key)
