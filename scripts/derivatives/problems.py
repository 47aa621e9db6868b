"""Scalar functions to differentiate, each written once for torch and for JAX, and the arrays they are taken at.

Nothing but numpy is needed here, so that a process with JAX and without torch can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

HIDDEN = 16


@dataclass(frozen=True)
class Problem:
    """A scalar function of arrays."""

    formula: Callable[..., Any]  # of the library's functions, then of the arrays
    shapes: Mapping[str, tuple[int, ...]]  # of the arrays, in order
    wrt: str  # by which one Hessians are taken
    trained: tuple[str, ...]  # by which ones gradients are taken

    @property
    def position(self) -> int:
        """Return the place of `wrt` among the arrays."""
        return list(self.shapes).index(self.wrt)

    @property
    def trained_positions(self) -> tuple[int, ...]:
        """Return the places of `trained` among the arrays."""
        return tuple(list(self.shapes).index(name) for name in self.trained)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Return arrays of float64: normal, matrices with a standard deviation of 0.3."""
        generator = np.random.default_rng(seed)
        return [generator.normal(size=shape) * (0.3 if len(shape) > 1 else 1.0) for shape in self.shapes.values()]


def quadratic_form(size: int) -> Problem:
    """Return x^T A x."""

    def formula(ops: Any, a: Any, x: Any) -> Any:
        return x @ (a @ x)

    return Problem(formula, {"a": (size, size), "x": (size,)}, "x", ("x",))


def logistic_regression(size: int) -> Problem:
    """Return the loss of a linear classifier of `size` weights at twice as many points."""

    def formula(ops: Any, points: Any, sides: Any, weights: Any) -> Any:
        return ops.total(ops.softplus(-((points @ weights) * sides)))

    shapes = {"points": (2 * size, size), "sides": (2 * size,), "weights": (size,)}
    return Problem(formula, shapes, "weights", ("weights",))


def matrix_factorisation(size: int, rank: int) -> Problem:
    """Return ||T - U V^T||^2, by U."""

    def formula(ops: Any, target: Any, u: Any, v: Any) -> Any:
        return ops.total((target - u @ ops.transpose(v)) ** 2)

    return Problem(formula, {"target": (size, size), "u": (size, rank), "v": (size, rank)}, "u", ("u",))


def perceptron(activation: str, num_layers: int, hidden: int = HIDDEN, *, wrt: str = "x") -> Problem:
    """Return a multi-layer perceptron: `o . f(W f(... f(W x + b)) + b)` for tanh, log sum exp of the same for relu.

    Args:
        activation: tanh or relu.
        num_layers: of `hidden` units each.
        hidden: the width, of the input too.
        wrt: by which array Hessians are taken; gradients are taken by all weights and biases.
    """

    def formula(ops: Any, x: Any, o: Any, *layers: Any) -> Any:
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            x = getattr(ops, activation)(weight @ x + bias)
        # piecewise linear in x otherwise
        return o @ x if activation == "tanh" else ops.log(ops.total(ops.exp(o * x)))

    shapes: dict[str, tuple[int, ...]] = {"x": (hidden,), "o": (hidden,)}
    for layer in range(num_layers):
        shapes |= {f"w{layer}": (hidden, hidden), f"b{layer}": (hidden,)}
    return Problem(formula, shapes, wrt, tuple(name for name in shapes if name not in ("x", "o")))


PROBLEMS = {
    "quadratic form n=16": quadratic_form(16),
    "quadratic form n=1000": quadratic_form(1000),
    "logistic regression n=30": logistic_regression(30),
    "logistic regression n=300": logistic_regression(300),
    "logistic regression n=1000": logistic_regression(1000),
    "matrix factorisation n=100 k=5": matrix_factorisation(100, 5),
    "MLP 2xtanh h=16": perceptron("tanh", 2),
    "MLP 2xtanh h=16, by weights": perceptron("tanh", 2, wrt="w0"),
    "MLP 2xtanh h=256": perceptron("tanh", 2, 256),
    "MLP 10xReLU h=16": perceptron("relu", 10),
    "MLP 10xReLU h=16, by weights": perceptron("relu", 10, wrt="w0"),
    "MLP 10xtanh h=16": perceptron("tanh", 10),
}
