"""Programs: generated straight-line torch code, and the call that binds tensors to the leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _are_functorch_transforms_active, _ExcludeDispatchKeyGuard
from torch.autograd import forward_ad

from gflownet.autodiff.instructions import Instructions, Value
from gflownet.autodiff.lowering import lowered
from gflownet.autodiff.nodes import LeafNode
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


@dataclass(frozen=True)
class Code:
    """The compiled code of a structure, independent of leaf objects, in a fast and in a differentiable form."""

    arguments: tuple[Specification, ...]
    instructions: Instructions
    outputs: tuple[Value, ...]
    as_tuple: bool
    num_operations: int = field(init=False)
    source: str = field(init=False)
    run: Callable[..., Result] = field(init=False)

    def __post_init__(self) -> None:
        """Write the source and compile it."""
        source, num_operations = self._written(reuses_memory=True)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "num_operations", num_operations)
        object.__setattr__(self, "run", _compiled(source, self.instructions))

    @cached_property
    def differentiable(self) -> Callable[..., Result]:
        """Return the function without in-place operations, for torch.autograd."""
        return _compiled(self._written(reuses_memory=False)[0], self.instructions)

    def _written(self, *, reuses_memory: bool) -> tuple[str, int]:
        lines, num_operations = self.instructions.body(self.outputs, reuses_memory=reuses_memory)
        if self.as_tuple and len(self.outputs) == 1:
            lines[-1] += ","
        names = ", ".join(f"x{k}" for k in range(len(self.arguments)))
        return "\n    ".join([f"def program({names}):", *lines]) + "\n", num_operations


@cache
def _scalar_on_cpu(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype)


def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _scalar_on_cpu(value, dtype)
    return torch.full((), value, dtype=dtype, device=device)


def _is_transformed() -> bool:
    """Return whether a torch.func transformation or forward-mode differentiation is active."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def _compiled(source: str, instructions: Instructions) -> Callable[..., Result]:
    namespace: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan, "scalar": _scalar}
    namespace |= {f"call{number}": function for function, number in instructions.functions.items()}
    exec(compile(source, "<tensor graph>", "exec"), namespace)
    return namespace["program"]


def code_of(outputs: Sequence[Term], arguments: Sequence[Specification], *, as_tuple: bool) -> Code:
    """Return the code that computes terms.

    Args:
        outputs: terms.
        arguments: shape and dtype of each argument, by `Leaf.slot`.
        as_tuple: whether one output is returned as a tuple.
    """
    instructions, values = lowered(outputs, arguments)
    return Code(tuple(arguments), instructions, tuple(values), as_tuple)


class Program:
    """A callable from the tensors of leaves to the tensors of nodes.

    `program(*tensors)` takes one tensor per leaf of `leaves`, in order; `program({leaf: tensor})` takes values of any
    leaves, and leaves with a value may be omitted. Results share no memory with arguments.
    """

    def __init__(self, code: Code, all_leaves: Sequence[LeafNode], leaves: Sequence[LeafNode]) -> None:
        """Bind code to leaves.

        Args:
            code: takes a tensor for each of `all_leaves`.
            all_leaves: leaves that the result depends on.
            leaves: arguments of a call, in order; the others have values.

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
        self._run, self._has_functions = code.run, bool(code.instructions.functions)
        self._shapes, self._dtypes = [shape for shape, _ in code.arguments], [dtype for _, dtype in code.arguments]

    @property
    def source(self) -> str:
        """Return the generated Python code."""
        return self._code.source

    @property
    def num_operations(self) -> int:
        """Return the number of torch calls that compute something; views are not counted."""
        return self._code.num_operations

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
        if (torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]) or _is_transformed():
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
