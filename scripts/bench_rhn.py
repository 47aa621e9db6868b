"""Measure an RHN along the wavefront against plain ways to run it, and the peak memory of a training pass.

    python scripts/bench_rhn.py [--quick] [--json FILE]

float32, one thread, CPU time of the blocks alone (no embedding, no unembedding). All sides of a case take turns in
alternating order; ratios are medians of the rounds' ratios. Sides (scripts/rhn_sides.py):

- wavefront: `along_wavefront`; its backward pass recomputes every diagonal from the states;
- naive: `layer_by_layer`, layer after layer, token after token, under torch.autograd;
- one layer at a time: `in_groups(layers=1)`, the order with the least training memory;
- checkpointed (memory only): naive, with every layer recomputed in the backward pass (torch.utils.checkpoint);
- materialised: W + B A is built for every token, under torch.autograd.

The share of the matmul peak counts the multiply-adds of the cell (times three for forward and backward; recomputation
not counted) against a product of two 2048 x 2048 matrices, timed in every round.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.rhn.network import RHN, Stack
from scripts.bench import Row, at_least, cpu_seconds, figure, finish, interleaved, median_ratio, parse_arguments, skip
from scripts.rhn_sides import CASES, STACKS, Case

# Goals by case and side: time of the side / time of the wavefront; None: no goal.
FORWARD: dict[str, dict[str, float | None]] = {
    "S": {"naive": 2.0, "one layer at a time": None},
    "M": {"naive": None, "one layer at a time": None},
    "L": {"naive": 0.95, "one layer at a time": None},
    "D12": {"naive": 5.0, "one layer at a time": None},
    "D24": {"naive": 9.0, "one layer at a time": None},
}
BOTH: dict[str, dict[str, float | None]] = {
    "S": {"naive": None, "one layer at a time": None},
    "M": {"naive": 2.2, "one layer at a time": None, "materialised": 5.0},
    "L": {"naive": 2.2, "one layer at a time": None, "materialised": 4.0},
    "D12": {"naive": 7.0, "one layer at a time": None, "materialised": 8.0},
    "D24": {"naive": None, "one layer at a time": None},
}
PEAK_SHARES = {("M", "forward"): 0.20, ("M", "forward+backward"): 0.15}
# Case, tokens, goal: memory of the naive side / memory of one layer at a time.
MEMORY: tuple[tuple[str, int, float | None], ...] = (
    ("S", 64, None),
    ("M", 128, 20.0),
    ("M", 512, 40.0),
    ("L", 128, None),
)
MATRIX = 2048


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    rounds, cases, memory = (1, ("S", "D12"), MEMORY[:1]) if options.quick else (3, CASES, MEMORY)
    rows = [row for name in cases for row in speed_rows(name, rounds)]
    if os.access("/proc/self/clear_refs", os.W_OK):
        for name, tokens, factor in memory:
            rows += memory_rows(name, tokens, factor)
    else:
        skip("rows of peak memory", "/proc/self/clear_refs is not writable")
    return finish(rows, json_path=options.json)


def speed_rows(name: str, rounds: int) -> list[Row]:
    """Return the times of the wavefront and the ratios of the other sides."""
    case, network = CASES[name], CASES[name].network()
    rows = []
    for passes, run, goals, cost in (("forward", _forward, FORWARD, 1), ("forward+backward", _both, BOTH, 3)):
        matrix = torch.ones(MATRIX, MATRIX)
        sides: dict[str, Callable[[], float]] = {"matmul": lambda matrix=matrix: cpu_seconds(lambda: matrix @ matrix)}
        for side in ("wavefront", *goals[name]):
            run(network, replace(case, tokens=4), STACKS[side])
            sides[side] = partial(run, network, case, STACKS[side])
        times = interleaved(sides, rounds=rounds, warm_up=0)
        print(f"{name}, {passes}: timed", flush=True)
        rows.append(figure(f"{name}, {passes}: wavefront", 1e3 * median(times["wavefront"]), "ms"))
        for side, goal in goals[name].items():
            rows.append(_ratio(f"{name}, {passes}: {side} / wavefront", times[side], times["wavefront"], goal))
        rates = [cost * case.multiply_adds / MATRIX**3 * seconds for seconds in times["matmul"]]
        goal = PEAK_SHARES.get((name, passes))
        rows.append(_ratio(f"{name}, {passes}: share of the matmul peak", rates, times["wavefront"], goal))
    return rows


def memory_rows(name: str, tokens: int, factor: float | None) -> list[Row]:
    """Return the peak memories of a training pass, each measured in a new process, and their ratios."""
    where = f"{name}, {tokens} tokens, peak memory"
    script = Path(__file__).with_name("rhn_sides.py")
    peaks = {}
    for stack in ("one layer at a time", "wavefront", "naive", "checkpointed"):
        completed = subprocess.run(
            [sys.executable, script, name, stack, str(tokens)], check=True, capture_output=True, text=True
        )
        peaks[stack] = float(completed.stdout)
    gradients = sum(parameter.nbytes for parameter in CASES[name].network().blocks.parameters()) / 2**20
    rows = [figure(f"{where}: {stack}", value, "MB") for stack, value in peaks.items()]
    rows.append(figure(f"{where}: of which gradients of the parameters", gradients, "MB"))
    return [
        *rows,
        _ratio(f"{where}: naive / least", [peaks["naive"]], [peaks["one layer at a time"]], factor),
        _ratio(f"{where}: checkpointed / least", [peaks["checkpointed"]], [peaks["one layer at a time"]], None),
    ]


def _forward(network: RHN, case: Case, stack: Stack) -> float:
    x = case.embedded()
    with torch.no_grad():
        return cpu_seconds(lambda: stack(network.layers, x, None))


def _both(network: RHN, case: Case, stack: Stack) -> float:
    x = case.embedded()
    network.zero_grad()
    return cpu_seconds(lambda: stack(network.layers, x, None)[0].square().sum().backward())


def _ratio(name: str, theirs: Sequence[float], ours: Sequence[float], factor: float | None) -> Row:
    return at_least(name, median_ratio(theirs, ours), "x", factor)


if __name__ == "__main__":
    sys.exit(main())
