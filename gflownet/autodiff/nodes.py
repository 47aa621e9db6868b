"""The five kinds of nodes of a tensor graph (seed 001, with the corrections of docs/tensor-graphs.md).

A node says what is computed, and carries the value and the gradient of the graph that ran it last. Nodes are compared
by identity and live as long as something uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import inf, isfinite, prod
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from gflownet.autodiff.functions import Function
from gflownet.autodiff.indices import checked, extents_of, joint_extents, negatives

Operation = Literal["+", "-", "*"]


class LeafKind(IntEnum):
    """What a leaf is: the seed's `LeafType`."""

    INPUT = 0
    PARAMETER = 1
    CONSTANT = 2


def is_continuous(dtype: torch.dtype) -> bool:
    """Return whether derivatives pass through numbers of a dtype; through whole numbers none does."""
    return dtype.is_floating_point or dtype.is_complex


class Node:
    """A tensor, and how it is computed from those of other nodes."""

    __slots__ = ("__weakref__", "dtype", "form", "forwarded", "gradient", "inputs", "name", "requires_grad", "shape")

    def __init__(
        self,
        inputs: Sequence[Node],
        *,
        shape: Sequence[int],
        dtype: torch.dtype,
        name: str | None,
        leaf_grad: bool = False,
    ) -> None:
        self.inputs, self.shape, self.dtype = tuple(inputs), tuple(shape), dtype
        self.name = name
        self.requires_grad = is_continuous(dtype) and (leaf_grad or any(node.requires_grad for node in inputs))
        self.form: Any = None  # cache of rules.node_form
        # Values of the last forward and backward pass of a Graph; nothing else of a node ever changes.
        self.forwarded: Tensor | None = None
        self.gradient: Tensor | None = None

    def _check_dtype(self) -> None:
        """Raise ValueError of a node that computes with whole numbers: only leaves and casts are of such a dtype."""
        source = self.inputs[0]
        if not is_continuous(source.dtype):
            message = f"expected a floating or complex operand, got {source.dtype} of {source.label}: Cast it first"
            raise ValueError(f"{self.label}: {message}")

    @property
    def label(self) -> str:
        """Return what messages call the node."""
        return f"{type(self).__name__} {self.name!r}" if self.name else type(self).__name__

    @property
    def rank(self) -> int:
        """Return the number of axes; 0 of a scalar, which a tensor of shape [1] is not."""
        return len(self.shape)

    def value(self) -> Tensor:
        """Return the tensor that the last forward pass computed.

        Raises:
            ValueError: no graph has run forward since, or a leaf holds nothing.
        """
        if self.forwarded is None:
            raise ValueError(
                f"{self.label}: value: expected a forward pass first (Graph.forward), or a leaf with a value"
            )
        return self.forwarded

    def has_grad(self) -> bool:
        """Return whether the node has a gradient: it depends, differentiably, on a leaf that wants one."""
        return self.requires_grad

    def grad(self) -> Tensor:
        """Return the gradient gathered so far; filling it by hand starts a backward pass as `Graph.backward` does.

        Raises:
            ValueError: the node has none (see `has_grad`), or has no value yet.
        """
        if not self.requires_grad:
            raise ValueError(f"{self.label}: grad: expected a node that depends on a leaf with requires_grad=True")
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.value().device)
        return self.gradient

    def __repr__(self) -> str:
        """Return the kind, the name and the shape."""
        return f"<{self.label} {list(self.shape)} {str(self.dtype).removeprefix('torch.')}>"

    def __add__(self, other: Node | float) -> Node:
        """Return the sum of the entries."""
        return _operators().add(self, other)

    def __radd__(self, other: float) -> Node:
        """Return the sum of the entries."""
        return _operators().add(self, other)

    def __sub__(self, other: Node | float) -> Node:
        """Return the difference of the entries."""
        return _operators().subtract(self, other)

    def __rsub__(self, other: float) -> Node:
        """Return the difference of the entries."""
        return _operators().subtract(other, self)

    def __mul__(self, other: Node | float) -> Node:
        """Return the product of the entries."""
        return _operators().multiply(self, other)

    def __rmul__(self, other: float) -> Node:
        """Return the product of the entries."""
        return _operators().multiply(self, other)

    def __truediv__(self, other: Node | float) -> Node:
        """Return the quotient of the entries."""
        return _operators().divide(self, other)

    def __rtruediv__(self, other: float) -> Node:
        """Return the quotient of the entries."""
        return _operators().divide(other, self)

    def __pow__(self, exponent: float) -> Node:
        """Return a power of the entries."""
        return _operators().power(self, exponent)

    def __neg__(self) -> Node:
        """Return the negated entries."""
        return _operators().multiply(self, -1.0)

    def __matmul__(self, other: Node) -> Node:
        """Return the matrix product."""
        return _operators().matrix_product(self, other)


