"""Measure derivatives of tensor graphs against torch.func and eager torch.autograd, and the time to derive them.

    python scripts/bench_autodiff.py [--quick] [--json FILE]

float64, one thread, CPU time. All sides of a case take turns in alternating order; figures are medians of the rounds'
ratios. The results of all sides are compared before they are timed. A derivation is timed with an empty cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.autodiff.compilation import clear_cache, compile_gradient, compile_hessian
from scripts.autodiff_sides import PROBLEMS, Call, gradients, hessians, products
from scripts.bench import Row, at_least, at_most, figure, finish, interleaved, median_ratio, parse_arguments

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
