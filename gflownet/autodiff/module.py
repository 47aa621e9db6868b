"""Tensor graphs as torch modules: parameter leaves become Parameters, input leaves the arguments of `forward`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from gflownet.autodiff.compilation import Program, compile
from gflownet.autodiff.derivatives import gradient
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node

Differentiation = Literal["program", "autograd"]


def to_module(
    outputs: Node | Sequence[Node],
    *,
    inputs: Sequence[LeafNode] | None = None,
    initial: Mapping[LeafNode, Tensor] | None = None,
    differentiation: Differentiation = "program",
) -> GraphModule:
    """Return the module that computes nodes.

    Args:
        outputs: one node, for a tensor, or several, for a tuple.
        inputs: arguments of `forward`, in this order; by default all input leaves, in topological order. Other leaves
            become Parameters or buffers.
        initial: initial values of parameters and buffers; the default is the value of the leaf.
        differentiation: "program" for compiled symbolic derivatives, "autograd" for torch.autograd through the program
            of the value; both to any order. torch.func needs "autograd", torch.compile and torch.export always use it.

    Raises:
        ValueError: a parameter or a buffer has no value, or unknown differentiation.
    """
    as_tuple = not isinstance(outputs, Node)
    nodes = [outputs] if isinstance(outputs, Node) else list(outputs)
    if differentiation not in ("program", "autograd"):
        raise ValueError(f"to_module: differentiation: expected 'program' or 'autograd', got {differentiation!r}")
    leaves = [node for node in topological_order(nodes) if isinstance(node, LeafNode)]
    free = [leaf for leaf in leaves if not leaf.is_described]
    if inputs is None:
        inputs = [leaf for leaf in free if leaf.kind == LeafKind.INPUT]
    stored = [leaf for leaf in free if leaf not in inputs]
    initial = initial or {}
    values = {leaf: initial.get(leaf, leaf.given) for leaf in stored}
    missing = next((leaf for leaf, value in values.items() if value is None), None)
    if missing is not None:
        raise ValueError(f"to_module: {missing.label}: expected a value, given to the leaf or in `initial`, got none")
    function = Differentiable(nodes, [*inputs, *stored])
    tensors = {leaf: value for leaf, value in values.items() if value is not None}
    return GraphModule(function, tensors, as_tuple=as_tuple, differentiation=differentiation)


class GraphModule(nn.Module):
    """A tensor graph, see `to_module`; its state dict has one tensor per parameter and buffer, by its leaf's name."""

    def __init__(
        self,
        function: Differentiable,
        values: Mapping[LeafNode, Tensor],
        *,
        as_tuple: bool,
        differentiation: Differentiation,
    ) -> None:
        """Copy the values of the stored leaves; `function` takes the inputs, then these; see `to_module`."""
        super().__init__()
        self._function, self._differentiation = function, differentiation
        function.value.prepare()
        self._as_tuple = as_tuple
        self._num_inputs = len(function.leaves) - len(values)
        self._keys: list[str] = []
        for leaf, value in values.items():
            tensor = value.detach().clone().to(leaf.dtype)
            key = _free_name(leaf, self)
            if leaf.kind == LeafKind.PARAMETER:
                self.register_parameter(key, nn.Parameter(tensor, requires_grad=leaf.requires_grad))
            else:
                self.register_buffer(key, tensor)
            self._keys.append(key)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs for one tensor per input leaf; raise ValueError for a wrong number, shape or dtype."""
        if len(inputs) != self._num_inputs:
            raise ValueError(f"forward: expected {self._num_inputs} inputs, got {len(inputs)}")
        compute = self._function if self._differentiation == "program" else self._function.value
        outputs = compute(*inputs, *(getattr(self, key) for key in self._keys))
        return tuple(outputs) if self._as_tuple else outputs[0]


class Differentiable:
    """Nodes as a function of leaves that torch.autograd records as one operation, and so are its derivatives.

    The gradient of a single scalar is computed together with its value, the gradient of other outputs in the backward
    pass.
    """

    def __init__(self, outputs: Sequence[Node], leaves: Sequence[LeafNode]) -> None:
        """Compile the value of outputs as a function of leaves; derivatives are compiled on first use."""
        self.outputs, self.leaves = tuple(outputs), tuple(leaves)
        self.value: Program = compile(self.outputs, leaves=self.leaves)
        self.is_scalar = len(self.outputs) == 1 and not self.outputs[0].rank
        self._derived: dict[tuple[bool, ...], Differentiable] = {}
        self._joint: dict[tuple[bool, ...], Program] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: only its caches change."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the nodes, which are compiled again."""
        return type(self), (self.outputs, self.leaves)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for one tensor per leaf; raise ValueError for a wrong shape or dtype."""
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_recorded and not torch.compiler.is_compiling():
            return _Call.apply(self, *tensors)  # pyright: ignore[reportReturnType]  # typed as anything
        return self.value(*tensors)  # pyright: ignore[reportReturnType]  # compiled for a tuple

    def pulled_back(self, flags: tuple[bool, ...]) -> Differentiable:
        """Return the gradients by the flagged leaves, a function of the leaves and of the cotangent of each output."""
        if flags not in self._derived:
            total, cotangents = self._paired()
            self._derived[flags] = Differentiable(self._gradients(total, flags), [*self.leaves, *cotangents])
        return self._derived[flags]

    def joint(self, flags: tuple[bool, ...]) -> Program:
        """Return the program of a scalar and its gradients by the flagged leaves."""
        if flags not in self._joint:
            (output,) = self.outputs
            self._joint[flags] = compile([output, *self._gradients(output, flags)], leaves=self.leaves)
        return self._joint[flags]

    def _gradients(self, scalar: Node, flags: tuple[bool, ...]) -> list[Node]:
        return gradient(scalar, [leaf for leaf, is_wanted in zip(self.leaves, flags, strict=True) if is_wanted])

    def _paired(self) -> tuple[Node, list[LeafNode]]:
        """Return the sum of <output, cotangent leaf> over the outputs, and the cotangent leaves.

        Its gradient is the backward pass: the products of the cotangents and the Jacobians.
        """
        cotangents = [LeafNode(output.shape, dtype=output.dtype) for output in self.outputs]
        total: Node | None = None
        for output, cotangent in zip(self.outputs, cotangents, strict=True):
            summed = range(-output.rank, 0)
            product = LinearNode(output, cotangent, [], summed, summed)
            total = product if total is None else ElementwiseNode(total, product, [], [], [], operation="+")
        assert total is not None, "expected at least one output"
        return total, cotangents


class _Call(torch.autograd.Function):
    """One call of a `Differentiable`, recorded by torch.autograd."""

    @staticmethod
    def forward(ctx: Any, function: Differentiable, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs; for a scalar, compute its gradients too."""
        ctx.function, ctx.flags, ctx.num_tensors = function, ctx.needs_input_grad[1:], len(tensors)
        if not function.is_scalar:
            ctx.save_for_backward(*tensors)
            return function.value(*tensors)  # pyright: ignore[reportReturnType]  # compiled for a tuple
        output, *gradients = function.joint(ctx.flags)(*tensors)
        ctx.save_for_backward(*tensors, *gradients)
        return (output,)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, recorded in turn with `create_graph`."""
        tensors, gradients = ctx.saved_tensors[: ctx.num_tensors], ctx.saved_tensors[ctx.num_tensors :]
        if gradients and not torch.is_grad_enabled():
            gradients_by_leaf = iter([cotangents[0] * gradient for gradient in gradients])
        else:
            gradients_by_leaf = iter(ctx.function.pulled_back(ctx.flags)(*tensors, *cotangents))
        return (None, *(next(gradients_by_leaf) if is_wanted else None for is_wanted in ctx.flags))


def _free_name(leaf: LeafNode, module: nn.Module) -> str:
    """Return an attribute name for a leaf that the module does not have yet."""
    stem = re.sub(r"\W", "_", leaf.name or leaf.kind.name.lower())
    name, number = stem, 1
    while hasattr(module, name):
        name, number = f"{stem}_{number}", number + 1
    return name
