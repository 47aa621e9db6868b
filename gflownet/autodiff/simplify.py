"""A graph of nodes made simpler: by way of terms, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gflownet.autodiff.contraction import contraction_order
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.node_terms import terms_of
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
)
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Cast, Einsum, Labels, Leaf, Map, Sum, Term, View, ordered


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


@dataclass(frozen=True)
class _Operand:
    """A node and a label, above 0, for each of its axes, each once."""

    node: Node
    labels: Labels


class _Rebuilt:
    def __init__(self, leaves: Sequence[LeafNode]) -> None:
        self._leaves = leaves
        self._nodes: dict[Term, Node] = {}
        self._constants: dict[tuple[object, ...], Node] = {}

    def nodes(self, outputs: Sequence[Term]) -> list[Node]:
        """Return the nodes that compute terms."""
        for term in ordered(outputs):
            self._nodes[term] = self._node(term)
        return [self._nodes[term] for term in outputs]

    def _node(self, term: Term) -> Node:
        match term:
            case Leaf():
                return self._leaves[term.slot]
            case Map():
                return NonlinearNode(self._nodes[term.inputs[0]], term.function)
            case Cast():
                return CastNode(self._nodes[term.inputs[0]], term.dtype)
            case Einsum():
                return self._einsum(term)
            case Sum():
                return self._sum(term)
            case View():
                return self._view(term)
            case _:
                raise TypeError(f"{type(term).__name__}: expected one of the forms of gflownet.autodiff.terms")

    def _constant(self, term: Term, shape: Sequence[int], fill: float | None) -> Node:
        """Return the constant that is `fill` everywhere, or without one the identity."""
        key = (tuple(shape), fill, term.dtype)
        if key not in self._constants:
            is_identity = fill is None
            self._constants[key] = LeafNode(
                shape, kind=LeafKind.CONSTANT, fill=fill, is_identity=is_identity, dtype=term.dtype
            )
        return self._constants[key]

    def _operand(self, source: Term, labels: Labels) -> _Operand:
        """Return a factor with each label once: a label that is there twice is met with an identity."""
        node, own = self._nodes[source], tuple(label + 1 for label in labels)
        while repeated := [axis for axis, label in enumerate(own) if own[:axis].count(label) == 1]:
            shape = [node.shape[axis] for axis in repeated]
            fresh = {axis: -max(own) - 1 - k for k, axis in enumerate(repeated)}
            # a third of a label waits for the next time, under a number of its own
            third = {axis: max(own) + 1 + axis for axis, label in enumerate(own) if own[:axis].count(label) > 1}
            left = [fresh.get(axis, third.get(axis, label)) for axis, label in enumerate(own)]
            right = [own[axis] for axis in repeated] + [fresh[axis] for axis in repeated]
            dst = [label for axis, label in enumerate(left) if axis not in fresh]
            node = LinearNode(node, self._constant(source, shape + shape, None), dst, left, right)
            own = tuple(label for axis, label in enumerate(own) if axis not in fresh)
        return _Operand(node, own)

    def _einsum(self, term: Einsum) -> Node:
        factors = [self._operand(source, labels) for source, labels in zip(term.inputs, term.labels, strict=True)]
        out = tuple(label + 1 for label in term.out)
        if len(factors) == 1:
            return _transformed(factors[0], out)
        extents = {label + 1: extent for label, extent in enumerate(term.extents)}
        for chosen in contraction_order([factor.labels for factor in factors], out, extents):
            left, right = (factors[k] for k in chosen)
            factors = [factor for k, factor in enumerate(factors) if k not in chosen]
            wanted = set(out).union(*(factor.labels for factor in factors))
            both = dict.fromkeys((*left.labels, *right.labels))
            dst = tuple(label for label in both if label in wanted) if factors else out
            arrays = [[label if label in dst else -label for label in operand.labels] for operand in (left, right)]
            factors.append(_Operand(LinearNode(left.node, right.node, dst, *arrays), dst))
        return factors[0].node

    def _view(self, term: View) -> Node:
        out = tuple(label + 1 for label in term.out)
        core = self._operand(term.inputs[0], term.labels) if term.inputs else None
        every = list(out)
        for time in range(1, max((out.count(label) for label in out), default=1)):
            # deltas: the axes that name a label again get labels of their own
            repeated = [axis for axis, label in enumerate(out) if out[:axis].count(label) == time]
            shape = [term.shape[axis] for axis in repeated]
            for axis in repeated:
                every[axis] = max(every) + 1
            labels = (*(out[axis] for axis in repeated), *(every[axis] for axis in repeated))
            identity = _Operand(self._constant(term, shape + shape, None), labels)
            core = identity if core is None else _multiplied(core, identity)
        if core is None:
            return self._constant(term, term.shape, term.alpha)
        return _transformed(core, tuple(every), term.alpha, dict(zip(every, term.shape, strict=True)))

    def _sum(self, term: Sum) -> Node:
        addends = [
            (coefficient, self._addend(term, source))
            for coefficient, source in zip(term.coefficients, term.inputs, strict=True)
        ]
        # one without a coefficient first; of the others a sign is the operation's
        addends.sort(key=lambda addend: addend[0] != 1.0)
        coefficient, total = addends[0]
        if coefficient != 1.0:
            total = _Operand(_transformed(total, total.labels, coefficient), total.labels)
        for coefficient, operand in addends[1:]:
            if abs(coefficient) != 1.0:
                operand = _Operand(_transformed(operand, operand.labels, abs(coefficient)), operand.labels)
            dst = tuple(sorted({*total.labels, *operand.labels}))
            operation = "+" if coefficient > 0 else "-"
            node = ElementwiseNode(total.node, operand.node, dst, total.labels, operand.labels, operation=operation)
            total = _Operand(node, dst)
        return _transformed(total, tuple(range(1, len(term.shape) + 1)))

    def _addend(self, term: Sum, source: Term) -> _Operand:
        axes = tuple(range(1, len(term.shape) + 1))
        if not isinstance(source, View) or source.is_sparse:
            return _Operand(self._nodes[source], axes)
        if not source.inputs:
            return _Operand(self._constant(source, (), 1.0), ())
        core = self._operand(source.inputs[0], source.labels)
        place = {label + 1: axis for label, axis in zip(source.out, axes, strict=True)}
        return _Operand(core.node, tuple(place[label] for label in core.labels))


def _multiplied(left: _Operand, right: _Operand) -> _Operand:
    """Return the product without sums."""
    dst = tuple(dict.fromkeys((*left.labels, *right.labels)))
    return _Operand(LinearNode(left.node, right.node, dst, left.labels, right.labels), dst)


def _transformed(operand: _Operand, out: Labels, alpha: float = 1.0, extents: Mapping[int, int] | None = None) -> Node:
    """Return an operand times a number with its axes in the order of `out`: what that lacks is summed, or New."""
    if operand.labels == out and alpha == 1.0:
        return operand.node
    dst = [label if label in operand.labels else -label for label in out]
    src = [label if label in out else -label for label in operand.labels]
    new_dims = [(extents or {})[label] for label in out if label not in operand.labels]
    return TransformNode(operand.node, dst, src, alpha=alpha, new_dims=new_dims)
