"""The functions that bench_autodiff.py differentiates, and the sides: compiled tensor graphs and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import compile_gradient, compile_hessian, compile_hvp
from gflownet.autodiff.nodes import LeafNode, Node

Call = Callable[[], Any]
_NAMES = ("Tanh", "Relu", "Exp", "Log", "Softplus", "Transpose")
OURS = SimpleNamespace(total=build.Sum, **{name.lower(): getattr(build, name) for name in _NAMES})
TORCH = SimpleNamespace(total=torch.sum, transpose=torch.t, softplus=torch.nn.functional.softplus)
TORCH.tanh, TORCH.relu, TORCH.exp, TORCH.log = torch.tanh, torch.relu, torch.exp, torch.log


@dataclass(frozen=True)
class Problem:
    """A scalar function of arrays, written once for tensor graphs and torch."""

    formula: Callable[..., Any]  # of a library's functions (OURS or TORCH), then of the arrays
    shapes: Mapping[str, tuple[int, ...]]  # of the arrays in order
    hessian_by: str  # the array of Hessians and Hessian-vector products
    gradient_by: tuple[str, ...]  # the arrays of gradients
    closed_form: Callable[..., Tensor] | None = None  # the Hessian as an expert writes it

    @property
    def position(self) -> int:
        """Return the index of `hessian_by` among the arrays."""
        return list(self.shapes).index(self.hessian_by)

    @property
    def gradient_positions(self) -> tuple[int, ...]:
        """Return the indices of `gradient_by` among the arrays."""
        return tuple(list(self.shapes).index(name) for name in self.gradient_by)

    def tensors(self) -> list[Tensor]:
        """Return float64 arguments: normal, matrices with a standard deviation of 0.3."""
        generator = np.random.default_rng(0)
        arrays = [generator.normal(size=shape) * (0.3 if len(shape) > 1 else 1.0) for shape in self.shapes.values()]
        return [torch.from_numpy(array) for array in arrays]

    def graph(self) -> tuple[Node, list[LeafNode]]:
        """Return the function as a new tensor graph, and its leaves in order."""
        leaves = [build.Input(shape, name=name, dtype=torch.float64) for name, shape in self.shapes.items()]
        return self.formula(OURS, *leaves), leaves


def quadratic_form(size: int) -> Problem:
    """Return x^T A x."""

    def formula(ops: Any, a: Any, x: Any) -> Any:
        return x @ (a @ x)

    return Problem(formula, {"a": (size, size), "x": (size,)}, "x", ("x",), lambda a, x: a + a.T)


def logistic_regression(size: int) -> Problem:
    """Return the loss of a linear classifier with `size` weights on 2 `size` points."""

    def formula(ops: Any, points: Any, sides: Any, weights: Any) -> Any:
        return ops.total(ops.softplus(-((points @ weights) * sides)))

    def hessian(points: Tensor, sides: Tensor, weights: Tensor) -> Tensor:
        """X^T diag(s^2 p (1 - p)) X with p = sigmoid(s X w)."""
        p = torch.sigmoid((points @ weights) * sides)
        return points.T @ (points * (sides * sides * p * (1 - p))[:, None])

    shapes = {"points": (2 * size, size), "sides": (2 * size,), "weights": (size,)}
    return Problem(formula, shapes, "weights", ("weights",), hessian)


def matrix_factorisation(size: int, rank: int) -> Problem:
    """Return ||T - U V^T||^2, differentiated by U."""

    def formula(ops: Any, target: Any, u: Any, v: Any) -> Any:
        return ops.total((target - u @ ops.transpose(v)) ** 2)

    def hessian(target: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """2 V^T V at each row of U, zero elsewhere: (n, k, n, k)."""
        rows, columns = u.shape
        result = u.new_zeros(rows, columns, rows, columns)
        result.diagonal(dim1=0, dim2=2).copy_((2 * v.T @ v)[..., None])
        return result

    return Problem(formula, {"target": (size, size), "u": (size, rank), "v": (size, rank)}, "u", ("u",), hessian)


def perceptron(activation: str, num_layers: int, hidden: int = 16, *, hessian_by: str = "x") -> Problem:
    """Return a multi-layer perceptron: `o . f(W f(... f(W x + b)) + b)` for tanh, log sum exp of the same for relu.

    Gradients are by all weights and biases.
    """

    def formula(ops: Any, x: Any, o: Any, *layers: Any) -> Any:
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            x = getattr(ops, activation)(weight @ x + bias)
        # A relu network without the log sum exp would have a zero Hessian.
        return o @ x if activation == "tanh" else ops.log(ops.total(ops.exp(o * x)))

    shapes: dict[str, tuple[int, ...]] = {"x": (hidden,), "o": (hidden,)}
    for layer in range(num_layers):
        shapes |= {f"w{layer}": (hidden, hidden), f"b{layer}": (hidden,)}
    return Problem(formula, shapes, hessian_by, tuple(name for name in shapes if name not in ("x", "o")))


PROBLEMS = {
    "quadratic form n=16": quadratic_form(16),
    "quadratic form n=1000": quadratic_form(1000),
    "logistic regression n=30": logistic_regression(30),
    "logistic regression n=300": logistic_regression(300),
    "logistic regression n=1000": logistic_regression(1000),
    "matrix factorisation n=100 k=5": matrix_factorisation(100, 5),
    "MLP 2xtanh h=16": perceptron("tanh", 2),
    "MLP 2xtanh h=16, by weights": perceptron("tanh", 2, hessian_by="w0"),
    "MLP 2xtanh h=256": perceptron("tanh", 2, 256),
    "MLP 10xReLU h=16": perceptron("relu", 10),
    "MLP 10xReLU h=16, by weights": perceptron("relu", 10, hessian_by="w0"),
    "MLP 10xtanh h=16": perceptron("tanh", 10),
}


def hessians(problem: Problem) -> list[Call]:
    """Return our Hessian, torch.func.hessian and, if there is one, the closed form."""
    loss, leaves = problem.graph()
    program = compile_hessian(loss, leaves[problem.position], leaves=leaves)
    theirs = torch.func.hessian(lambda *values: problem.formula(TORCH, *values), argnums=problem.position)
    sides = [program, theirs] if problem.closed_form is None else [program, theirs, problem.closed_form]
    tensors = problem.tensors()
    return [partial(side, *tensors) for side in sides]


def gradients(problem: Problem) -> list[Call]:
    """Return our gradient and eager torch.autograd's."""
    loss, leaves = problem.graph()
    program = compile_gradient(loss, [leaves[k] for k in problem.gradient_positions], leaves=leaves)
    tensors = problem.tensors()
    arguments = [x.clone().requires_grad_(k in problem.gradient_positions) for k, x in enumerate(tensors)]
    inputs = [arguments[k] for k in problem.gradient_positions]
    return [partial(program, *tensors), lambda: torch.autograd.grad(problem.formula(TORCH, *arguments), inputs)]


def products(problem: Problem) -> list[Call]:
    """Return our Hessian-vector product, torch.func's forward over reverse, and autograd applied twice."""
    loss, leaves = problem.graph()
    direction = build.Input(leaves[problem.position].shape, name="vector", dtype=torch.float64)
    program = compile_hvp(loss, leaves[problem.position], direction, leaves=[*leaves, direction])
    tensors = problem.tensors()
    before, x, after = tensors[: problem.position], tensors[problem.position], tensors[problem.position + 1 :]
    vector, differentiable = torch.ones_like(x), x.clone().requires_grad_()
    gradient = torch.func.grad(lambda value: problem.formula(TORCH, *before, value, *after))

    def twice() -> Tensor:
        value = problem.formula(TORCH, *before, differentiable, *after)
        (first,) = torch.autograd.grad(value, differentiable, create_graph=True)
        return torch.autograd.grad(first, differentiable, vector)[0]

    return [partial(program, *tensors, vector), lambda: torch.func.jvp(gradient, (x,), (vector,))[1], twice]
