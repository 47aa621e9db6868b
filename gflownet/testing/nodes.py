"""Contract of nodes of tensor programs: value, derivatives, JSON and errors of an example."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.autodiff import Graph, compile, evaluate, hessian, jacobian, simplify, to_module, to_svg
from gflownet.autodiff.custom_node import CustomNode
from gflownet.autodiff.nodes import LeafKind, LeafNode, LinearNode, Node
from gflownet.testing.contract import Contract, expect, expect_error

_STEP = 1e-5
_TOLERANCE = 1e-6


def check_node(example: Node) -> None:
    """Check a node class of tensor programs on an example.

    Args:
        example: a node of float64 leaves; values of leaves that hold none are chosen.

    Raises:
        ContractError: the first rule that the class breaks, in one line.
    """
    NodeContract(example).run_all()


class NodeContract(Contract):
    """Checks of one example of a node class."""

    def __init__(self, example: Node) -> None:
        self.example, self.subject = example, type(example).__name__
        self.leaves = {leaf: _value(leaf) for leaf in example.inputs if isinstance(leaf, LeafNode)}
        self.variables = [leaf for leaf in self.leaves if leaf.has_grad()]
        self.classes = [type(example)] if isinstance(example, CustomNode) else []

    def value(self, replaced: LeafNode | None = None, tensor: Tensor | None = None) -> Tensor:
        """Return the value of the example, one leaf perhaps with another value."""
        leaves = self.leaves if replaced is None or tensor is None else {**self.leaves, replaced: tensor}
        return evaluate([self.example], leaves)[0]

    def differences(self, leaf: LeafNode) -> Tensor:
        """Return the Jacobian by finite differences, `[operand..., result...]`."""
        at, rows = self.leaves[leaf].flatten(), []
        for step in torch.eye(len(at), dtype=at.dtype) * _STEP:
            ends = [self.value(leaf, (at + sign * step).view(leaf.shape)) for sign in (1.0, -1.0)]
            rows.append((ends[0] - ends[1]) / (2 * _STEP))
        return torch.stack(rows).view((*leaf.shape, *self.example.shape))

    def check_operands_are_leaves_and_class_has_a_docstring(self) -> None:
        expect(type(self.example).__doc__, "expected a docstring, got none")
        expect(len(self.leaves) == len({*self.example.inputs}), "expected an example of leaves, got other operands")

    def check_forward_of_the_node_equals_programs(self) -> None:
        graph = Graph(self.example)
        graph.forward(self.leaves)
        self.example.forwarded = None
        self.example.forward()
        value, shape = self.example.value(), list(self.example.shape)
        got = (list(value.shape), value.dtype)
        expect(got == (shape, self.example.dtype), f"expected {shape} of {self.example.dtype}, got {got}")
        before = {leaf: tensor.clone() for leaf, tensor in self.leaves.items()}
        for name, result in (
            ("evaluate", self.value()),
            ("compile", compile(self.example, leaves=list(self.leaves))(self.leaves)),
            ("simplify", evaluate([simplify(self.example)], self.leaves)[0]),
        ):
            expect(_near(result, value), f"expected one value of forward() and {name}, got two")
        same = all(torch.equal(before[leaf], tensor) for leaf, tensor in self.leaves.items())
        expect(same, "expected forward_ to leave its operands alone, got other values")

    def check_backward_of_the_node_equals_finite_differences(self) -> None:
        graph = Graph(self.example)
        graph.forward(self.leaves)
        for num_passes in (1, 2):
            graph.reset_grad()
            if self.example.has_grad():
                self.example.grad().copy_(_weights(self.example))
            for _ in range(num_passes):
                self.example.backward()
            for leaf in self.variables:
                expected = num_passes * torch.tensordot(
                    self.differences(leaf), _weights(self.example), len(self.example.shape)
                )
                message = f"expected backward() to add the gradient of finite differences to operand {leaf.label}"
                expect(_near(leaf.grad(), expected), f"{message}, got another one after {num_passes} passes")

    def check_jacobians_equal_finite_differences(self) -> None:
        rank = len(self.example.shape)
        for leaf in self.variables:
            expected = self.differences(leaf)
            reverse = evaluate([jacobian(self.example, leaf)], self.leaves)[0]
            expect(_near(reverse, expected), f"expected the Jacobian by {leaf.label} of finite differences")
            forward = evaluate([jacobian(self.example, leaf, mode="forward")], self.leaves)[0]
            moved = forward.permute((*range(rank, forward.dim()), *range(rank)))
            expect(_near(moved, expected), f"expected the forward Jacobian by {leaf.label} of finite differences")

    def check_hessian_equals_finite_differences_of_the_gradient(self) -> None:
        loss = self._loss()
        for first in self.variables:
            slope = jacobian(loss, first)
            for second in self.variables:
                (twice,) = evaluate([hessian(loss, first, second)], self.leaves)
                columns = []
                at = self.leaves[second].flatten()
                for step in torch.eye(len(at), dtype=at.dtype) * _STEP:
                    moved = [(at + sign * step).view(second.shape) for sign in (1.0, -1.0)]
                    ends = [evaluate([slope], {**self.leaves, second: value})[0] for value in moved]
                    columns.append((ends[0] - ends[1]) / (2 * _STEP))
                expected = torch.stack(columns, -1).view((*first.shape, *second.shape))
                expect(_near(twice, expected), f"expected the Hessian by {first.label} of finite differences")

    def check_module_has_the_same_gradients(self) -> None:
        loss, inputs = self._loss(), list(self.leaves)
        module = to_module(loss, inputs=inputs)
        values = [self.leaves[leaf].clone().requires_grad_(leaf in self.variables) for leaf in inputs]
        module(*values).backward()
        graph = Graph(loss)
        graph.forward(self.leaves)
        graph.reset_grad()
        graph.backward()
        for leaf, tensor in zip(inputs, values, strict=True):
            if leaf in self.variables:
                expect(tensor.grad is not None and _near(tensor.grad, leaf.grad()), "expected the module's gradients")

    def check_json_builds_the_same_node(self) -> None:
        for node in (self.example, *(jacobian(self.example, leaf) for leaf in self.variables)):
            (expected,) = evaluate([node], self.leaves)
            graph = Graph(node)
            data, leaves = (
                graph.to_dict(),
                {key: self.leaves[n] for key, n in graph.ids.items() if isinstance(n, LeafNode) and n in self.leaves},
            )
            restored = Graph.from_dict(json.loads(json.dumps(data)), classes=self.classes)
            expect(restored.to_dict() == data, "expected the same JSON after reading it, got another one")
            expect(_near(restored.value(restored.sink, leaves), expected), "expected the same value after JSON")
        expect(self.subject in to_svg(self.example), "expected the class in the drawing, got none")

    def check_settings_are_checked(self) -> None:
        if not isinstance(self.example, CustomNode):
            return
        kind, inputs, settings = type(self.example), self.example.inputs, self.example.settings
        call = _builder(kind, inputs, {**settings, "unknown": 1})
        expect_error(ValueError, "unknown.*expected one of the settings", call, doing="unknown=1")
        for name in settings:
            call = _builder(kind, inputs, {**settings, name: object()})
            expect_error(ValueError, f"{name}: expected", call, doing=f"{name}=object()")

    def _loss(self) -> Node:
        weights = LeafNode(self.example.shape, kind=LeafKind.CONSTANT, value=_weights(self.example))
        summed, axes = range(-self.example.rank, 0), range(1, self.example.rank + 1)
        squared = LinearNode(self.example, self.example, axes, axes, axes)
        return LinearNode(squared, weights, [], summed, summed)


def _builder(kind: type[CustomNode], inputs: Sequence[Node], settings: dict[str, Any]) -> Callable[[], Any]:
    return lambda: kind(*inputs, **settings)


def _value(leaf: LeafNode) -> Tensor:
    """Return the value of a leaf, by default distinct numbers that no finite difference moves over a whole number."""
    if leaf.given is not None or leaf.is_described:
        return leaf.held()
    count = math.prod(leaf.shape)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return ((order - count / 2 + 0.27) * (4 / count)).view(leaf.shape).to(leaf.dtype)


def _weights(node: Node) -> Tensor:
    return torch.linspace(-1.0, 2.0, math.prod(node.shape), dtype=node.dtype).view(node.shape)


def _near(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=_TOLERANCE, atol=_TOLERANCE)
