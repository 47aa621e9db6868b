"""Times derivatives of tensor graphs beside torch.func, eager torch.autograd and jitted JAX, and how long they derive.

    python scripts/bench_autodiff.py [--quick] [--json FILE]

float64, one thread, CPU time; within a case all sides take turns, round after round, and a figure is the median of the
rounds' ratios. JAX runs in a process of its own, told to time one case at a time, in the same turns; it is no
dependency: the environment variable JAX_PYTHON names an interpreter that has it, and without one those rows are
missing and a line says why. The derivation is timed anew in every round, with nothing kept from the one before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.autodiff.compile import clear_cache, compile_gradient, compile_hessian
from scripts.bench import Row, finish, parse_arguments
from scripts.derivatives.problems import PROBLEMS
from scripts.derivatives.sides import Call, JaxSide, gradients, graph_of, hessians, products, seconds_per_call

# by case, how many times as fast as torch.func.hessian ours is to be, and whether it is to keep up with JAX
HESSIANS = {
    "quadratic form n=1000": (10, True),
    "logistic regression n=300": (10, True),
    "matrix factorisation n=100 k=5": (1000, True),
    "MLP 2xtanh h=16": (10, True),
    "MLP 2xtanh h=16, by weights": (10, True),
    "MLP 10xReLU h=16": (10, True),
    "MLP 10xReLU h=16, by weights": (10, True),
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


def main() -> int:
    """Run the benchmark and return 1 when a goal is missed."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    rounds, seconds = (5, 0.02) if options.quick else (25, 0.05)
    jax_side = _jax_side()
    bench = Bench(rounds, seconds, jax_side)
    rows = [*bench.hessian_rows(), *bench.gradient_rows(), *bench.product_rows(), *derivation_rows(rounds)]
    if jax_side is not None:
        jax_side.close()
    return finish(rows, json_path=options.json)


def _jax_side() -> JaxSide | None:
    try:
        side = JaxSide.started()
    except (RuntimeError, OSError) as error:
        print(f"no rows of JAX: {error}; JAX_PYTHON names an interpreter that has it")
        return None
    print(f"JAX {side.version} in a process of its own")
    return side


class Bench:
    """Times cases, all sides in turn."""

    def __init__(self, rounds: int, seconds: float, jax_side: JaxSide | None) -> None:
        """Take how many rounds there are, how long a side is called in each, and the process with JAX, if any."""
        self.rounds, self.seconds, self.jax_side = rounds, seconds, jax_side

    def hessian_rows(self) -> list[Row]:
        """Return ours beside torch.func.hessian, and beside jitted JAX."""
        rows = []
        for case, (factor, is_raced) in HESSIANS.items():
            times = self.times(case, "hessian", hessians(PROBLEMS[case]))
            rows += [
                _microseconds(f"Hessian, {case}: ours", times[0]),
                _ratio(f"Hessian, {case}: torch.func.hessian / ours", times[1], times[0], factor),
            ]
            if is_raced and len(times) > 2:
                rows.append(_ratio(f"Hessian, {case}: JAX / ours", times[2], times[0], 1.0))
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
        found: list[list[float]] = []
        for _ in range(self.rounds + 1):
            row = [seconds_per_call(side, self.seconds) for side in sides]
            if self.jax_side is not None:
                row.append(self.jax_side.seconds_per_call(case, kind, self.seconds))
            found.append(row)
        return [list(side) for side in zip(*found[1:], strict=True)]


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
        rows += [_limit(f"{name}, {DEEP}: derivation and compilation", cold, limit)]
        rows += [_limit(f"{name}, {DEEP}: the same structure again", warm, 0.5)]
    return rows


def _once(call: Callable[[], None]) -> float:
    return seconds_per_call(call, 0.0)


def _microseconds(name: str, times: Sequence[float]) -> Row:
    return Row(name, 1e6 * median(times), "us", "", True)


def _ratio(name: str, theirs: Sequence[float], ours: Sequence[float], factor: float | None) -> Row:
    value = median(slow / fast for slow, fast in zip(theirs, ours, strict=True))
    return Row(name, value, "x", "" if factor is None else f">= {factor:g}", factor is None or value >= factor)


def _limit(name: str, milliseconds: Sequence[float], limit: float) -> Row:
    value = median(milliseconds)
    return Row(name, value, "ms", f"<= {limit:g}", value <= limit)


if __name__ == "__main__":
    sys.exit(main())