def _operators() -> ModuleType:
    """Return what the operators of nodes build with; that module needs this one."""
    from gflownet.autodiff import operators

    return operators


class LeafNode(Node):
    """A tensor that is given: an input, a parameter, or a constant.

    A constant may be described instead of given: `fill` is the number that every entry is, `is_identity` says that the
    first half of the axes names a tensor's entry, the second half another's, and the entry is 1 where they are the
    same (a product of Kronecker deltas). Neither has to be stored to be computed with.
    """

    __slots__ = ("fill", "given", "is_identity", "kind")

    def __init__(
        self,
        shape: Sequence[int],
        *,
        kind: LeafKind = LeafKind.INPUT,
        value: Tensor | None = None,
        fill: float | None = None,
        is_identity: bool = False,
        requires_grad: bool | None = None,
        dtype: torch.dtype | None = None,
        name: str | None = None,
    ) -> None:
        """Describe the leaf.

        Args:
            shape: extents of its axes, each at least 1; none of a scalar.
            kind: input, parameter or constant.
            value: what it holds, of this shape; without one, it is bound when the graph runs.
            fill: of a constant: the number that every entry is.
            is_identity: of a constant: products of Kronecker deltas, see the class.
            requires_grad: whether a gradient is wanted; by default of inputs and parameters.
            dtype: of its entries; by default the value's, else torch's default.
            name: what messages and drawings call it.

        Raises:
            ValueError: the shape has an extent below 1, or shape or dtype is not that of the value, or a constant is
                described twice.
        """
        described = value.dtype if value is not None else torch.get_default_dtype()
        wanted = kind != LeafKind.CONSTANT if requires_grad is None else requires_grad
        shape = [int(extent) for extent in shape]
        super().__init__((), shape=shape, dtype=dtype or described, name=name, leaf_grad=wanted)
        self.kind, self.given, self.fill, self.is_identity = LeafKind(kind), value, fill, is_identity
        self._check()
        self.forwarded = None if value is None else value.detach()

    def _check(self) -> None:
        if any(extent < 1 for extent in self.shape):
            raise ValueError(f"{self.label}: shape {list(self.shape)}: expected extents of at least 1")
        if self.given is not None and tuple(self.given.shape) != self.shape:
            raise ValueError(f"{self.label}: value: expected shape {list(self.shape)}, got {list(self.given.shape)}")
        if self.given is not None and self.given.dtype != self.dtype:
            raise ValueError(f"{self.label}: value: expected dtype {self.dtype}, got {self.given.dtype}")
        descriptions = (self.given is not None) + (self.fill is not None) + self.is_identity
        if descriptions > 1 or (self.kind != LeafKind.CONSTANT and descriptions > (self.given is not None)):
            raise ValueError(f"{self.label}: expected a value, or of a constant a fill or an identity, got several")
        half = len(self.shape) // 2
        if self.is_identity and self.shape[:half] != self.shape[half:]:
            raise ValueError(f"{self.label}: shape {list(self.shape)}: expected an identity to have its axes twice")


