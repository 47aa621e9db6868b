"""Nodes as terms, and terms as nodes: simplification of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.rules import value
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Labels, Leaf, Sum, Term, View, extents_of, ordered


def simplify(node: Node) -> Node:
    """Return a node of the same value on the same leaves with fewer nodes, or the node itself.

    Equal nodes are merged, deltas and zeros removed, coefficients collected, transformations merged into their users.
    """
    order = topological_order([node])
    terms, builder = Terms(), Nodes()
    term_of, leaves = terms_of(terms, order)
    nodes: dict[Term, Node] = {}
    for term in ordered([term_of[node]]):
        nodes[term] = leaves[term.slot] if isinstance(term, Leaf) else _node_of(builder, terms, term, nodes)
    simpler = nodes[term_of[node]]
    return simpler if len(topological_order([simpler])) < len(order) else node


def _node_of(builder: Nodes, terms: Terms, term: Term, nodes: Mapping[Term, Node]) -> Node:
    if isinstance(term, View) and not term.inputs:
        if not term.is_sparse:
            return builder.full(term.alpha, term.shape, term.dtype)
        one = builder.full(1.0, (), term.dtype)
        return builder.combine([(term.alpha, one, ())], term.out, extents_of(term), term.dtype)
    if isinstance(term, Sum):
        axes = tuple(range(len(term.shape)))
        rows = zip(term.coefficients, term.inputs, strict=True)
        parts = [(coefficient, *_addend(builder, source, axes, nodes)) for coefficient, source in rows]
        return builder.combine(parts, axes, dict(enumerate(term.shape)), term.dtype)
    return value(builder, terms.form(term), [nodes[source] for source in term.inputs], term.dtype)


def _addend(builder: Nodes, source: Term, axes: Labels, nodes: Mapping[Term, Node]) -> tuple[Node, Labels]:
    """Return an addend without its repeated axes: the sum broadcasts it."""
    if not isinstance(source, View) or source.is_sparse:
        return nodes[source], axes
    if not source.inputs:
        return builder.full(1.0, (), source.dtype), ()
    axis_of = dict(zip(source.out, axes, strict=True))
    return nodes[source.inputs[0]], tuple(axis_of[label] for label in source.labels)


def terms_of(
    terms: Terms, order: Sequence[Node], *, opaque: Collection[Node] = ()
) -> tuple[dict[Node, Term], list[LeafNode]]:
    """Return the term of every node, and the leaves that are arguments, in the order of `Leaf.slot`.

    Args:
        terms: builds the terms.
        order: nodes, each after its inputs.
        opaque: nodes to differentiate by, which become an `Alias`.
    """
    term_of: dict[Node, Term] = {}
    leaves: list[LeafNode] = []
    for node in order:
        if isinstance(node, LeafNode) and not node.is_described:
            term = terms.leaf(len(leaves), node.shape, node.dtype)
            leaves.append(node)
        else:
            term = _term_of(terms, node, [term_of[source] for source in node.inputs])
            if node in opaque:
                term = terms.alias(term)
        term_of[node] = term
    return term_of, leaves


def _term_of(terms: Terms, node: Node, inputs: list[Term]) -> Term:
    if not isinstance(node, LeafNode):
        return value(terms, node.form, inputs, node.dtype)
    if node.fill is not None:
        return terms.full(float(node.fill), node.shape, node.dtype)
    return terms.identity(node.shape[: node.rank // 2], node.dtype)
