"""Trajectories and CPU seconds until the exact distribution is right, beside torchgfn, on hypergrids and bit sequences.

    python scripts/race_torchgfn.py [--quick] [--json FILE]

Both sides train the same network (an MLP with two hidden layers of 256, one-hot places) with the same objective and a
uniform P_B, by Adam at constant rates, log Z at 0.1, gradients clipped at a norm of 1, on trajectories of the policy
itself (epsilon 0), at some points of the grid softened by a temperature. Every 16 of them the terminating distribution
is computed by push-forward over all states, outside the time, and compared with the target. Each side runs at its best
of one grid: trajectories sampled per step, others that are trained on beside them (remembered, or drawn backwards from
remembered terminal states), updates of the policy per step, learning rate, temperature. Best is judged by medians of
five seeds that do not race, on the way to the lower bar: for torchgfn the least product of trajectories and CPU
seconds; for us the fewest trajectories in at most three quarters of the seconds that this takes torchgfn. The question
is whether we are ahead in both figures at once. Trajectories are those sampled: what is trained on again asks for no
reward, but its CPU time counts. Times are of one thread, both sides taking turns.

What differs is what each library does by itself: our log Z starts at the estimate of a first batch and our flows at its
mean log-reward, a batch's distinct states are read once, remembered terminal states are distinct and drawn evenly;
torchgfn keeps the log-probabilities found while sampling where it can, remembers terminal states as often as they were
sampled (train_hypergrid_buffer.py), and draws all it trains on from its buffer of trajectories where that is used
(train_hypergrid.py). Neither has an option for several updates of this kind per step: it is a loop here, on both sides.

torchgfn runs in its own environment, which `python scripts/peers/environment.py` installs; there is no race without it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, finish, parse_arguments, skip
from scripts.peers.environment import PeerError, find_environment
from scripts.peers.process import KEEPS_FREED_MEMORY, PeerProcess
from scripts.race.contest import Entry, Way, compete
from scripts.race.spaces import bit_sequences, hypergrid

PEER_SCRIPT = Path(__file__).resolve().parent / "peers" / "torchgfn_race_side.py"
SEEDS, SEEDS_QUICK = tuple(range(9)), (0,)
# Trajectories per step, times as many others, updates, rate, whether the others are drawn backwards, temperature.
DEFAULT: Way = (16, 0, 1, 1e-3, False, 1.0)  # of torchgfn's scripts
WAYS = [(32, 8, 8, 3e-3), (16, 16, 8, 3e-3), (16, 8, 8, 5e-3), (16, 8, 12, 5e-3), (16, 16, 12, 5e-3)]
WAYS += [(64, 3, 4, 3e-3), (8, 16, 8, 3e-3), (8, 32, 8, 3e-3)]
MANY_UPDATES = [(16, 8, 20, 3e-3), (16, 8, 20, 5e-3)]
SOFTENED = [(16, 8, 12, 5e-3), (16, 8, 20, 5e-3)]
FEW_UPDATES = [(16, 3, 1, 3e-3), (16, 0, 1, 3e-3)]
REMEMBERED: list[Way] = [*((*way, False, 1.0) for way in (*WAYS, *FEW_UPDATES)), DEFAULT]
BACKWARD: list[Way] = [(*way, True, 1.0) for way in (*WAYS, *MANY_UPDATES)]
BACKWARD += [*((*way, True, 1.3) for way in SOFTENED), DEFAULT]
FULL = (
    Entry(hypergrid(2, 8), "tb", BACKWARD, 20_000),
    Entry(hypergrid(2, 8), "db", BACKWARD, 20_000),
    Entry(hypergrid(2, 8), "subtb", BACKWARD, 20_000),
    Entry(hypergrid(2, 16), "tb", BACKWARD, 20_000),
    Entry(bit_sequences(8, 2, 4), "tb", REMEMBERED, 20_000),  # in a tree there is one way back, and it is remembered
    Entry(bit_sequences(9, 3, 4), "tb", REMEMBERED, 20_000),
)
QUICK = (Entry(hypergrid(2, 8), "db", BACKWARD[2:3], 3_000),)


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    entries, seeds = (QUICK, SEEDS_QUICK) if arguments.quick else (FULL, SEEDS)
    rows: list[Row] = []
    try:
        python = find_environment()
    except PeerError as problem:
        skip("race_torchgfn.py", str(problem))
        return finish([], json_path=arguments.json)
    with PeerProcess(python, PEER_SCRIPT, variables=KEEPS_FREED_MEMORY) as peer:
        for entry in entries:
            rows += compete(entry, peer, seeds=seeds)
    print()
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
