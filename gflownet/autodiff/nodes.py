"""The classes of nodes of a tensor graph, and arithmetic on nodes.

A node describes an operation and holds the value and the gradient of the last pass of a `Graph`. Nodes are compared by
identity. Operators (+ - * / ** @) work entry by entry: an operand of lower rank is broadcast over the leading axes of
the other operand if its shape equals the last axes of that operand, so a scalar fits any shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from math import inf, isfinite, prod
from numbers import Real
from typing import Any, ClassVar, Literal, Self, SupportsIndex, cast
from weakref import ref

import torch
from torch import Tensor

from gflownet.autodiff import rules
from gflownet.autodiff.functions import Function
from gflownet.autodiff.rules import Combination, Conversion, Entrywise, Form, Labels, Product
from gflownet.autodiff.tensor_algebra import Tensors

Operation = Literal["+", "-", "*"]
Indices = tuple[int, ...]
_State = tuple[dict[str, Any] | None, dict[str, Any]]  # attributes in `__dict__` and in slots


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`"""
    return str(dtype).removeprefix("torch.")


def is_continuous(dtype: torch.dtype) -> bool:
    """Return whether tensors of a dtype have derivatives: floating and complex ones."""
    return dtype.is_floating_point or dtype.is_complex


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


class Node:
    """A named tensor of known shape and dtype, and the operation that computes it from other nodes.

    A `Graph` fills in value and gradient.
    """

    __slots__ = (
        *("__weakref__", "_item", "_known_form", "dtype", "forwarded", "gradient"),
        *("inputs", "name", "requires_grad", "shape"),
    )
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
        self.inputs, self.shape, self.dtype, self.name = tuple(inputs), tuple(shape), dtype, name
        self.requires_grad = is_continuous(dtype) and (leaf_grad or any(node.requires_grad for node in inputs))
        # Of the last forward and backward pass of a Graph; nothing else ever changes.
        self.forwarded: Tensor | None = None
        self.gradient: Tensor | None = None
        self._known_form: Form | None = None
        self._item: tuple[ref[_Nodes], int] | None = None

    def _check_operand(self) -> None:
        """Raise ValueError for integer operands: only leaves and casts may have an integer dtype."""
        operand = self.inputs[0]
        if not is_continuous(operand.dtype):
            message = f"expected a floating or complex operand, got {operand.dtype} of {operand.label}: Cast it first"
            raise ValueError(f"{self.label}: {message}")

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
    def label(self) -> str:
        """Return the class and the name, for messages."""
        return f"{type(self).__name__} {self.name!r}" if self.name else type(self).__name__

    @property
    def rank(self) -> int:
        """Return the number of axes: 0 for a scalar, 1 for shape [1]."""
        return len(self.shape)

    def value(self) -> Tensor:
        """Return the tensor that the last forward pass computed.

        Raises:
            ValueError: there was no forward pass, or a leaf holds nothing.
        """
        if self.forwarded is None:
            message = "expected a forward pass first (Graph.forward), or a leaf with a value"
            raise ValueError(f"{self.label}: value: {message}")
        return self.forwarded

    def has_grad(self) -> bool:
        """Return whether the node depends differentiably on a leaf with `requires_grad`."""
        return self.requires_grad

    def grad(self) -> Tensor:
        """Return the accumulated gradient; writing to it seeds a backward pass as `Graph.backward` does.

        Raises:
            ValueError: the node has no gradient (see `has_grad`) or no value yet.
        """
        if not self.requires_grad:
            raise ValueError(f"{self.label}: grad: expected a node that depends on a leaf with requires_grad=True")
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.value().device)
        return self.gradient

    def __repr__(self) -> str:
        """Return class, name, shape and dtype."""
        return f"<{self.label} {list(self.shape)} {dtype_name(self.dtype)}>"

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
        self._check()
        self.forwarded = None if value is None else value.detach()

    def _check(self) -> None:
        """Raise ValueError for an extent below 0, a value that does not fit, or several descriptions."""
        owner, shape, value = self.label, self.shape, self.given
        if any(extent < 0 for extent in shape):
            raise ValueError(f"{owner}: shape {list(shape)}: expected extents of at least 0")
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"{owner}: value: expected shape {list(shape)}, got {list(value.shape)}")
        if value is not None and value.dtype != self.dtype:
            raise ValueError(f"{owner}: value: expected dtype {self.dtype}, got {value.dtype}")
        descriptions = (value is not None) + (self.fill is not None) + self.is_identity
        if descriptions > 1 or (self.kind != LeafKind.CONSTANT and descriptions > (value is not None)):
            raise ValueError(f"{owner}: expected a value, or of a constant a fill or an identity, got several")
        half = len(shape) // 2
        if self.is_identity and shape[:half] != shape[half:]:
            raise ValueError(f"{owner}: shape {list(shape)}: expected an identity to have its axes twice")

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


class _IndexedNode(Node):
    """A node with an array of signed indices for each tensor: one integer per axis.

    Equal integers are the same index. A positive index of an operand is kept in the result (in a Transform both sides
    have it). A negative index of an operand is a dummy, summed over; in the result of a Transform it is new. 0 is not
    an index, and no tensor has an index twice.
    """

    __slots__ = ("index_dst",)

    @property
    def dummy_index(self) -> int:
        """Return the number of indices that are summed over."""
        return len({index for array in self.arrays()[1:] for index in array if index < 0})

    @property
    def new_index(self) -> int:
        """Return the number of indices that only the result has."""
        return len(_negatives(self.index_dst))

    @property
    def repeated_index(self) -> int:
        """Return the number of indices in all tensors."""
        return len({*self.index_dst}.intersection(*self.arrays()[1:]))


