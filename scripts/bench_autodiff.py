"""Times derivatives of tensor graphs beside torch.func, eager torch.autograd and jitted JAX, and how long they derive.

    python scripts/bench_autodiff.py [--quick] [--json FILE]

float64, one thread, CPU time; within a case all sides take turns, first and last alternating, and a figure is the
median of the rounds' ratios. Before they are timed, ours and torch's have to agree. JAX runs in another process, which
times one case at a time in the same turns; it is no dependency: the environment variable JAX_PYTHON names an
interpreter that has it, and without one those rows are missing. A derivation is timed with an empty cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.autodiff.compilation import clear_cache, compile_gradient, compile_hessian
from scripts.bench import Row, at_least, at_most, figure, finish, median_ratio, parse_arguments, skip
from scripts.derivatives.problems import PROBLEMS
from scripts.derivatives.sides import BY_HAND, Call, JaxSide, gradients, graph_of, hessians, products, seconds_per_call

# By case, how many times as fast as torch.func.hessian ours is to be; JAX is to be no faster.
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
PRODUCTS = ("logistic regression n=300", "logistic regression n=1000", "MLP 2xtanh h=16", "MLP 10xReLU h=16")
DEEP = "MLP 10xtanh h=16"
SAME = 1e-8  # relative to the largest entry, in float64; torch's softplus is linear above 20, where e^-20 = 2e-9


def main() -> int:
    """Run the benchmark and return 1 when a goal is missed."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    rounds, seconds = (5, 0.02) if options.quick else (25, 0.05)
    jax_side = _jax_side()
    bench = Bench(rounds, seconds, jax_side)
    rows = [*bench.hessian_rows(), *bench.gradient_rows(), *bench.product_rows(), *derivation_rows(rounds)]
    rows.append(at_most("largest relative difference of ours and torch's", bench.largest_error, "", SAME))
    if jax_side is not None:
        jax_side.close()
    return finish(rows, json_path=options.json)


def _jax_side() -> JaxSide | None:
    try:
        side = JaxSide.started()
    except (RuntimeError, OSError) as error:
        skip("rows of JAX", f"{error}; set JAX_PYTHON to an interpreter with JAX")
        return None
    print(f"JAX {side.version} in another process")
    return side


class Bench:
    """Times cases, all sides in turn."""

    def __init__(self, rounds: int, seconds: float, jax_side: JaxSide | None) -> None:
        """Take how many rounds there are, how long a side is called in each, and the process with JAX, if any."""
        self.rounds, self.seconds, self.jax_side = rounds, seconds, jax_side
        self.largest_error = 0.0

    def hessian_rows(self) -> list[Row]:
        """Return ours against torch.func.hessian, a closed form written by hand (no goal), and jitted JAX."""
        rows = []
        for case, factor in HESSIANS.items():
            by_hand = BY_HAND.get(case.partition(" n=")[0])
            ours, theirs, *others = self.times(case, "hessian", hessians(PROBLEMS[case], by_hand))
            rows += [
                _microseconds(f"Hessian, {case}: ours", ours),
                _ratio(f"Hessian, {case}: torch.func.hessian / ours", theirs, ours, factor),
            ]
            if by_hand is not None:
                rows.append(_ratio(f"Hessian, {case}: by hand / ours", others.pop(0), ours, None))
            if others:
                rows.append(_ratio(f"Hessian, {case}: JAX / ours", others[0], ours, 1.0))
        return rows

    def gradient_rows(self) -> list[Row]:
        """Return ours beside eager autograd, and, without a goal, beside jitted JAX."""
        rows = []
        for case, factor in GRADIENTS.items():
            times = self.times(case, "gradient", gradients(PROBLEMS[case]))
            rows += [
                _microseconds(f"gradient, {case}: ours", times[0]),
                _ratio(f"gradient, {case}: eager autograd / ours", times[1], times[0], factor),
            ]
            if len(times) > 2:
                rows.append(_ratio(f"gradient, {case}: JAX / ours", times[2], times[0], None))
        return rows

    def product_rows(self) -> list[Row]:
        """Return ours beside torch.func, and, without a goal, beside autograd through a gradient and jitted JAX."""
        rows = []
        for case in PRODUCTS:
            times = self.times(case, "product", products(PROBLEMS[case]))
            rows += [
                _microseconds(f"Hessian-vector product, {case}: ours", times[0]),
                _ratio(f"Hessian-vector product, {case}: torch.func / ours", times[1], times[0], 3.0),
                _ratio(f"Hessian-vector product, {case}: autograd twice / ours", times[2], times[0], None),
            ]
            if len(times) > 3:
                rows.append(_ratio(f"Hessian-vector product, {case}: JAX / ours", times[3], times[0], None))
        return rows

    def times(self, case: str, kind: str, sides: Sequence[Call]) -> list[list[float]]:
        """Return the seconds per call of each side, and of JAX last, round by round; a first round does not count."""
        ours, *others = (side() for side in sides)
        self.largest_error = max(self.largest_error, *(relative_difference(ours, other) for other in others))
        timed: list[Callable[[], float]] = [partial(seconds_per_call, side, self.seconds) for side in sides]
        if self.jax_side is not None:
            timed.append(partial(self.jax_side.seconds_per_call, case, kind, self.seconds))
        seconds: list[list[float]] = [[] for _ in timed]
        for number in range(self.rounds + 1):
            places = range(len(timed))
            for place in places if number % 2 else reversed(places):
                seconds[place].append(timed[place]())
        return [of_side[1:] for of_side in seconds]


def relative_difference(first: Tensor | Sequence[Tensor], second: Tensor | Sequence[Tensor]) -> float:
    """Return the largest difference of two derivatives, over the largest entry."""
    pairs = list(zip(*(([x] if isinstance(x, Tensor) else x) for x in (first, second)), strict=True))
    return float(max((a - b).abs().max() for a, b in pairs) / max(b.abs().max() for _, b in pairs))


def derivation_rows(rounds: int) -> list[Row]:
    """Return how long it takes to derive and compile for ten layers, and to find what is there already."""
    problem = PROBLEMS[DEEP]

    def gradient() -> None:
        loss, leaves = graph
        compile_gradient(loss, [leaves[k] for k in problem.trained_positions], leaves=leaves)

    def hessian() -> None:
        loss, leaves = graph
        compile_hessian(loss, leaves[problem.position], leaves=leaves)

    rows = []
    for name, derive, limit in (("gradient", gradient, 5.0), ("Hessian", hessian, 20.0)):
        cold, warm = [], []
        for _ in range(4 * rounds):
            graph = graph_of(problem)  # new leaf objects, the same structure
            clear_cache()
            cold.append(1000 * _once(derive))
            graph = graph_of(problem)
            warm.append(1000 * _once(derive))
        rows += [at_most(f"{name}, {DEEP}: derivation and compilation", median(cold), "ms", limit)]
        rows += [at_most(f"{name}, {DEEP}: the same structure again", median(warm), "ms", 0.5)]
    return rows


def _once(call: Callable[[], None]) -> float:
    return seconds_per_call(call, 0.0)


def _microseconds(name: str, times: Sequence[float]) -> Row:
    return figure(name, 1e6 * median(times), "us")


def _ratio(name: str, theirs: Sequence[float], ours: Sequence[float], factor: float | None) -> Row:
    return at_least(name, median_ratio(theirs, ours), "x", factor)


if __name__ == "__main__":
    sys.exit(main())
