"""Workers: what a call of the policy costs on its way, and whether several processes make more rollouts than one.

    python scripts/bench_workers.py [--quick] [--json FILE]

Graph building with two node types, up to 7 nodes and 12 actions; untrained policies of width 64 with 3 layers.

Round trips: one worker asks about 64 graphs half way, call by call in turn with the bare network in the main process;
each transport in turn, in new processes; and the same for a null model, which has its answer ready. Wall time, medians.

Rollouts: streams of 64 evaluated trajectories, made here or by two workers, are drained without training steps in
between, in turn. The start of the processes is not counted, nor are graphs whose score was known already.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, finish, parse_arguments
from scripts.workers import equality, round_trips, speeds


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    return finish(quick() if arguments.quick else full(), json_path=arguments.json)


def full() -> list[Row]:
    """Return the figures."""
    return [
        *equality.measure(num_rollouts=4),
        *round_trips.measure(num_sessions=5, num_turns=10, num_warm_up_calls=40),
        *speeds.measure_cheap(num_rounds=7, num_rollouts=30),
        *speeds.measure_dear(num_rounds=3, num_rollouts=4, num_trajectories=64),
    ]


def quick() -> list[Row]:
    """Return the same figures of fewer and shorter rounds."""
    return [
        *equality.measure(num_rollouts=2),
        *round_trips.measure(num_sessions=1, num_turns=1, num_warm_up_calls=5),
        *speeds.measure_cheap(num_rounds=1, num_rollouts=2, num_trajectories=16),
        *speeds.measure_dear(num_rounds=1, num_rollouts=2, num_trajectories=8),
    ]


if __name__ == "__main__":
    sys.exit(main())
