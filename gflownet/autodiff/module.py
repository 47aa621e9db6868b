"""Tensor graphs as modules of torch: parameter leaves become Parameters, inputs the arguments of `forward`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from gflownet.autodiff.compilation import compile
from gflownet.autodiff.derivatives import gradient
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node
from gflownet.autodiff.program import Program

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
        outputs: one node, whose tensor `forward` returns, or several, for a tuple.
        inputs: what `forward` takes, in this order; by default all input leaves, as they are met. Other leaves that are
            no parameters become buffers.
        initial: what parameters and buffers hold at first; those that are missing hold what they were given.
        differentiation: how a gradient is computed: by the programs of our symbolic derivatives, or by torch.autograd
            through the program of the value. Both may be differentiated any number of times. While torch.compile or
            torch.export trace a module, it is autograd; torch.func needs "autograd", too.

    Raises:
        ValueError: a parameter or a buffer holds nothing, or there is no such differentiation.
    """
    as_tuple = not isinstance(outputs, Node)
    nodes = [outputs] if isinstance(outputs, Node) else list(outputs)
    if differentiation not in ("program", "autograd"):
        raise ValueError(f"to_module: differentiation: expected 'program' or 'autograd', got {differentiation!r}")
    leaves = [node for node in topological_order(nodes) if isinstance(node, LeafNode)]
    free = [leaf for leaf in leaves if leaf.fill is None and not leaf.is_identity]
    if inputs is None:
        inputs = [leaf for leaf in free if leaf.kind == LeafKind.INPUT]
    held = [leaf for leaf in free if leaf not in inputs]
    initial = initial or {}
    values = {leaf: initial.get(leaf, leaf.given) for leaf in held}
    missing = next((leaf for leaf, value in values.items() if value is None), None)
    if missing is not None:
        raise ValueError(f"to_module: {missing.label}: expected a value, given to the leaf or in `initial`, got none")
    function = Differentiable(nodes, [*inputs, *held])
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
        """Copy what the leaves hold.

        Args:
            function: of the inputs and then the held leaves.
            values: what the held leaves hold, in their order.
            as_tuple: whether one output comes as a tuple.
            differentiation: see `to_module`.
        """
        super().__init__()
        self._function, self._differentiation = function, differentiation
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
        """Return the outputs.

        Args:
            inputs: one for each input leaf.

        Raises:
            ValueError: there are more or fewer, or one is of another shape or dtype than its leaf.
        """
        if len(inputs) != self._num_inputs:
            raise ValueError(f"forward: expected {self._num_inputs} inputs, got {len(inputs)}")
        compute = self._function if self._differentiation == "program" else self._function.value
        found = compute(*inputs, *(getattr(self, key) for key in self._keys))
        return tuple(found) if self._as_tuple else found[0]


class Differentiable:
    """Nodes as a function of leaves that torch.autograd takes for one of its own; so is every derivative of it.

    The gradient of a single scalar is computed together with its value; that of other outputs, once the derivative by
    them is known.
    """

    def __init__(self, outputs: Sequence[Node], leaves: Sequence[LeafNode]) -> None:
        """Compile the value; derivatives follow when they are asked for.

        Args:
            outputs: what is computed.
            leaves: of which tensors it is a function, in order.
        """
        self.outputs, self.leaves = tuple(outputs), tuple(leaves)
        self.value: Program = compile(self.outputs, leaves=self.leaves)
        self.is_scalar = len(self.outputs) == 1 and not self.outputs[0].rank
        self._derived: dict[tuple[bool, ...], Differentiable] = {}
        self._joint: dict[tuple[bool, ...], Program] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: nothing of it changes but what it remembers."""
        return self

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs.

        Args:
            tensors: one for each leaf.

        Raises:
            ValueError: a tensor is of another shape or dtype than its leaf.
        """
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_recorded and not torch.compiler.is_compiling():
            return _Call.apply(self, *tensors)  # pyright: ignore[reportReturnType]  # typed as anything
        return self.value(*tensors)  # pyright: ignore[reportReturnType]  # compiled for a tuple

    def pulled_back(self, wanted: tuple[bool, ...]) -> Differentiable:
        """Return the gradients by the wanted leaves, a function of the leaves and of the derivative by each output."""
        if wanted not in self._derived:
            total, cotangents = self._paired()
            self._derived[wanted] = Differentiable(self._gradients(total, wanted), [*self.leaves, *cotangents])
        return self._derived[wanted]

    def joint(self, wanted: tuple[bool, ...]) -> Program:
        """Return the program of a scalar and its gradients by the wanted leaves."""
        if wanted not in self._joint:
            (output,) = self.outputs
            self._joint[wanted] = compile([output, *self._gradients(output, wanted)], leaves=self.leaves)
        return self._joint[wanted]

    def _gradients(self, scalar: Node, wanted: tuple[bool, ...]) -> list[Node]:
        return gradient(scalar, [leaf for leaf, is_wanted in zip(self.leaves, wanted, strict=True) if is_wanted])

    def _paired(self) -> tuple[Node, list[LeafNode]]:
        """Return the sum of the products of every output and a leaf of its shape, and those leaves.

        The gradient of it is what torch calls backward: the products of the cotangents and the Jacobians.
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
    """One call of a `Differentiable`, as torch.autograd records it."""

    @staticmethod
    def forward(ctx: Any, function: Differentiable, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs; of a scalar, compute the gradients with it."""
        ctx.function, ctx.wanted, ctx.num_tensors = function, ctx.needs_input_grad[1:], len(tensors)
        if not function.is_scalar:
            ctx.save_for_backward(*tensors)
            return function.value(*tensors)  # pyright: ignore[reportReturnType]  # compiled for a tuple
        output, *gradients = function.joint(ctx.wanted)(*tensors)
        ctx.save_for_backward(*tensors, *gradients)
        return (output,)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, recorded themselves where torch wants to differentiate them."""
        tensors, gradients = ctx.saved_tensors[: ctx.num_tensors], ctx.saved_tensors[ctx.num_tensors :]
        if gradients and not torch.is_grad_enabled():
            found = iter([cotangents[0] * gradient for gradient in gradients])
        else:
            found = iter(ctx.function.pulled_back(ctx.wanted)(*tensors, *cotangents))
        return (None, *(next(found) if is_wanted else None for is_wanted in ctx.wanted))


def _free_name(leaf: LeafNode, module: nn.Module) -> str:
    """Return a leaf's name where it can be an attribute that the module does not have, else one that can."""
    stem = re.sub(r"\W", "_", leaf.name or leaf.kind.name.lower())
    name, number = stem, 1
    while hasattr(module, name):
        name, number = f"{stem}_{number}", number + 1
    return name
