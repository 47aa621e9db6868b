"""Measure the cost of sampling operation graphs, compared with computation graphs of the same size.

    python scripts/bench_operation_sampling.py [--quick] [--json FILE]

Both sides have up to 12 nodes and 20 edges, the same number of values per node and an untrained policy, and take turns.
Figures are medians of CPU seconds on one thread, ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.operation_graph import OperationGraphContext, OperationGraphEnv
from gflownet.operations.tensor_shape import Shape
from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, at_most, figure, finish, median_ratio, parse_arguments
from scripts.sampling_sides import Ours, take_turns

NUM_HIDDEN, MAX_EDGES = 10, 20
GOAL = 1.5
BATCHES = (16, 64, 256)
OPERATIONS, COMPUTATIONS = "operation graphs", "computation graphs"


def computation_graphs() -> ComputationGraphEnv:
    """Return graphs with six types, three and two values per node."""
    return ComputationGraphEnv(
        (192,),
        (10,),
        activations=["relu", "tanh", "sigmoid", "gelu", "linear", "silu"],
        aggregations=["sum", "max"],
        hidden_sizes=[8, 16, 32],
        max_hidden_nodes=NUM_HIDDEN,
        max_edges=MAX_EDGES,
    )


def operation_graphs() -> OperationGraphEnv:
    """Return networks of six operations on images with both limits."""
    merges = {"merge": ["sum", "max"]}
    window = {"features": [8, 16, 32], "kernel_size": 3, "dilation": 1, **merges}
    return OperationGraphEnv(
        [Shape.of([3, 32, 32])],
        10,
        operations=["conv_bn_relu", "conv2d", "batch_norm", "max_pool2d", "avg_pool2d", "identity"],
        choices={
            "conv_bn_relu": {**window, "stride": [1, 2]},
            "conv2d": {**window, "stride": [1, 2]},
            "max_pool2d": {"kernel_size": 2, **merges},
            "avg_pool2d": {"kernel_size": [2, 3], **merges},
            "batch_norm": merges,
            "identity": merges,
        },
        max_hidden_nodes=NUM_HIDDEN,
        max_edges=MAX_EDGES,
        max_parameters=50_000,
        max_multiply_adds=10_000_000,
    )


def sampling_rows(batches: Sequence[int] = BATCHES, *, num_rounds: int) -> list[Row]:
    """Return the CPU time of both sides and their ratio, per state and per trajectory."""
    sides = {}
    for batch in batches:
        ours = Ours(operation_graphs(), batch=batch, context_class=OperationGraphContext)
        sides[batch, OPERATIONS] = ours.sample
        sides[batch, COMPUTATIONS] = Ours(computation_graphs(), batch=batch).sample
    turns = take_turns(sides, num_rounds=num_rounds)
    rows = []
    for batch in batches:
        for unit, one in {"states": "state", "trajectories": "trajectory"}.items():
            names = OPERATIONS, COMPUTATIONS
            seconds = {name: [1 / turn.rate(unit) for turn in turns[batch, name]] for name in names}
            label = f"sampling, batch {batch}"
            rows += [figure(f"{label}, {name}", 1e6 * median(each), f"us per {one}") for name, each in seconds.items()]
            ratio = median_ratio(seconds[OPERATIONS], seconds[COMPUTATIONS])
            rows.append(at_most(f"{label}, {OPERATIONS} over {COMPUTATIONS}, per {one}", ratio, "x", GOAL))
    return rows


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    return finish(sampling_rows(num_rounds=3 if arguments.quick else 15), json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