class TransformNode(Node):
    """`dst[D] = alpha * sum over dummies of src[S]`: identity, transposition, reduction, broadcast, and mixtures."""

    __slots__ = ("alpha", "index_dst", "index_src")

    def __init__(
        self,
        source: Node,
        index_dst: Sequence[int],
        index_src: Sequence[int],
        *,
        alpha: float = 1.0,
        new_dims: Sequence[int] = (),
        name: str | None = None,
    ) -> None:
        """Describe the transformation.

        Args:
            source: what is transformed.
            index_dst: one index per axis of the result; negative ones are New.
            index_src: one index per axis of the source; negative ones are summed over. The negative indices of the
                two arrays have nothing to do with each other.
            alpha: a literal, never trained; a finite number.
            new_dims: the extents of the New indices, in the order of `index_dst`.
            name: what messages and drawings call it.

        Raises:
            ValueError: the arrays break a rule, which the message names with the node and the array; alpha is not
                finite; or the source is of whole numbers (see `CastNode`).
        """
        owner = f"TransformNode {name!r}" if name else "TransformNode"
        self.index_dst, self.index_src = checked(owner, "index_dst", index_dst), checked(owner, "index_src", index_src)
        self.alpha = _finite(owner, alpha)
        extents = extents_of(owner, "index_src", self.index_src, source.shape)
        for there, here, name_here in (
            (self.index_src, self.index_dst, "index_dst"),
            (self.index_dst, self.index_src, "index_src"),
        ):
            missing = sorted(i for i in here if i > 0 and i not in there)
            if missing:
                message = "expected positive indices on both sides"
                raise ValueError(f"{owner}: {name_here} {list(here)}: {message}, got {missing} on this one only")
        new = negatives(self.index_dst)
        if len(new) != len(new_dims) or any(extent < 1 for extent in new_dims):
            message = f"expected an extent of at least 1 for each of the {len(new)} New indices of index_dst"
            raise ValueError(f"{owner}: new_dims {list(new_dims)}: {message} {list(self.index_dst)}")
        extents = {i: n for i, n in extents.items() if i > 0} | dict(zip(new, new_dims, strict=True))
        shape = [extents[i] for i in self.index_dst]
        super().__init__([source], shape=shape, dtype=source.dtype, name=name)
        self._check_dtype()

    @property
    def source(self) -> Node:
        """Return what is transformed."""
        return self.inputs[0]

    @property
    def new_dims(self) -> tuple[int, ...]:
        """Return the extents of the New indices, in the order of `index_dst`."""
        return tuple(n for index, n in zip(self.index_dst, self.shape, strict=True) if index < 0)

    @property
    def dummy_index(self) -> int:
        """Return the number of indices that are summed over."""
        return len(negatives(self.index_src))

    @property
    def new_index(self) -> int:
        """Return the number of indices that only the result has."""
        return len(negatives(self.index_dst))

    @property
    def repeated_index(self) -> int:
        """Return the number of indices on both sides."""
        return len(self.index_dst) - self.new_index


def _finite(owner: str, alpha: float) -> float:
    try:
        found = float(alpha)
    except OverflowError:  # an integer beyond the floats
        found = inf
    if not isfinite(found):
        raise ValueError(f"{owner}: alpha: expected a finite number, got {found}")
    return found


class _PairNode(Node):
    """Two operands, an operation between their entries, and a sum over the indices the result does not have."""

    __slots__ = ("index_dst", "index_src_l", "index_src_r", "operation")

    def __init__(
        self,
        left: Node,
        right: Node,
        index_dst: Sequence[int],
        index_src_l: Sequence[int],
        index_src_r: Sequence[int],
        *,
        operation: Operation,
        name: str | None,
    ) -> None:
        kind = type(self).__name__
        owner = f"{kind} {name!r}" if name else kind
        if operation not in ("+", "-", "*"):
            raise ValueError(f"{owner}: operation: expected one of +, -, *, got {operation!r}")
        self.operation: Operation = operation
        self.index_dst = checked(owner, "index_dst", index_dst)
        self.index_src_l = checked(owner, "index_src_l", index_src_l)
        self.index_src_r = checked(owner, "index_src_r", index_src_r)
        extents = joint_extents(
            owner,
            extents_of(owner, "index_src_l", self.index_src_l, left.shape),
            extents_of(owner, "index_src_r", self.index_src_r, right.shape),
        )
        self._check_sides(owner, extents)
        if left.dtype != right.dtype:
            raise ValueError(f"{owner}: expected operands of one dtype (see Cast), got {left.dtype} and {right.dtype}")
        super().__init__([left, right], shape=[extents[i] for i in self.index_dst], dtype=left.dtype, name=name)
        self._check_dtype()

    def _check_sides(self, owner: str, extents: dict[int, int]) -> None:
        new = [index for index in self.index_dst if index < 0 or index not in extents]
        if new:
            message = f"expected indices of the operands, got {new}: compose with a Transform to bring in new ones"
            raise ValueError(f"{owner}: index_dst {list(self.index_dst)}: {message}")
        for name, indices in (("index_src_l", self.index_src_l), ("index_src_r", self.index_src_r)):
            lost = [index for index in indices if index > 0 and index not in self.index_dst]
            if lost:
                message = f"expected positive indices to be in index_dst {list(self.index_dst)}, got {lost}"
                raise ValueError(f"{owner}: {name} {list(indices)}: {message}: what is summed over is negative")

    @property
    def left(self) -> Node:
        """Return the left operand."""
        return self.inputs[0]

    @property
    def right(self) -> Node:
        """Return the right operand."""
        return self.inputs[1]

    @property
    def extents(self) -> dict[int, int]:
        """Return the extent of every index."""
        left = zip(self.index_src_l, self.left.shape, strict=True)
        return dict(left) | dict(zip(self.index_src_r, self.right.shape, strict=True))

    @property
    def dummy_index(self) -> int:
        """Return the number of indices that are summed over."""
        return len({*negatives(self.index_src_l), *negatives(self.index_src_r)})

    @property
    def repeated_index(self) -> int:
        """Return the number of indices in all three tensors."""
        return len({*self.index_dst} & {*self.index_src_l} & {*self.index_src_r})


