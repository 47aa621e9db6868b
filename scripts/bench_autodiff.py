"""Measure derivatives of tensor graphs against torch.func and eager torch.autograd, and the time to derive them.

    python scripts/bench_autodiff.py [--quick] [--json FILE]

float64, one thread, CPU time. All sides of a case take turns in alternating order; figures are medians of the rounds'
ratios. The results of all sides are compared before they are timed. A derivation is timed with an empty cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor

from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import clear_cache, compile, compile_gradient, compile_hessian
from gflownet.autodiff.derivatives import hvp
from gflownet.autodiff.nodes import LeafNode, Node
from scripts.bench import Row, at_least, at_most, figure, finish, interleaved, median_ratio, parse_arguments

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
    program = compile(hvp(loss, leaves[problem.position], direction), leaves=[*leaves, direction])
    tensors = problem.tensors()
    before, x, after = tensors[: problem.position], tensors[problem.position], tensors[problem.position + 1 :]
    vector, differentiable = torch.ones_like(x), x.clone().requires_grad_()
    gradient = torch.func.grad(lambda value: problem.formula(TORCH, *before, value, *after))

    def twice() -> Tensor:
        value = problem.formula(TORCH, *before, differentiable, *after)
        (first,) = torch.autograd.grad(value, differentiable, create_graph=True)
        return torch.autograd.grad(first, differentiable, vector)[0]

    return [partial(program, *tensors, vector), lambda: torch.func.jvp(gradient, (x,), (vector,))[1], twice]


# Goals: the time of torch over ours.
HESSIANS = {
    "quadratic form n=1000": 10,
    "logistic regression n=300": 10,
    "matrix factorisation n=100 k=5": 1000,
    "MLP 2xtanh h=16": 10,
    "MLP 2xtanh h=16, by weights": 10,
    "MLP 10xReLU h=16": 10,
    "MLP 10xReLU h=16, by weights": 10,
}
GRADIENTS = {
    "quadratic form n=16": 1.3,
    "logistic regression n=30": 1.3,
    "logistic regression n=300": 1.3,
    "matrix factorisation n=100 k=5": 1.3,
    "MLP 2xtanh h=16": 1.3,
    "MLP 10xReLU h=16": 1.3,
    "MLP 10xtanh h=16": 1.3,
    "MLP 2xtanh h=256": 1.0,
    "quadratic form n=1000": 1.0,
    "logistic regression n=1000": 1.0,
}
PRODUCTS = dict.fromkeys(
    ("logistic regression n=300", "logistic regression n=1000", "MLP 2xtanh h=16", "MLP 10xReLU h=16"), 3.0
)
# Row prefix, cases with goals, sides, and labels of the sides after ours; the goal belongs to the first label.
DERIVATIVES = (
    ("Hessian", HESSIANS, hessians, ("torch.func.hessian", "by hand")),
    ("gradient", GRADIENTS, gradients, ("eager autograd",)),
    ("Hessian-vector product", PRODUCTS, products, ("torch.func", "autograd twice")),
)
DEEP = "MLP 10xtanh h=16"
TOLERANCE = 1e-8  # relative to the largest entry; torch's softplus is linear above 20, where e^-20 = 2e-9


def derivative_rows(rounds: int, seconds: float) -> list[Row]:
    """Return our time per call and the time of the other sides over ours."""
    rows, largest_error = [], 0.0
    for kind, goals, make_sides, labels in DERIVATIVES:
        for case, goal in goals.items():
            sides = make_sides(PROBLEMS[case])
            ours, *other_results = (side() for side in sides)
            largest_error = max(largest_error, *(relative_difference(ours, other) for other in other_results))
            timed = {number: partial(seconds_per_call, side, seconds) for number, side in enumerate(sides)}
            times = list(interleaved(timed, rounds=rounds).values())
            rows.append(figure(f"{kind}, {case}: ours", 1e6 * median(times[0]), "us"))
            for number, (label, theirs) in enumerate(zip(labels, times[1:], strict=False)):
                ratio = median_ratio(theirs, times[0])
                rows.append(at_least(f"{kind}, {case}: {label} / ours", ratio, "x", None if number else goal))
    return [*rows, at_most("largest relative difference of ours and torch's", largest_error, "", TOLERANCE)]


def seconds_per_call(call: Call, seconds: float) -> float:
    """Return the CPU seconds of a call, averaged over at least this wall time."""
    num_calls, wall_start, cpu_start = 0, time.perf_counter(), time.process_time()
    while not num_calls or time.perf_counter() - wall_start < seconds:
        call()
        num_calls += 1
    return (time.process_time() - cpu_start) / num_calls


def relative_difference(first: Tensor | Sequence[Tensor], second: Tensor | Sequence[Tensor]) -> float:
    """Return the largest difference of two derivatives over the largest entry of the second."""
    pairs = list(zip(*(([x] if isinstance(x, Tensor) else x) for x in (first, second)), strict=True))
    return float(max((a - b).abs().max() for a, b in pairs) / max(b.abs().max() for _, b in pairs))


def derivation_rows(rounds: int) -> list[Row]:
    """Return the time to derive and compile for ten layers, with an empty cache and for a cached structure."""
    problem = PROBLEMS[DEEP]

    def gradient() -> None:
        loss, leaves = graph
        compile_gradient(loss, [leaves[k] for k in problem.gradient_positions], leaves=leaves)

    def hessian() -> None:
        loss, leaves = graph
        compile_hessian(loss, leaves[problem.position], leaves=leaves)

    rows = []
    for name, derive, limit in (("gradient", gradient, 5.0), ("Hessian", hessian, 20.0)):
        milliseconds: Mapping[str, list[float]] = {"derivation and compilation": [], "the same structure again": []}
        for _ in range(4 * rounds):
            clear_cache()
            for of_kind in milliseconds.values():
                graph = problem.graph()  # new leaf objects, the same structure
                of_kind.append(1000 * seconds_per_call(derive, 0.0))
        for (label, of_kind), goal in zip(milliseconds.items(), (limit, 0.5), strict=True):
            rows.append(at_most(f"{name}, {DEEP}: {label}", median(of_kind), "ms", goal))
    return rows


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    rounds, seconds = (5, 0.02) if options.quick else (25, 0.05)
    return finish([*derivative_rows(rounds, seconds), *derivation_rows(rounds)], json_path=options.json)


if __name__ == "__main__":
    sys.exit(main())
