"""Measure trajectories sampled and training steps on hypergrids, compared with gfnx (JAX).

    python scripts/bench_hypergrid.py [--quick] [--json FILE]

Both sides have the same network, an MLP with two hidden layers of 256 and one-hot coordinates, trajectory balance with
a uniform P_B and Adam. A training step samples its batch. gfnx runs in its own environment and process, an activity as
one jitted function; both sides take turns of several batches on one thread. Times are CPU seconds of the process that
did the work; ratios are medians of the rounds' ratios. scripts/peers/gfnx.txt has the commands that install gfnx; its
rows are missing otherwise.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.envs.slots import HypergridEnv
from gflownet.policy.mlp import MLPPolicy
from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, at_least, cpu_seconds, figure, finish, interleaved, median_ratio, parse_arguments, skip
from scripts.bench_sampling import Ours
from scripts.peers.process import PeerError, PeerProcess, find_environment

SIDE, WIDTH, NUM_LAYERS = 8, 256, 2
CELLS = tuple(product((2, 4), (64, 16), ("sample", "train")))  # dimensions, batch, activity
GOALS = {"sample": 1.5, "train": 1.0}
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}
UNITS = {"sample": "ms per batch", "train": "ms per step"}


def rows_of(*, num_rounds: int, repeats: int) -> list[Row]:
    """Return the times of all cells and the ratios, without gfnx's where it is not installed."""
    sides = {("ours", cell): partial(cpu_seconds, _our_side(*cell), repeats) for cell in CELLS}
    with ExitStack() as stack:
        try:
            peer = stack.enter_context(PeerProcess(find_environment("gfnx"), "gfnx_side.py", variables=ONE_THREAD))
        except PeerError as error:
            skip("rows of gfnx", str(error))
        else:
            sides |= {("gfnx", cell): partial(_gfnx_seconds, peer, *cell, repeats) for cell in CELLS}
        interleaved(sides, rounds=1, warm_up=0)
        gc.collect()
        gc.freeze()  # as in take_turns
        seconds = interleaved(sides, rounds=num_rounds, warm_up=0)
    rows = [
        figure(f"{_label(*cell)}: {side}", 1_000 * median(times), UNITS[cell[2]])
        for (side, cell), times in seconds.items()
    ]
    ratios = {
        cell: median_ratio(seconds["gfnx", cell], seconds["ours", cell]) for side, cell in seconds if side == "gfnx"
    }
    return rows + [
        at_least(f"{_label(*cell)}: ours against gfnx", x, "x", GOALS[cell[2]]) for cell, x in ratios.items()
    ]


def _label(num_dims: int, batch: int, activity: str) -> str:
    return f"{activity}, {' x '.join([str(SIDE)] * num_dims)}, batch {batch}"


def _our_side(num_dims: int, batch: int, activity: str) -> Callable[[], object]:
    """Return a function that samples a batch with an untrained policy, or takes a training step."""
    side = Ours(HypergridEnv(num_dims, SIDE), policy_class=MLPPolicy, width=WIDTH, layers=NUM_LAYERS, batch=batch)
    return side.sample_batch if activity == "sample" else side.train_batch


def _gfnx_seconds(peer: PeerProcess, num_dims: int, batch: int, activity: str, repeats: int) -> float:
    sizes = {"num_dims": num_dims, "side": SIDE, "batch": batch, "width": WIDTH, "num_layers": NUM_LAYERS}
    rates = {"learning_rate": 1e-3, "learning_rate_log_z": 0.1}
    return peer.request({"do": activity, "repeats": repeats, **sizes, **rates})["cpu_seconds"] / repeats


def main() -> int:
    """Run the bench and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    num_rounds, repeats = (3, 10) if arguments.quick else (15, 30)
    return finish(rows_of(num_rounds=num_rounds, repeats=repeats), json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
