"""Race against torchgfn: trajectories and CPU seconds until the exact distribution is right.

    python scripts/race_torchgfn.py [--quick] [--json FILE]

Both sides train the same network (an MLP with two hidden layers of 256, one-hot places) with the same objective and a
uniform P_B, by Adam at constant rates, log Z at 0.1, gradients clipped at a norm of 1, on trajectories of the policy
itself (epsilon 0), in some settings sampled at a temperature. Every 16 trajectories the terminating distribution is
computed by push-forward over all states, outside the measured time, and compared with the target.

Both sides choose from one grid by one rule: the smallest product of trajectories and CPU seconds to the lower bar, by
the medians of five seeds that do not race. A setting has trajectories sampled per step, replayed ones (remembered, or
drawn backward from remembered terminal states), updates per step, learning rate and temperature. Only sampled
trajectories count, because replayed ones need no reward; their CPU time counts. One thread; both sides take turns.

The sides differ in each library's own behaviour: our log Z starts at the estimate of a first batch and our flows at its
mean log-reward, distinct states of a batch are evaluated once, remembered terminal states are distinct and drawn
evenly; torchgfn keeps the log-probabilities of sampling where it can, remembers a terminal state once per sample
(train_hypergrid_buffer.py), and draws all replayed trajectories from its buffer (train_hypergrid.py).
scripts/peers/torchgfn.txt has the commands that install torchgfn; the race needs it.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, figure, finish, parse_arguments, skip
from scripts.peers.process import KEEPS_FREED_MEMORY, PeerError, PeerProcess, find_environment
from scripts.race_sides import Learner, OurLearner, PeerLearner, RaceSpace, Setting, bit_sequences, hypergrid

PEER_SCRIPT = "torchgfn_race_side.py"
BARS = (0.05, 0.02)  # total variation
TURN = 16  # trajectories between two measurements
SEEDS, SEEDS_QUICK = tuple(range(9)), (0,)
TUNING_SEEDS = (1_000, 1_001, 1_002, 1_003, 1_004)  # disjoint from SEEDS
HOPELESS = 2.0  # a tuning run stops at this multiple of the least cost so far
SIDES = ("ours", "torchgfn")
# Batch, replay, updates, learning rate, whether replay is drawn backward, temperature: the fields of Setting.
Options = tuple[int, int, int, float, bool, float]


@dataclass(frozen=True)
class Entry:
    """A space, an objective, and the grid of settings."""

    space: RaceSpace
    objective: str
    grid: Sequence[Options]
    budget: int = 20_000  # trajectories

    @property
    def settings(self) -> list[Setting]:
        """Return the settings of the grid."""
        return [Setting(self.objective, *options) for options in self.grid]


DEFAULT: Options = (16, 0, 1, 1e-3, False, 1.0)  # of torchgfn's scripts
WAYS = [(32, 8, 8, 3e-3), (16, 16, 8, 3e-3), (16, 8, 8, 5e-3), (16, 8, 12, 5e-3), (16, 16, 12, 5e-3)]
WAYS += [(64, 3, 4, 3e-3), (8, 16, 8, 3e-3), (8, 32, 8, 3e-3)]
REMEMBERED: list[Options] = [*((*point, False, 1.0) for point in (*WAYS, (16, 3, 1, 3e-3), (16, 0, 1, 3e-3))), DEFAULT]
BACKWARD: list[Options] = [(*point, True, 1.0) for point in (*WAYS, (16, 8, 20, 3e-3), (16, 8, 20, 5e-3))]
BACKWARD += [(16, 8, 12, 5e-3, True, 1.3), (16, 8, 20, 5e-3, True, 1.3), DEFAULT]
FULL = (
    Entry(hypergrid(2, 8), "tb", BACKWARD),
    Entry(hypergrid(2, 8), "db", BACKWARD),
    Entry(hypergrid(2, 8), "subtb", BACKWARD),
    Entry(hypergrid(2, 16), "tb", BACKWARD),
    Entry(bit_sequences(8, 2, 4), "tb", REMEMBERED),  # a tree has one way back
    Entry(bit_sequences(9, 3, 4), "tb", REMEMBERED),
)
QUICK = (Entry(hypergrid(2, 8), "db", BACKWARD[2:3], budget=3_000),)


@dataclass(frozen=True)
class Reached:
    """Trajectories and CPU seconds until a bar was first reached, or all that were spent if it was not."""

    num_trajectories: int
    cpu_seconds: float
    is_reached: bool = True


class Run:
    """A learner on its way to the bars."""

    def __init__(self, learner: Learner, setting: Setting) -> None:
        self.learner, self.setting = learner, setting
        self.num_trajectories, self.cpu_seconds = 0, 0.0
        self.reached: dict[float, Reached] = {}

    @property
    def is_done(self) -> bool:
        """Return whether every bar is reached."""
        return len(self.reached) == len(BARS)

    @property
    def cost(self) -> float:
        """Return trajectories times CPU seconds so far."""
        return self.num_trajectories * self.cpu_seconds

    def advance(self) -> None:
        """Train on TURN more trajectories and measure."""
        steps = max(1, TURN // self.setting.batch)
        progress = self.learner.train(steps)
        self.num_trajectories += steps * self.setting.batch
        self.cpu_seconds += progress.cpu_seconds
        for bar in BARS:
            if progress.total_variation <= bar:
                self.reached.setdefault(bar, Reached(self.num_trajectories, self.cpu_seconds))

    def result(self, bar: float) -> Reached:
        """Return the cost of a bar."""
        return self.reached.get(bar, Reached(self.num_trajectories, self.cpu_seconds, is_reached=False))


Start = Callable[[Setting, int], Learner]


def compete(entry: Entry, start: Mapping[str, Start], *, seeds: Sequence[int]) -> list[Row]:
    """Tune both sides, race them on every seed, print the results, and return the rows."""
    settings = {side: tune(entry, start[side], side=side) for side in SIDES}
    finished: dict[str, list[Run]] = {side: [] for side in SIDES}
    for seed in seeds:
        runs = {side: Run(start[side](settings[side], seed), settings[side]) for side in SIDES}
        while active := [r for r in runs.values() if not r.is_done and r.num_trajectories < entry.budget]:
            for run in active:
                run.advance()
        for side, run in runs.items():
            run.learner.close()
            finished[side].append(run)
    return [row for bar in BARS for row in _rows(entry, bar, finished)]


def tune(entry: Entry, start: Start, *, side: str) -> Setting:
    """Return the setting of least median cost to the lower bar over the tuning seeds.

    The cost is trajectories times CPU seconds. A run stops when it costs HOPELESS times the best setting so far, and a
    setting is dropped when most of its seeds have stopped. Ties, and a grid without success, go to the first setting.
    """
    best, least = entry.settings[0], math.inf
    texts = []
    for setting in entry.settings:
        runs: list[Run] = []
        for seed in TUNING_SEEDS:
            run = Run(start(setting, seed), setting)
            while not run.is_done and run.num_trajectories < entry.budget and run.cost < HOPELESS * least:
                run.advance()
            run.learner.close()
            runs.append(run)
            if 2 * sum(not run.is_done for run in runs) > len(TUNING_SEEDS):  # the median is not reached either
                break
        num, seconds = (
            statistics.median(getattr(run, name) if run.is_done else math.inf for run in runs)
            for name in ("num_trajectories", "cpu_seconds")
        )
        texts.append(f"({setting}: {f'{num:.0f}, {seconds:.1f} s' if math.isfinite(num) else 'dropped'})")
        if num * seconds < least:
            best, least = setting, num * seconds
    print(f"  {side}: {' '.join(texts)} -> {best}", flush=True)
    return best


def _rows(entry: Entry, bar: float, finished: Mapping[str, Sequence[Run]]) -> list[Row]:
    """Return both sides' medians over the seeds and torchgfn's totals over ours.

    The goal is on totals, because equal seeds of unrelated generators are not pairs; their median ratio is shown too.
    """
    name, rows = f"{entry.space.name}, {entry.objective}, TV {bar:g}", []
    results = {side: [run.result(bar) for run in runs] for side, runs in finished.items()}
    for side in SIDES:
        texts = [f"{r.num_trajectories}{'' if r.is_reached else '+'} ({r.cpu_seconds:.2f} s)" for r in results[side]]
        print(f"  TV {bar:g}, {side}: {', '.join(texts)}", flush=True)
        suffix = "" if all(r.is_reached for r in results[side]) else ", not reached on every seed"
        trajectories = statistics.median(r.num_trajectories for r in results[side])
        seconds = statistics.median(r.cpu_seconds for r in results[side])
        rows.append(figure(f"{name}: {side}{suffix}", trajectories, "trajectories"))
        rows.append(figure(f"{name}: {side}{suffix}", seconds, "CPU s"))
    is_reached = all(r.is_reached for r in results["ours"])
    for field, unit in (("num_trajectories", "x fewer trajectories"), ("cpu_seconds", "x fewer CPU s")):
        ours, theirs = ([getattr(r, field) for r in results[side]] for side in SIDES)
        ratio = sum(theirs) / sum(ours)
        rows.append(Row(f"{name}: torchgfn / ours", ratio, unit, "> 1", holds=is_reached and ratio > 1))
        median = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        rows.append(figure(f"{name}: torchgfn / ours, median of the seeds", median, unit))
    return rows


def main() -> int:
    """Run the race and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    entries, seeds = (QUICK, SEEDS_QUICK) if arguments.quick else (FULL, SEEDS)
    rows: list[Row] = []
    try:
        python = find_environment("torchgfn")
    except PeerError as error:
        skip("race_torchgfn.py", str(error))
        return finish([], json_path=arguments.json)
    with PeerProcess(python, PEER_SCRIPT, variables=KEEPS_FREED_MEMORY) as peer:
        for entry in entries:
            space = entry.space.build()
            print(f"\n{entry.space.name}, {entry.objective}: {len(space.graph.terminal)} terminal states", flush=True)
            start: dict[str, Start] = {
                "ours": lambda setting, seed, space=space: OurLearner(space, setting, seed=seed),
                "torchgfn": lambda setting, seed, space=space, entry=entry: PeerLearner(
                    peer, entry.space, space, setting, seed=seed
                ),
            }
            rows += compete(entry, start, seeds=seeds)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
