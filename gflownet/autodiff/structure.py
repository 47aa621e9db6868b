"""What two graphs have in common that one program computes: everything but which leaves they have."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gflownet.autodiff.nodes import CastNode, ElementwiseNode, LeafNode, LinearNode, Node, NonlinearNode, TransformNode


def structure(order: Sequence[Node]) -> tuple[dict[Node, int], tuple[Hashable, ...]]:
    """Return the place of every node, and a key that is the same of graphs that differ in leaves and names only.

    Names of indices do not matter either.

    Args:
        order: nodes, each after its inputs.
    """
    places = {node: place for place, node in enumerate(order)}
    return places, tuple([_row(node, places) for node in order])


def _row(node: Node, places: dict[Node, int]) -> tuple[Hashable, ...]:
    """Return what a node is, its inputs by their places."""
    match node:
        case LeafNode():
            return (0, node.shape, node.dtype, node.fill, node.is_identity)
        case TransformNode():
            dst = node.index_dst
            pattern = tuple([dst.index(index) if index > 0 else -1 for index in node.index_src])
            return (1, places[node.inputs[0]], pattern, node.alpha, node.shape)
        case ElementwiseNode() | LinearNode():
            number: dict[int, int] = {}
            indices = (*node.index_dst, *node.index_src_l, *node.index_src_r)
            pattern = tuple([number.setdefault(index, len(number)) for index in indices])
            left, right = node.inputs
            return (2, places[left], places[right], node.operation, len(node.index_dst), pattern)
        case NonlinearNode():
            return (3, places[node.inputs[0]], node.function)
        case CastNode():
            return (4, places[node.inputs[0]], node.dtype)
        case _:
            raise TypeError(f"{node.label}: expected one of the five kinds of nodes or a cast")
