"""Trajectories sampled and training steps taken per CPU second, in turn with a plain sampler and with torchgfn.

    python scripts/bench_sampling.py [--quick] [--profile] [--json FILE]

Within a part all sides take turns, round after round, and figures are medians over rounds; ratios are medians of the
rounds' ratios. Times are CPU seconds of the process that did the work, on one thread (shares: wall time), with
Python's collector frozen after a first round that does not count. Policies are untrained, with 3 layers; a training
step is what the trainer does with one batch: sample, trajectory balance, backward, Adam. Memory that is freed stays
with the process, as in the trainer.

torchgfn runs in its own environment and process, once as it comes and once with freed memory kept; without that
environment (python scripts/peers/environment.py installs it) its rows are missing.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, finish, parse_arguments
from scripts.sampling import growth, peer_settings, shares, side_by_side

PROFILE_ROUNDS, PROFILE_ROUNDS_QUICK = 21, 5


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__, profile="only the profile of a sampling pass")
    keep_freed_memory()
    torch.set_num_threads(1)
    num_rounds = PROFILE_ROUNDS_QUICK if arguments.quick else PROFILE_ROUNDS
    rows = shares.measure(num_rounds=num_rounds)
    if not arguments.profile:
        rows += quick() if arguments.quick else full()
    return finish(rows, json_path=arguments.json)


def full() -> list[Row]:
    """Return the figures but the shares."""
    return [
        *peer_settings.measure(peer_settings.SETTINGS, num_rounds=21),
        *peer_settings.measure(peer_settings.SETTINGS_BESIDE, num_rounds=5),
        *side_by_side.measure(num_rounds=15),
        *growth.measure(growth.FULL),
    ]


def quick() -> list[Row]:
    """Return fewer figures of fewer rounds."""
    beside = [replace(s, is_trained=False) for s in peer_settings.SETTINGS_BESIDE if s.env.vocabulary.max_nodes <= 12]
    return [
        *peer_settings.measure(peer_settings.SETTINGS, num_rounds=2),
        *peer_settings.measure(beside, num_rounds=1),
        *side_by_side.measure(num_rounds=2),
        *growth.measure(growth.QUICK),
    ]


if __name__ == "__main__":
    sys.exit(main())