class TransformNode(_IndexedNode, _UnaryNode):
    """`dst[D] = alpha * sum over dummies of src[S]`: transposition, reduction, broadcast, scaling and combinations."""

    __slots__ = ("alpha", "index_src")
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
        dst, src = _checked(owner, "index_dst", index_dst), _checked(owner, "index_src", index_src)
        try:
            self.alpha = float(alpha)
        except OverflowError:  # an integer beyond the floats
            self.alpha = inf
        if not isfinite(self.alpha):
            raise ValueError(f"{owner}: alpha: expected a finite number, got {self.alpha}")
        extents = _extents_of(owner, "index_src", src, source.shape)
        for other, array, label in ((src, dst, "index_dst"), (dst, src, "index_src")):
            missing = sorted(index for index in array if index > 0 and index not in other)
            if missing:
                message = "expected positive indices on both sides"
                raise ValueError(f"{owner}: {label} {list(array)}: {message}, got {missing} on this one only")
        new = _negatives(dst)
        if len(new) != len(new_dims) or any(extent < 0 for extent in new_dims):
            message = f"expected an extent of at least 0 for each of the {len(new)} New indices of index_dst"
            raise ValueError(f"{owner}: new_dims {list(new_dims)}: {message} {list(dst)}")
        self.index_dst, self.index_src = dst, src
        extents |= dict(zip(new, new_dims, strict=True))
        super().__init__([source], shape=[extents[index] for index in dst], dtype=source.dtype, name=name)
        self._check_operand()

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


class _PairNode(_IndexedNode):
    """Two operands, an operation between their entries, and a sum over the indices that the result lacks."""

    __slots__ = ("index_src_l", "index_src_r", "operation")

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
        dst = self.index_dst = _checked(owner, "index_dst", index_dst)
        self.index_src_l = _checked(owner, "index_src_l", index_src_l)
        self.index_src_r = _checked(owner, "index_src_r", index_src_r)
        super().__init__([left, right], shape=(), dtype=left.dtype, name=name)
        extents = self._checked_extents(owner)
        if left.dtype != right.dtype:
            raise ValueError(f"{owner}: expected operands of one dtype (see Cast), got {left.dtype} and {right.dtype}")
        self.shape = tuple([extents[index] for index in dst])
        self._check_operand()

    def _checked_extents(self, owner: str) -> dict[int, int]:
        """Return the extent of every index.

        Raises:
            ValueError: an index has two extents, only the result has it, or a positive one is missing in the result.
        """
        sides, dst = {"index_src_l": self.index_src_l, "index_src_r": self.index_src_r}, self.index_dst
        pairs = zip(sides.items(), self.inputs, strict=True)
        left, right = (_extents_of(owner, *side, operand.shape) for side, operand in pairs)
        for index in left.keys() & right.keys():
            if left[index] != right[index]:
                message = f"expected one extent for index {index}, got {left[index]} on the left and {right[index]}"
                raise ValueError(f"{owner}: index_src_l and index_src_r: {message} on the right")
        extents = left | right
        new = [index for index in dst if index < 0 or index not in extents]
        if new:
            message = f"expected indices of the operands, got {new}: compose with a Transform to bring in new ones"
            raise ValueError(f"{owner}: index_dst {list(dst)}: {message}")
        for name, indices in sides.items():
            missing = [index for index in indices if index > 0 and index not in dst]
            if missing:
                message = f"expected positive indices to be in index_dst {list(dst)}, got {missing}"
                raise ValueError(f"{owner}: {name} {list(indices)}: {message}: what is summed over is negative")
        return extents

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
        sides = self.index_src_l, self.index_src_r
        extents = zip(sides[1 - side], self.inputs[1 - side].shape, strict=True)
        return prod(extent for index, extent in extents if index < 0 and index not in sides[side])

    @property
    def left(self) -> Node:
        """Return the left operand."""
        return self.inputs[0]

    @property
    def right(self) -> Node:
        """Return the right operand."""
        return self.inputs[1]


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
        self._check_operand()
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


def _checked(owner: str, name: str, indices: Sequence[int]) -> Indices:
    """Return an index array as a tuple; owner and name are for messages.

    Raises:
        ValueError: an index is 0 or occurs twice.
    """
    array = tuple(int(index) for index in indices)
    if 0 in array:
        raise ValueError(f"{owner}: {name} {list(array)}: expected indices other than 0")
    if len({*array}) < len(array):
        twice = next(index for index in array if array.count(index) > 1)
        raise ValueError(f"{owner}: {name} {list(array)}: expected every index once in a tensor, got {twice} twice")
    return array


def _extents_of(owner: str, name: str, indices: Indices, shape: Sequence[int]) -> dict[int, int]:
    """Return the extent of every index of a tensor; raise ValueError unless there is one index per axis."""
    if len(indices) != len(shape):
        message = f"expected one index for each of the {len(shape)} axes of shape {list(shape)}, got {len(indices)}"
        raise ValueError(f"{owner}: {name} {list(indices)}: {message}")
    return dict(zip(indices, shape, strict=True))


def _negatives(indices: Sequence[int]) -> Indices:
    return tuple(index for index in indices if index < 0)


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
    summed, row, column = -1, 1, 2
    own_l, own_r = (row, summed)[max(0, 2 - left.rank) :], (summed, column)[: right.rank]
    batch = tuple(range(3, 1 + max(left.rank, right.rank, 2)))
    src_l, src_r = (
        (batch if rank > 2 else ()) + side_indices for rank, side_indices in ((left.rank, own_l), (right.rank, own_r))
    )
    return LinearNode(left, right, batch + own_l[:-1] + own_r[1:], src_l, src_r)


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
