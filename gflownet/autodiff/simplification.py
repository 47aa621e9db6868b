"""A graph of nodes made simpler: by way of terms, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.rules import node_form, value
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Labels, Leaf, Sum, Term, View, extents_of, ordered


def simplify(node: Node) -> Node:
    """Return a node of the same value, from a graph of the same kinds of nodes and of the same leaves.

    Equal nodes become one, deltas and zeros go, coefficients are gathered, transformations merge with what uses them.

    Returns:
        The node itself where that does not make its graph smaller.
    """
    order = topological_order([node])
    terms = Terms()
    found, leaves = terms_of(terms, order)
    simpler = _Rebuilt(leaves).nodes([found[node]])[0]
    return simpler if len(topological_order([simpler])) < len(order) else node


class _Rebuilt:
    """The nodes that compute terms."""

    def __init__(self, leaves: Sequence[LeafNode]) -> None:
        self._leaves, self._terms, self._builder = leaves, Terms(), Nodes()
        self._nodes: dict[Term, Node] = {}

    def nodes(self, outputs: Sequence[Term]) -> list[Node]:
        """Return the nodes that compute terms."""
        for term in ordered(outputs):
            self._nodes[term] = self._node(term)
        return [self._nodes[term] for term in outputs]

    def _node(self, term: Term) -> Node:
        if isinstance(term, Leaf):
            return self._leaves[term.slot]
        if isinstance(term, View) and not term.inputs:
            if not term.is_sparse:
                return self._builder.full(term.alpha, term.shape, term.dtype)
            one = self._builder.full(1.0, (), term.dtype)
            return self._builder.combine([(term.alpha, one, ())], term.out, extents_of(term), term.dtype)
        if isinstance(term, Sum):
            axes = tuple(range(len(term.shape)))
            parts = [
                (coefficient, *self._addend(source, axes))
                for coefficient, source in zip(term.coefficients, term.inputs, strict=True)
            ]
            return self._builder.combine(parts, axes, dict(enumerate(term.shape)), term.dtype)
        inputs = [self._nodes[source] for source in term.inputs]
        return value(self._builder, self._terms.form(term), inputs, term.dtype)

    def _addend(self, source: Term, axes: Labels) -> tuple[Node, Labels]:
        """Return an addend without the axes that it is repeated along: the sum broadcasts it."""
        if not isinstance(source, View) or source.is_sparse:
            return self._nodes[source], axes
        if not source.inputs:
            return self._builder.full(1.0, (), source.dtype), ()
        axis_of = dict(zip(source.out, axes, strict=True))
        return self._nodes[source.inputs[0]], tuple(axis_of[label] for label in source.labels)


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
        if isinstance(node, LeafNode) and not node.is_described:
            term = terms.leaf(len(leaves), node.shape, node.dtype)
            leaves.append(node)
        else:
            term = _term_of(terms, node, [found[source] for source in node.inputs])
            if node in opaque:
                term = terms.alias(term)
        found[node] = term
    return found, leaves


def _term_of(terms: Terms, node: Node, inputs: list[Term]) -> Term:
    if not isinstance(node, LeafNode):
        return value(terms, node_form(node), inputs, node.dtype)
    if node.fill is not None:
        return terms.full(float(node.fill), node.shape, node.dtype)
    return terms.identity(node.shape[: node.rank // 2], node.dtype)
