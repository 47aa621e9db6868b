"""Nodes to terms, and terms back to nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
)
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Term


def is_described(leaf: LeafNode) -> bool:
    """Return whether a leaf is a constant that is computed with instead of stored."""
    return leaf.fill is not None or leaf.is_identity


def terms_of(
    terms: Terms, order: Sequence[Node], *, opaque: Collection[Node] = ()
) -> tuple[dict[Node, Term], list[LeafNode]]:
    """Return the term of every node, and the leaves that have to be given, `Leaf.slot` being their place.

    Args:
        terms: builds the terms.
        order: nodes, each after its inputs.
        opaque: nodes to become an `Alias`, so that one may differentiate with respect to them.
    """
    found: dict[Node, Term] = {}
    leaves: list[LeafNode] = []
    for node in order:
        if isinstance(node, LeafNode) and not is_described(node):
            term = terms.leaf(len(leaves), node.shape, node.dtype)
            leaves.append(node)
        else:
            term = _term_of(terms, node, [found[source] for source in node.inputs])
            if node in opaque:
                term = terms.alias(term)
        found[node] = term
    return found, leaves


def _term_of(terms: Terms, node: Node, inputs: list[Term]) -> Term:
    match node:
        case LeafNode(fill=float() | int() as fill):
            return terms.full(float(fill), node.shape, node.dtype)
        case LeafNode():
            return terms.identity(node.shape[: node.rank // 2], node.dtype)
        case TransformNode():
            return _transform_term(terms, node, inputs[0])
        case NonlinearNode():
            return terms.map(node.function, inputs[0])
        case CastNode():
            return terms.cast(inputs[0], node.dtype)
        case ElementwiseNode(operation="+" | "-"):
            return _sum_term(terms, node, inputs)
        case ElementwiseNode() | LinearNode():
            factors = [(inputs[0], node.index_src_l), (inputs[1], node.index_src_r)]
            return terms.einsum(factors, node.index_dst, node.extents, node.dtype)
        case _:
            raise TypeError(f"{node.label}: expected one of the five kinds of nodes or a cast")


def _transform_term(terms: Terms, node: TransformNode, source: Term) -> Term:
    # the negative indices of the two sides have nothing to do with each other
    labels = [index if index > 0 else ("summed", index) for index in node.index_src]
    extents = {**dict(zip(labels, source.shape, strict=True)), **dict(zip(node.index_dst, node.shape, strict=True))}
    return terms.einsum([(source, labels)], node.index_dst, extents, node.dtype, alpha=node.alpha)


def _sum_term(terms: Terms, node: ElementwiseNode, inputs: list[Term]) -> Term:
    sign = 1.0 if node.operation == "+" else -1.0
    scaled = []
    for side, (alpha, labels) in enumerate([(1.0, node.index_src_l), (sign, node.index_src_r)]):
        count = alpha * node.num_repeats(side)
        scaled.append(
            (1.0, terms.einsum([(inputs[side], labels)], node.index_dst, node.extents, node.dtype, alpha=count))
        )
    return terms.add(scaled, node.shape, node.dtype)
