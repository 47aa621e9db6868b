"""Builds nodes for derivatives and simplified graphs: contractions in a good order, few transforms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite, prod
from typing import NamedTuple

import torch

from gflownet.autodiff import nodes as node_classes
from gflownet.autodiff.contraction import contraction_order
from gflownet.autodiff.custom_node import Applied
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.autodiff.rules import Form, Labels, Shape, value
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Extents, Leaf, Sum, Term, View, extents_of, ordered


class _Operand(NamedTuple):
    """A node with a positive label for each of its axes, no label twice."""

    node: Node
    labels: tuple[int, ...]


class Nodes:
    """Builds nodes; equal constants are one leaf."""

    def __init__(self) -> None:
        self._constants: dict[tuple[object, ...], Node] = {}

    def form(self, item: Node) -> Form:
        """Return the operation that computes a node."""
        return item.form

    def ordered(self, outputs: Iterable[Node], sources: Collection[Node]) -> list[Node]:
        """Return all nodes that outputs depend on, each after its inputs."""
        return topological_order(outputs)

    def full(self, value: float, shape: Shape, dtype: torch.dtype) -> Node:
        """Return the constant leaf with one value in every entry."""
        return self._constant(shape, value, dtype)

    def identity(self, shape: Shape, dtype: torch.dtype) -> Node:
        """Return the leaf of shape `[*shape, *shape]` that is 1 where both halves of the index agree, else 0."""
        return self._constant((*shape, *shape), None, dtype) if shape else self.full(1.0, (), dtype)

    def _constant(self, shape: Shape, fill: float | None, dtype: torch.dtype) -> Node:
        key = (shape, fill, dtype)
        if key not in self._constants:
            self._constants[key] = LeafNode(
                shape, kind=LeafKind.CONSTANT, fill=fill, is_identity=fill is None, dtype=dtype
            )
        return self._constants[key]

    def map(self, function: Function, source: Node) -> Node:
        """Return a function of every entry."""
        return NonlinearNode(source, function)

    def cast(self, source: Node, dtype: torch.dtype) -> Node:
        """Return the entries in another dtype."""
        return node_classes.CastNode(source, dtype)

    def call(self, function: Applied, inputs: Sequence[Node]) -> Node:
        """Return a function of whole tensors."""
        return function.node(inputs)

    def combine(
        self, parts: Sequence[tuple[float, Node, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Node:
        """Return a linear combination, see `Algebra.combine`; a label twice in one operand is its diagonal."""
        result, sizes = _positive(out), {label + 1: extent for label, extent in extents.items()}
        operands = [(alpha, self._operand(node, _positive(labels))) for alpha, node, labels in parts]
        if len(operands) > 2 or 0 in sizes.values():  # an empty sum cannot be undone by a coefficient
            operands = [(alpha, _reduced(operand, result)) for alpha, operand in operands]
        alpha, operand = operands[0] if len(operands) == 1 else (1.0, self._sum(operands, result, sizes))
        return self._laid_out(operand, result, sizes, alpha)

    def multiply(
        self, factors: Sequence[tuple[Node, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Node:
        """Return a product, see `Algebra.multiply`; a label twice in one factor is its diagonal."""
        result, sizes = _positive(out), {label + 1: extent for label, extent in extents.items()}
        operands = [self._operand(node, _positive(labels)) for node, labels in factors]
        path = contraction_order([operand.labels for operand in operands], result, sizes) if len(operands) > 2 else ()
        for positions in path[:-1]:
            left, right = (operands[k] for k in positions)
            operands = [operand for k, operand in enumerate(operands) if k not in positions]
            needed = {*result}.union(*(operand.labels for operand in operands))
            labels = dict.fromkeys((*left.labels, *right.labels))
            operands.append(_product(left, right, [label for label in labels if label in needed]))
        if len(operands) == 2:
            present = {*operands[0].labels, *operands[1].labels}
            dst = [label for label in dict.fromkeys(result) if label in present]
            operands = [_product(operands[0], operands[1], dst)]
        return self._laid_out(operands[0], result, sizes)

    def _operand(self, node: Node, labels: list[int]) -> _Operand:
        """Return a factor with each label once: a repeated label is contracted with an identity."""
        while len({*labels}) < len(labels):
            repeated = [axis for axis, label in enumerate(labels) if labels[:axis].count(label) == 1]
            shape = tuple(node.shape[axis] for axis in repeated)
            highest = max(labels)
            # a third occurrence of a label gets another name and waits for the next round
            renamed = {axis: highest + 1 + axis for axis, label in enumerate(labels) if labels[:axis].count(label) > 0}
            left = [renamed.get(axis, label) for axis, label in enumerate(labels)]
            right = [labels[axis] for axis in repeated] + [renamed[axis] for axis in repeated]
            remaining = [label for axis, label in enumerate(left) if axis not in repeated]
            node = _product(
                _Operand(node, tuple(left)), _Operand(self.identity(shape, node.dtype), tuple(right)), remaining
            ).node
            labels = [label for axis, label in enumerate(labels) if axis not in repeated]
        return _Operand(node, tuple(labels))

    def _laid_out(self, operand: _Operand, out: list[int], extents: Mapping[int, int], alpha: float = 1.0) -> Node:
        """Return a multiple of an operand with its axes as in `out`, which may repeat a label (a delta)."""
        axes = list(out)
        for time in range(1, max(map(out.count, out)) if len({*out}) < len(out) else 1):
            repeated = [axis for axis, label in enumerate(out) if out[:axis].count(label) == time]
            for axis in repeated:
                axes[axis] = max((*axes, *extents)) + 1
            identity = self.identity(tuple(extents[out[axis]] for axis in repeated), operand.node.dtype)
            labels = (*(out[axis] for axis in repeated), *(axes[axis] for axis in repeated))
            factor = _Operand(identity, labels)
            is_one = isinstance(operand.node, LeafNode) and operand.node.fill == 1.0 and not operand.labels
            dst = list(dict.fromkeys((*operand.labels, *labels)))
            operand = factor if is_one else _product(operand, factor, dst)
            extents = {**extents, **{axes[axis]: extents[out[axis]] for axis in repeated}}
        if not isfinite(alpha):  # no literal of a Transform, but the slope of `log(0)*x`
            constant = _Operand(self.full(alpha, (), operand.node.dtype), ())
            operand, alpha = _product(operand, constant, list(operand.labels)), 1.0
        return _transformed(operand, axes, alpha, extents)

    def _sum(self, operands: list[tuple[float, _Operand]], out: Sequence[int], extents: Mapping[int, int]) -> _Operand:
        """Return a combination of at least two operands; of labels to sum, only two operands may have any."""
        scaled: list[tuple[float, _Operand]] = []
        for k, (alpha, operand) in enumerate(operands):
            other_labels = {label for j, (_, other) in enumerate(operands) if j != k for label in other.labels}
            # an ElementwiseNode counts an operand once for every value of a dummy that it lacks
            num_repeats = prod(extents[label] for label in other_labels.difference(operand.labels, out))
            scaled.append((alpha / num_repeats, operand))
        scaled.sort(key=lambda pair: pair[0] != 1.0)  # one without a coefficient first
        factor, total = scaled[0]
        total = _scaled(factor, total)
        for alpha, operand in scaled[1:]:
            operand = _scaled(abs(alpha), operand)
            dst = [label for label in dict.fromkeys(out) if label in total.labels or label in operand.labels]
            arrays = [_signed(labels, dst) for labels in (total.labels, operand.labels)]
            operation = "+" if alpha > 0 else "-"
            node = ElementwiseNode(total.node, operand.node, dst, *arrays, operation=operation)
            total = _Operand(node, tuple(dst))
        return total


def _positive(labels: Labels) -> list[int]:
    """Return labels as indices, which start at 1."""
    return [label + 1 for label in labels]


def _signed(labels: Sequence[int], dst: Sequence[int]) -> list[int]:
    """Return labels as an index array: negative where the result lacks them."""
    return [label if label in dst else -label for label in labels]


def _product(left: _Operand, right: _Operand, dst: Sequence[int]) -> _Operand:
    """Return a product of two operands: entrywise where nothing is summed and the left one has all labels."""
    arrays = [_signed(operand.labels, dst) for operand in (left, right)]
    if {*left.labels} == {*dst} and {*right.labels} <= {*dst}:
        node: Node = ElementwiseNode(left.node, right.node, dst, *arrays, operation="*")
    else:
        node = LinearNode(left.node, right.node, dst, *arrays)
    return _Operand(node, tuple(dst))


def _scaled(alpha: float, operand: _Operand) -> _Operand:
    return _Operand(_transformed(operand, operand.labels, alpha, {}), operand.labels)


def _reduced(operand: _Operand, out: Sequence[int]) -> _Operand:
    """Return an operand summed over the labels that are not in `out`."""
    labels = tuple(label for label in operand.labels if label in out)
    return _Operand(_transformed(operand, labels, 1.0, {}), labels)


def _transformed(operand: _Operand, out: Sequence[int], alpha: float, extents: Mapping[int, int]) -> Node:
    """Return a multiple of an operand with the axes `out`: labels that these lack are summed, others are New."""
    if operand.labels == tuple(out) and alpha == 1.0:
        return operand.node
    dst, src = _signed(out, operand.labels), _signed(operand.labels, out)
    return TransformNode(
        operand.node, dst, src, alpha=alpha, new_dims=[extents[k] for k in out if k not in operand.labels]
    )


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

    `order` has each node after its inputs; `opaque` nodes, to differentiate by, become an `Alias`.
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
