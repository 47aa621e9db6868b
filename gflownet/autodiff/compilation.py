"""Programs for values, gradients and Hessians of nodes; other derivatives are values of nodes.

Code is cached by structure: a graph with other leaves but the same operations gets its program without derivation.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _are_functorch_transforms_active, _ExcludeDispatchKeyGuard
from torch.autograd import forward_ad

from gflownet.autodiff import cross_country, derivatives
from gflownet.autodiff.custom_node import Applied
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.lowering import lowered
from gflownet.autodiff.node_builder import terms_of
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Term

# Without these dispatch keys, calls on small tensors take a quarter less time; unlike under torch.inference_mode, the
# results are normal tensors.
_AUTOGRAD_KEYS = (
    DispatchKeySet(DispatchKey.AutogradCPU)
    | DispatchKeySet(DispatchKey.AutogradCUDA)
    | DispatchKeySet(DispatchKey.ADInplaceOrView)
)
Result = Tensor | tuple[Tensor, ...]
Specification = tuple[tuple[int, ...], torch.dtype]  # of an argument
Nodes = Node | Sequence[Node]
Derive = Callable[[Terms, list[Term]], list[Term]]  # maps the terms of the requested nodes to the outputs
_MAX_CACHED = 1024  # codes; beyond, the oldest is dropped


@dataclass(frozen=True, eq=False)
class Code:
    """The compiled code of a structure, independent of leaf objects, in a fast and in a differentiable form."""

    arguments: tuple[Specification, ...]
    functions: tuple[Applied, ...]  # called call0, call1, ... in the source
    source: str
    differentiable_source: str  # without in-place operations, for torch.autograd
    num_operations: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source, which is compiled again."""
        return type(self), tuple(getattr(self, row.name) for row in fields(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: it never changes."""
        return self

    @cached_property
    def run(self) -> Callable[..., Result]:
        """Return the function of `source`."""
        return _compiled(self.source, self.functions)

    @cached_property
    def differentiable(self) -> Callable[..., Result]:
        """Return the function of `differentiable_source`."""
        return _compiled(self.differentiable_source, self.functions)


@cache
def _scalar_on_cpu(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype)


def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _scalar_on_cpu(value, dtype)
    return torch.full((), value, dtype=dtype, device=device)


def _compiled(source: str, functions: Sequence[Applied]) -> Callable[..., Result]:
    namespace: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan, "scalar": _scalar}
    namespace |= {f"call{number}": function for number, function in enumerate(functions)}
    exec(builtins.compile(source, "<tensor graph>", "exec"), namespace)
    return namespace["program"]


class Program:
    """A callable from the tensors of leaves to the tensors of nodes.

    `program(*tensors)` takes one tensor per leaf of `leaves`, in order; `program({leaf: tensor})` takes values of any
    leaves, and leaves with a value may be omitted. Results share no memory with arguments.
    """

    def __init__(self, code: Code, all_leaves: Sequence[LeafNode], leaves: Sequence[LeafNode]) -> None:
        """Bind code, which takes a tensor for each of `all_leaves`, to `leaves`, the arguments of a call.

        Raises:
            ValueError: a leaf that is not in `leaves` has no value.
        """
        self._code, self._all_leaves = code, tuple(all_leaves)
        self.leaves = tuple(leaves)
        places = {leaf: place for place, leaf in enumerate(self.leaves)}
        for leaf in all_leaves:
            if leaf not in places and leaf.given is None:
                raise ValueError(f"compile: leaves: expected {leaf.label} among them, which holds no value")
        # None if the arguments of a call are the arguments of the code, the usual case
        self._order = None if self._all_leaves == self.leaves else [places.get(leaf) for leaf in all_leaves]
        self._run, self._has_functions = code.run, bool(code.functions)
        self._shapes, self._dtypes = [shape for shape, _ in code.arguments], [dtype for _, dtype in code.arguments]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle code and leaves."""
        return type(self), (self._code, self._all_leaves, self.leaves)

    @property
    def source(self) -> str:
        """Return the generated Python code."""
        return self._code.source

    @property
    def num_operations(self) -> int:
        """Return the number of torch calls that compute something; views are not counted."""
        return self._code.num_operations

    def prepare(self) -> None:
        """Compile the differentiable form, which torch.compile and torch.export cannot do while they trace a call."""
        _ = self._code.differentiable

    def __call__(self, *tensors: Any) -> Any:
        """Return the outputs for one tensor per leaf of `leaves`, or for a mapping of leaves to tensors.

        Raises:
            ValueError: a tensor is missing, or its shape or dtype differs from the leaf's.
        """
        count = len(tensors)
        if self._order is not None or count != len(self.leaves) or (count == 1 and isinstance(tensors[0], Mapping)):
            tensors = self._bound(tensors)
        # comprehensions, not a loop: a small program runs a few microseconds
        if [t.shape for t in tensors] != self._shapes or [t.dtype for t in tensors] != self._dtypes:
            self._refuse(tensors)
        is_transformed = _are_functorch_transforms_active() or forward_ad._current_level >= 0
        if (torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]) or is_transformed:
            return self._code.differentiable(*tensors)
        if self._has_functions:  # functions of whole tensors may differentiate with torch
            with torch.no_grad():
                return self._run(*tensors)
        with _ExcludeDispatchKeyGuard(_AUTOGRAD_KEYS):
            return self._run(*tensors)

    def _bound(self, tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
        if len(tensors) == 1 and isinstance(tensors[0], Mapping):
            values = tensors[0]
            return tuple(values[leaf] if leaf in values else _held(leaf) for leaf in self._all_leaves)
        if len(tensors) != len(self.leaves):
            names = [leaf.label for leaf in self.leaves]
            raise ValueError(f"program: expected {len(self.leaves)} tensors, for {names}, got {len(tensors)}")
        if self._order is None:
            return tensors
        pairs = zip(self._order, self._all_leaves, strict=True)
        return tuple(_held(leaf) if place is None else tensors[place] for place, leaf in pairs)

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        for leaf, tensor in zip(self._all_leaves, tensors, strict=True):
            if tuple(tensor.shape) != leaf.shape or tensor.dtype != leaf.dtype:
                expected = f"expected shape {list(leaf.shape)} and {leaf.dtype}"
                raise ValueError(f"{leaf.label}: {expected}, got {list(tensor.shape)} and {tensor.dtype}")


def _held(leaf: LeafNode) -> Tensor:
    if leaf.given is None:
        raise ValueError(f"program: expected a tensor for {leaf.label}, got none")
    return leaf.given


_cache: dict[Hashable, Code] = {}


def compile(outputs: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes nodes.

    Args:
        outputs: one node, for a program that returns a tensor, or several, for a tuple.
        leaves: arguments of the program, in this order; by default the leaves without a value, in topological order.

    Raises:
        ValueError: a leaf that is not in `leaves` has no value.
    """
    as_tuple = not isinstance(outputs, Node)
    return _program("value", _listed(outputs), [], lambda terms, requested: requested, leaves, as_tuple=as_tuple)


def compile_gradient(loss: Node, wrt: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes the gradient of a scalar by one node, or for a tuple by several.

    Raises:
        ValueError: the loss is not a scalar; or as in `compile`, as are the `leaves`.
    """
    derivatives.check_scalar("compile_gradient", loss)

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return derivatives.gradients(terms, requested[0], requested[1:])

    return _program("gradient", [loss], _listed(wrt), derive, leaves, as_tuple=not isinstance(wrt, Node))


def compile_hessian(
    output: Node, first: Node, second: Node | None = None, *, leaves: Sequence[LeafNode] | None = None
) -> Program:
    """Return the program that computes a Hessian, `[output..., first..., second...]`, by default by one node twice.

    `leaves` and errors are as in `compile`.
    """

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return [cross_country.hessian(terms, *requested)]

    return _program("hessian", [output], [first, second or first], derive, leaves, as_tuple=False)


def clear_cache() -> None:
    """Drop all cached code."""
    _cache.clear()


def _listed(nodes: Nodes) -> list[Node]:
    return [nodes] if isinstance(nodes, Node) else list(nodes)


def _program(
    kind: str,
    outputs: list[Node],
    wrt: list[Node],
    derive: Derive,
    leaves: Sequence[LeafNode] | None,
    *,
    as_tuple: bool,
) -> Program:
    """Return the program of derived outputs; `derive` gets the terms of outputs and `wrt`."""
    requested = [*outputs, *wrt]
    order = topological_order(requested)
    places = {node: place for place, node in enumerate(order)}
    rows = tuple([_structure(node, places) for node in order])
    key = (kind, as_tuple, tuple([places[node] for node in requested]), rows)
    code = _cache.get(key)
    if code is None:
        code = _code(order, requested, wrt, derive, as_tuple=as_tuple)
        while len(_cache) >= _MAX_CACHED:
            del _cache[next(iter(_cache))]
        _cache[key] = code
    stored = [node for node in order if isinstance(node, LeafNode) and not node.is_described]
    return Program(code, stored, [leaf for leaf in stored if leaf.given is None] if leaves is None else leaves)


def _code(order: list[Node], requested: list[Node], wrt: list[Node], derive: Derive, *, as_tuple: bool) -> Code:
    terms = Terms()
    opaque = {node for node in wrt if not isinstance(node, LeafNode) or node.is_described}
    term_of, leaves = terms_of(terms, order, opaque=opaque)
    outputs = derive(terms, [term_of[node] for node in requested])
    if opaque:
        outputs = cross_country.without_aliases(terms, outputs)
    arguments = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
    instructions, values = lowered(outputs, arguments)
    header = f"def program({', '.join(f'x{k}' for k in range(len(arguments)))}):"
    comma = "," if as_tuple and len(values) == 1 else ""
    rows = [instructions.body(values, reuses_memory=reuses_memory) for reuses_memory in (True, False)]
    sources = ["\n    ".join([header, *lines]) + f"{comma}\n" for lines, _ in rows]
    return Code(arguments, tuple(instructions.functions), *sources, num_operations=rows[0][1])


def _structure(node: Node, places: dict[Node, int]) -> tuple[Hashable, ...]:
    """Return a key of a node's operation, without names of leaves and of indices; inputs are given by their places."""
    if isinstance(node, LeafNode):
        return None, node.shape, node.dtype, node.fill, node.is_identity
    numbers: dict[int, int] = {}
    pattern = tuple([tuple([numbers.setdefault(index, len(numbers)) for index in array]) for array in node.arrays()])
    return type(node), tuple([places[source] for source in node.inputs]), pattern, node.argument, node.shape
