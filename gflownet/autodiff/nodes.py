"""The classes of nodes of a tensor graph, and arithmetic on nodes.

A node describes an operation and holds the value and the gradient of the last pass of a `Graph`. Nodes are compared by
identity. Operators (+ - * / ** @) work entry by entry: an operand of lower rank is broadcast over the leading axes of
the other operand if its shape equals the last axes of that operand, so a scalar fits any shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from math import prod
from numbers import Real
from typing import Any, ClassVar, Literal, Self, SupportsIndex, cast
from weakref import ref

import torch
from torch import Tensor

from gflownet.autodiff import rules
from gflownet.autodiff.functions import Function
from gflownet.autodiff.node_checks import (
    Indices,
    TensorSlot,
    check_leaf,
    check_operand,
    checked,
    finite,
    matrix_product_indices,
    negatives,
    pair_extents,
    transform_shape,
)
from gflownet.autodiff.rules import Combination, Conversion, Entrywise, Form, Labels, Product
from gflownet.autodiff.tensor_algebra import Tensors

Operation = Literal["+", "-", "*"]
_State = tuple[dict[str, Any] | None, dict[str, Any]]  # attributes in `__dict__` and in slots


class _Nodes:
    """Nodes as one flat item of a copy or a pickle, so that graphs of any depth are copied.

    The memo of the copy keeps it alive, and with it the nodes' references to it: later nodes of the same copy are
    described by the nodes that are in earlier items.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    @classmethod
    def of(cls, sink: Node) -> tuple[_Nodes, int]:
        """Return the item that has a node, and its place there; a new one has all its inputs without an item."""
        found = sink._item and sink._item[0]()
        if found is not None and sink._item is not None:
            return found, sink._item[1]
        item, stack = cls([]), [sink]
        order: dict[Node, bool] = {}  # whether the inputs are done
        nodes: list[Node] = []
        while stack:
            node = stack.pop()
            if order.get(node) is False:
                order[node] = True
                node._item = (ref(item), len(nodes))
                nodes.append(node)
            elif node not in order and (node._item is None or node._item[0]() is None):
                order[node] = False
                stack.append(node)
                stack.extend(source for source in node.inputs if source not in order)
        item.nodes = nodes
        return item, len(nodes) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Describe every node by class, places of inputs and attributes; an input of another item is that one."""
        rows = []
        for node in self.nodes:
            items = [_Nodes.of(source) for source in node.inputs]
            places = tuple([place if item is self else (item, place) for item, place in items])
            rows.append((type(node), places, node.__getstate__()))
        return _restored, (rows,)


def _restored(rows: Sequence[tuple[type[Node], Sequence[Any], _State]]) -> _Nodes:
    """Return the nodes of `_Nodes.__reduce__`."""
    nodes: list[Node] = []
    for kind, places, (attributes, slots) in rows:
        node = kind.__new__(kind)
        if attributes:
            node.__dict__.update(attributes)
        for name, each in slots.items():
            setattr(node, name, each)
        node.inputs = tuple([nodes[at] if isinstance(at, int) else at[0].nodes[at[1]] for at in places])
        nodes.append(node)
    return _Nodes(nodes)


def _at(item: _Nodes, place: int) -> Node:
    return item.nodes[place]


class LeafKind(IntEnum):
    """Role of a leaf."""

    INPUT = 0
    PARAMETER = 1
    CONSTANT = 2


class Node(TensorSlot):
    """A tensor and the operation that computes it from other nodes."""

    __slots__ = ("_item", "_known_form", "inputs")
    argument_name: ClassVar[str] = ""  # attribute with the part of the operation that is no index

    def __init__(
        self,
        inputs: Sequence[Node],
        *,
        shape: Sequence[int],
        dtype: torch.dtype,
        name: str | None,
        leaf_grad: bool = False,
    ) -> None:
        requires_grad = leaf_grad or any(node.requires_grad for node in inputs)
        super().__init__(shape, dtype, name=name, requires_grad=requires_grad)
        self.inputs = tuple(inputs)
        self._known_form: Form | None = None
        self._item: tuple[ref[_Nodes], int] | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Copy and pickle without recursion; a node that is shared within a copy stays one node."""
        return _at, _Nodes.of(self)

    def __getstate__(self) -> _State:
        """Return the attributes other than the inputs."""
        attributes, slots = cast(_State, super().__getstate__())
        return attributes, slots | {"_item": None, "_known_form": None, "inputs": ()}

    def __copy__(self) -> Self:
        """Return a node with the same inputs."""
        (node,) = _restored([(type(self), (), self.__getstate__())]).nodes
        node.inputs = self.inputs
        return cast(Self, node)

    @property
    def form(self) -> Form:
        """Return the operation that computes the node; index arrays become labels.

        Raises:
            TypeError: the node is a leaf.
        """
        if self._known_form is None:
            self._known_form = self._form()
        return self._known_form

    def _form(self) -> Form:
        raise TypeError(f"{self.label}: expected a node that is computed from others")

    @classmethod
    def type_name(cls) -> str:
        """Return the name of the class in JSON and text: lower case, without `Node`."""
        return cls.__name__.removesuffix("Node").lower()

    def arrays(self) -> tuple[Indices, ...]:
        """Return the index arrays, the result's first: equal integers are one index; none for other operations."""
        return ()

    @property
    def argument(self) -> Hashable:
        """Return the part of the operation that is no index: a coefficient, a sign, a function or a dtype."""
        return getattr(self, self.argument_name, None)

    def forward_(self, *values: Tensor) -> Tensor:
        """Return the value of the node, given the values of its inputs."""
        return rules.value(Tensors(), self.form, values, self.dtype)

    def backward_(self, gradient: Tensor, value: Tensor, *values: Tensor) -> Sequence[Tensor | None]:
        """Return the contribution to the gradient of each input, None for an input without a gradient.

        The derivative is algebraic: complex entries are not conjugated. `gradient` has the shape of the node, `value`
        is its value, `values` are those of its inputs.
        """
        return [
            rules.reverse(Tensors(), self.form, values, which, gradient) if source.has_grad() else None
            for which, source in enumerate(self.inputs)
        ]

    def computed(self, values: Sequence[Tensor]) -> Tensor:
        """Return the value of `forward_`; a custom node checks it."""
        return self.forward_(*values)

    def pulled_back(self, gradient: Tensor, values: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the contributions of `backward_`; a custom node checks them."""
        return self.backward_(gradient, self.value(), *values)

    def forward(self) -> None:
        """Compute the value of this node alone; the inputs have theirs already.

        Raises:
            ValueError: an input has no value, or a leaf holds none.
        """
        self.forwarded = self.computed([source.value() for source in self.inputs])

    @torch.no_grad()
    def backward(self) -> None:
        """Add this node's contribution to the gradients of its inputs; without a gradient, do nothing.

        Raises:
            ValueError: the node or an input has no value.
        """
        if self.gradient is None or not self.inputs:
            return
        parts = self.pulled_back(self.gradient, [source.value() for source in self.inputs])
        for source, part in zip(self.inputs, parts, strict=True):
            if part is not None and source.has_grad():
                source.grad().add_(part)

    def __add__(self, other: Node | float) -> Node:
        return elementwise(self, other, "+")

    __radd__ = __add__

    def __sub__(self, other: Node | float) -> Node:
        return elementwise(self, other, "-")

    def __rsub__(self, other: float) -> Node:
        return elementwise(other, self, "-")

    def __mul__(self, other: Node | float) -> Node:
        return multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Node | float) -> Node:
        return divide(self, other)

    def __rtruediv__(self, other: float) -> Node:
        return divide(other, self)

    def __pow__(self, exponent: float) -> Node:
        return NonlinearNode(self, Function.parse(f"power({_number(exponent)!r})"))

    def __neg__(self) -> Node:
        return multiply(self, -1.0)

    def __matmul__(self, other: Node) -> Node:
        return matrix_product(self, other)


class LeafNode(Node):
    """A given tensor: an input, a parameter, or a constant.

    A constant may be described instead of stored: `fill` is the value of all entries; with `is_identity` an entry is 1
    where the first half of its index equals the second half, else 0 (a product of Kronecker deltas).
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
            shape: extents of its axes; none for a scalar.
            kind: input, parameter or constant.
            value: tensor of this shape; without a value, it is bound when the graph runs.
            fill: value of all entries of a constant.
            is_identity: of a constant, see the class.
            requires_grad: whether a gradient is computed; by default for inputs and parameters.
            dtype: by default the dtype of the value, else torch's default.
            name: shown in messages and drawings.

        Raises:
            ValueError: an extent is below 0, shape or dtype differ from the value's, or a constant is described twice.
        """
        default = value.dtype if value is not None else torch.get_default_dtype()
        leaf_grad = kind != LeafKind.CONSTANT if requires_grad is None else requires_grad
        shape = [int(extent) for extent in shape]
        super().__init__((), shape=shape, dtype=dtype or default, name=name, leaf_grad=leaf_grad)
        self.kind, self.given, self.fill, self.is_identity = LeafKind(kind), value, fill, is_identity
        check_leaf(self, value, fill, is_identity=is_identity, is_constant=kind == LeafKind.CONSTANT)
        self.forwarded = None if value is None else value.detach()

    @property
    def is_described(self) -> bool:
        """Return whether the leaf is a constant that need not be stored."""
        return self.fill is not None or self.is_identity

    def held(self, device: torch.device | None = None) -> Tensor:
        """Return the value of the leaf; a constant is moved to the device, by default it stays where it is.

        Raises:
            ValueError: the leaf has no value.
        """
        if self.given is not None:
            return self.given.to(device) if self.kind == LeafKind.CONSTANT else self.given
        if self.fill is not None:
            return torch.full((), self.fill, dtype=self.dtype, device=device).expand(self.shape)
        if self.is_identity:
            size = prod(self.shape[: self.rank // 2])
            return torch.eye(size, dtype=self.dtype, device=device).reshape(self.shape)
        raise ValueError(f"{self.label}: value: expected one of shape {list(self.shape)}, got none")

    def forward(self) -> None:
        """Keep the bound value, else take the one that the leaf holds; raise ValueError without either."""
        if self.forwarded is None:
            self.forwarded = self.held()


class _UnaryNode(Node):
    """A node with one operand."""

    __slots__ = ()

    @property
    def source(self) -> Node:
        """Return the operand."""
        return self.inputs[0]


class TransformNode(_UnaryNode):
    """`dst[D] = alpha * sum over dummies of src[S]`: transposition, reduction, broadcast, scaling and combinations."""

    __slots__ = ("alpha", "index_dst", "index_src")
    argument_name = "alpha"

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
            source: operand.
            index_dst: one index per axis of the result; negative ones are New.
            index_src: one index per axis of the source; negative ones are summed over. Negative indices of the two
                arrays are unrelated.
            alpha: a finite number, never trained.
            new_dims: extents of the New indices, in the order of `index_dst`.
            name: shown in messages and drawings.

        Raises:
            ValueError: an index array breaks a rule, alpha is not finite, or the source has an integer dtype.
        """
        owner = f"TransformNode {name!r}" if name else "TransformNode"
        self.index_dst, self.index_src = checked(owner, "index_dst", index_dst), checked(owner, "index_src", index_src)
        self.alpha = finite(owner, alpha)
        shape = transform_shape(owner, self.index_dst, self.index_src, source.shape, new_dims)
        super().__init__([source], shape=shape, dtype=source.dtype, name=name)
        check_operand(self, self.inputs[0])

    def _form(self) -> Form:
        out, source = _labels(*self.arrays())
        extents = dict(zip((*out, *source), (*self.shape, *self.source.shape), strict=True))
        return Combination((self.alpha,), (source,), out, extents)

    def arrays(self) -> tuple[Indices, ...]:
        """Return both index arrays, whose negative indices, which are unrelated, differ."""
        lowest = min((0, *self.index_dst))
        return self.index_dst, tuple([index + lowest if index < 0 else index for index in self.index_src])

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


class _PairNode(Node):
    """Two operands, an operation between their entries, and a sum over the indices that the result lacks."""

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
        name: str | None = None,
    ) -> None:
        """Describe the operation.

        Args:
            left: left operand.
            right: right operand.
            index_dst: positive indices of the result.
            index_src_l: indices of the left operand; negative ones are summed over.
            index_src_r: indices of the right operand, likewise.
            operation: between entries.
            name: shown in messages and drawings.

        Raises:
            ValueError: an index array breaks a rule, or the operands differ in dtype or have an integer dtype.
        """
        kind = type(self).__name__
        owner = f"{kind} {name!r}" if name else kind
        if operation not in ("+", "-", "*"):
            raise ValueError(f"{owner}: operation: expected one of +, -, *, got {operation!r}")
        self.operation: Operation = operation
        self.index_dst = checked(owner, "index_dst", index_dst)
        self.index_src_l = checked(owner, "index_src_l", index_src_l)
        self.index_src_r = checked(owner, "index_src_r", index_src_r)
        sides = {"index_src_l": (self.index_src_l, left.shape), "index_src_r": (self.index_src_r, right.shape)}
        extents = pair_extents(owner, self.index_dst, sides)
        if left.dtype != right.dtype:
            raise ValueError(f"{owner}: expected operands of one dtype (see Cast), got {left.dtype} and {right.dtype}")
        super().__init__([left, right], shape=[extents[i] for i in self.index_dst], dtype=left.dtype, name=name)
        check_operand(self, self.inputs[0])

    def _form(self) -> Form:
        out, left, right = _labels(*self.arrays())
        extents = dict(zip((*left, *right), (*self.left.shape, *self.right.shape), strict=True))
        if self.operation == "*":
            return Product((left, right), out, extents)
        sign = 1.0 if self.operation == "+" else -1.0
        return Combination((float(self.num_repeats(0)), sign * self.num_repeats(1)), (left, right), out, extents)

    def arrays(self) -> tuple[Indices, ...]:
        """Return the index arrays of result, left and right operand."""
        return self.index_dst, self.index_src_l, self.index_src_r

    def num_repeats(self, side: int) -> int:
        """Return how often an entry of an operand (0 left, 1 right) is counted: the extents of dummies it lacks."""
        side_indices, other = (self.index_src_l, self.index_src_r)[:: 1 if side == 0 else -1]
        return prod(self.extents[index] for index in negatives(other) if index not in side_indices)

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

    The sum covers both operands of + and -: an operand without a dummy index is counted once for each of its values.
    """

    __slots__ = ()
    argument_name = "operation"


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
        """Describe the contraction; arguments and errors as for `ElementwiseNode`."""
        super().__init__(left, right, index_dst, index_src_l, index_src_r, operation="*", name=name)


class NonlinearNode(_UnaryNode):
    """A function of one variable, applied to every entry."""

    __slots__ = ("function",)
    argument_name = "function"

    def __init__(self, source: Node, function: Function, *, name: str | None = None) -> None:
        """Describe the function applied; raise ValueError for a source of an integer dtype (see `CastNode`)."""
        super().__init__([source], shape=source.shape, dtype=source.dtype, name=name)
        check_operand(self, self.inputs[0])
        self.function = function

    def _form(self) -> Form:
        return Entrywise(self.function)


class CastNode(_UnaryNode):
    """The same entries in another dtype; the only computed node with integer operands or results."""

    __slots__ = ()
    argument_name = "dtype"

    def __init__(self, source: Node, dtype: torch.dtype, *, name: str | None = None) -> None:
        """Describe the conversion of a node to a dtype."""
        super().__init__([source], shape=source.shape, dtype=dtype, name=name)

    def _form(self) -> Form:
        return Conversion(self.dtype)


def _labels(*arrays: Indices) -> list[Labels]:
    """Return labels 1, 2, ... for the indices of arrays, by first appearance."""
    numbers: dict[int, int] = {}
    return [tuple([numbers.setdefault(index, len(numbers) + 1) for index in array]) for array in arrays]


def elementwise(left: Node | float, right: Node | float, operation: Operation) -> Node:
    """Return an operation on two operands, entry by entry, broadcast as in the module docstring.

    Raises:
        ValueError: the shapes do not fit, or both are numbers.
    """
    like = left if isinstance(left, Node) else _node(right)
    left, right = (_constant(side, like.dtype) if not isinstance(side, Node) else side for side in (left, right))
    small, large = sorted((left, right), key=lambda node: node.rank)
    axes = tuple(range(1, large.rank + 1))
    if large.shape[large.rank - small.rank :] != small.shape:
        message = "expected operands of one shape, a scalar, or the other's last axes"
        raise ValueError(f"{left.label} {operation} {right.label}: {message}, got {left.shape} and {right.shape}")
    src_l, src_r = (axes[large.rank - node.rank :] for node in (left, right))
    return ElementwiseNode(left, right, axes, src_l, src_r, operation=operation)


def multiply(left: Node | float, right: Node | float) -> Node:
    """Return the product, entry by entry; with a number it is a Transform."""
    if isinstance(right, Node) and isinstance(left, Node):
        return elementwise(left, right, "*")
    node, factor = (_node(left), right) if isinstance(left, Node) else (_node(right), left)
    axes = range(1, node.rank + 1)
    return TransformNode(node, axes, axes, alpha=_number(factor))


def divide(left: Node | float, right: Node | float) -> Node:
    """Return the quotient, entry by entry."""
    return multiply(left, right**-1.0 if isinstance(right, Node) else 1.0 / _number(right))


def matrix_product(left: Node, right: Node) -> Node:
    """Return the product over the last axis of the left operand and the last but one (of a vector: only) of the right.

    Leading axes of both are a batch; an operand without batch axes is shared by the whole batch.

    Raises:
        ValueError: an operand is a scalar, or the extents do not fit.
    """
    if not (isinstance(right, Node) and left.rank and right.rank):
        raise ValueError(f"{left.label} @ {right}: expected two operands of at least one axis")
    if min(left.rank, right.rank) > 2 and left.rank != right.rank:
        message = f"expected as many batch axes, got {left.shape} and {right.shape}"
        raise ValueError(f"{left.label} @ {right.label}: {message}")
    return LinearNode(left, right, *matrix_product_indices(left.rank, right.rank))


def _constant(number: Node | float, dtype: torch.dtype) -> Node:
    return LeafNode((), kind=LeafKind.CONSTANT, fill=_number(number), dtype=dtype)


def _node(operand: Node | float) -> Node:
    if not isinstance(operand, Node):
        raise ValueError(f"expected a node, got {operand!r}")
    return operand


def _number(operand: Node | float) -> float:
    if not isinstance(operand, Real):
        raise ValueError(f"expected a number, got {operand!r}")
    return float(operand)