class ElementwiseNode(_PairNode):
    """`dst[D] = sum over dummies of (L[l] op R[r])`, op one of +, -, *.

    Of + and - the sum covers the whole expression: an operand without a dummy index is counted once for each of its
    values.
    """

    __slots__ = ()

    def __init__(
        self,
        left: Node,
        right: Node,
        index_dst: Sequence[int],
        index_src_l: Sequence[int],
        index_src_r: Sequence[int],
        *,
        operation: Operation,
        name: str | None = None,
    ) -> None:
        """Describe the operation; the arrays as the class says.

        Raises:
            ValueError: the arrays break a rule, which the message names with the node and the array; or the operands
                differ in dtype, or are of whole numbers (see `CastNode`).
        """
        super().__init__(left, right, index_dst, index_src_l, index_src_r, operation=operation, name=name)

    def num_repeats(self, side: int) -> int:
        """Return how often an entry of an operand (0 left, 1 right) is counted: the extents of dummies it lacks."""
        own, other = (self.index_src_l, self.index_src_r)[:: 1 if side == 0 else -1]
        return prod(self.extents[index] for index in negatives(other) if index not in own)


class LinearNode(_PairNode):
    """The contraction `dst[D] = sum over dummies of L[l] R[r]`."""

    __slots__ = ()

    def __init__(
        self,
        left: Node,
        right: Node,
        index_dst: Sequence[int],
        index_src_l: Sequence[int],
        index_src_r: Sequence[int],
        *,
        name: str | None = None,
    ) -> None:
        """Describe the contraction; the arrays as the class says.

        Raises:
            ValueError: the arrays break a rule, which the message names with the node and the array; or the operands
                differ in dtype, or are of whole numbers (see `CastNode`).
        """
        super().__init__(left, right, index_dst, index_src_l, index_src_r, operation="*", name=name)


class NonlinearNode(Node):
    """A function of one variable, entry by entry."""

    __slots__ = ("function",)

    def __init__(self, source: Node, function: Function, *, name: str | None = None) -> None:
        """Describe the function applied.

        Args:
            source: what it is applied to.
            function: an elementary function or one composed of them.
            name: what messages and drawings call it.

        Raises:
            ValueError: the source is of whole numbers (see `CastNode`).
        """
        super().__init__([source], shape=source.shape, dtype=source.dtype, name=name)
        self._check_dtype()
        self.function = function

    @property
    def source(self) -> Node:
        """Return what the function is applied to."""
        return self.inputs[0]


class CastNode(Node):
    """The same entries in another dtype; the one node that computes with whole numbers or makes them."""

    __slots__ = ()

    def __init__(self, source: Node, dtype: torch.dtype, *, name: str | None = None) -> None:
        """Describe the conversion.

        Args:
            source: what is converted.
            dtype: to which dtype.
            name: what messages and drawings call it.
        """
        super().__init__([source], shape=source.shape, dtype=dtype, name=name)

    @property
    def source(self) -> Node:
        """Return what is converted."""
        return self.inputs[0]
