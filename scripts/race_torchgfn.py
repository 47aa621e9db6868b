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

import gc
import math
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.envs.slots import BitSequenceEnv, HypergridEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning import learner as learning
from gflownet.learning.replay import draw
from gflownet.learning.sampler import Exploration, sample_backward
from gflownet.learning.source import Rollout
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES, AlgoConfig, OptimizerConfig
from gflownet.policy.config import ModelConfig
from gflownet.policy.mlp import MLPPolicy
from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, figure, finish, parse_arguments, skip
from scripts.peers.process import KEEPS_FREED_MEMORY, PeerError, PeerProcess, find_environment
from tests.sampled_rollouts import sampled_rollouts

WIDTH, NUM_LAYERS = 256, 2  # torchgfn's default MLP
LEARNING_RATE_LOG_Z = 0.1  # of torchgfn's scripts; our default too
BUFFER = 2_048  # trajectories; torchgfn's train_hypergrid.py
CLIP = 1.0  # norm of the gradient; torchgfn's train_hypergrid_simple.py
_EDGE = 1e-6  # torchgfn's tolerance for coordinates on the border of a ring
_MODES_SEED = 0


@dataclass(frozen=True)
class EnumeratedSpace:
    """An environment with all its states and their log-rewards [S]."""

    env: Environment
    graph: StateGraph
    log_reward: Tensor

    def rewards_of(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of states, looked up by identity, [B]."""
        return self.log_reward[self.graph.locate(self.env.identify(states))]

    def lexicographic_target(self) -> Tensor:
        """Return the target over the terminal states in lexicographic order of their values, float64."""
        terminal = self.graph.terminal
        rows = self.graph.states.node_attr[terminal][..., 0].double().tolist()
        order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
        return self.log_reward[terminal].double().softmax(0)[order]


@dataclass(frozen=True)
class RaceSpace:
    """A space, as a message to torchgfn's process and as our environment."""

    name: str
    message: Mapping[str, Any]
    build: Callable[[], EnumeratedSpace]


def hypergrid(num_dims: int, side: int) -> RaceSpace:
    """Return the hypergrid with the original reward (Bengio et al. 2021, section 4.1): R0 0.1, R1 0.5, R2 2."""

    def build() -> EnumeratedSpace:
        env = HypergridEnv(num_dims, side)
        graph = enumerate_states(env)
        coordinates = graph.states.node_attr[..., 0].double() + 1
        off_centre = (coordinates / (side - 1) - 0.5).abs()  # [S, N]
        outer = (off_centre > 0.25 + _EDGE).all(1)
        ring = ((off_centre > 0.3 + _EDGE) & (off_centre < 0.4 - _EDGE)).all(1)
        return EnumeratedSpace(env, graph, (0.1 + 0.5 * outer + 2.0 * ring).log())

    name = f"hypergrid {' x '.join([str(side)] * num_dims)}"
    return RaceSpace(name, {"kind": "hypergrid", "num_dims": num_dims, "side": side}, build)


def bit_sequences(num_bits: int, word_bits: int, num_modes: int) -> RaceSpace:
    """Return bit sequences with log-reward -(bits that differ from the nearest mode) (Malkin et al. 2022, 5.3)."""
    generator = torch.Generator().manual_seed(_MODES_SEED)
    modes = torch.randint(0, 2, (num_modes, num_bits), generator=generator)

    def build() -> EnumeratedSpace:
        env = BitSequenceEnv(num_bits, word_bits)
        graph = enumerate_states(env)
        words = graph.states.node_attr[..., 0].long()
        bits = (words[..., None] >> torch.arange(word_bits - 1, -1, -1) & 1).flatten(1)  # [S, num_bits]
        distance = (bits[:, None] != modes).sum(2).amin(1)
        return EnumeratedSpace(env, graph, -distance.float())

    message = {"kind": "bits", "num_bits": num_bits, "word_bits": word_bits, "modes": modes.tolist()}
    return RaceSpace(f"{num_bits} bits in words of {word_bits}, {num_modes} modes", message, build)


@dataclass(frozen=True)
class Setting:
    """Training options of a learner."""

    objective: str
    batch: int  # trajectories sampled per step
    replay: int  # replayed trajectories per sampled one, drawn from the last BUFFER
    updates: int  # optimiser steps per step, each on the new trajectories and on newly drawn replayed ones
    learning_rate: float
    is_backward: bool  # replay trajectories drawn backward from remembered terminal states, once per step
    temperature: float = 1.0  # of the sampling policy; above 1 it explores

    def __str__(self) -> str:
        """Return e.g. `64 + 192 x 4, 0.001`."""
        kind = " backward" if self.is_backward else ""
        replay = f" + {self.batch * self.replay}{kind}" if self.replay else ""
        updates = f" x {self.updates}" if self.updates > 1 else ""
        temperature = f", temperature {self.temperature:g}" if self.temperature != 1 else ""
        return f"{self.batch}{replay}{updates}, {self.learning_rate:g}{temperature}"


@dataclass(frozen=True)
class Progress:
    """CPU seconds of some training steps and the exact total variation after them."""

    cpu_seconds: float
    total_variation: float


class Learner(ABC):
    """A policy in training."""

    @abstractmethod
    def train(self, steps: int) -> Progress:
        """Take training steps; the CPU time excludes the measurement."""

    @abstractmethod
    def close(self) -> None:
        """Release the learner."""


class OurLearner(Learner):
    """The product's learner with its MLP policy; remembered terminal states are distinct and drawn evenly."""

    def __init__(self, space: EnumeratedSpace, setting: Setting, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed + 1_000)
        self.space, self.setting = space, setting
        self.context = GraphBuildingEnvContext(space.env).with_layout(MLPPolicy.layout)
        algo = AlgoConfig(method=setting.objective)
        # State flows have the policy's learning rate, as in torchgfn.
        algo.tb.Z_learning_rate = LEARNING_RATE_LOG_Z if setting.objective == "tb" else setting.learning_rate
        policy = MLPPolicy(self.context, ModelConfig(name="mlp", num_layers=NUM_LAYERS, num_emb=WIDTH))
        self.learner = learning.Learner(
            policy,
            OBJECTIVES.load(setting.objective)(self.context, algo),
            self.context,
            config=OptimizerConfig(learning_rate=setting.learning_rate, schedule="constant", clip_grad_param=CLIP),
            options=learning.LearnerOptions(
                num_steps=1,  # constant rates, and all earlier batches from the second step on
                num_updates=setting.updates,
                num_remembered=0 if setting.is_backward else setting.replay,
                memory_capacity=BUFFER // setting.batch,
                seed=seed,
            ),
        )
        self.terminal = space.env.initial_states(0)
        self.target = target_distribution(space.graph, space.log_reward)
        self._rollouts = self.rollouts()
        gc.collect()
        gc.freeze()  # exclude long-lived objects from later collections

    def train(self, steps: int) -> Progress:
        """Take training steps as the trainer does."""
        start = time.process_time()
        for _ in range(steps):
            self.learner.learn(next(self._rollouts))
        seconds, graph = time.process_time() - start, self.space.graph
        scores = forward_scores(self.context, self.learner.policy, torch.zeros(1, 1))
        distribution = terminating_distribution(graph, policy_log_prob(graph, scores, chunk=4096))
        return Progress(seconds, total_variation(distribution, self.target))

    def close(self) -> None:
        """Release nothing: it is collected."""

    def rollouts(self) -> Iterator[Rollout]:
        """Yield sampled batches, with backward trajectories where the setting has them."""
        conditioning = Conditioning(torch.zeros(self.setting.batch, 1), torch.ones(self.setting.batch))
        sampled = sampled_rollouts(
            self.context,
            self.learner.policy,
            log_reward=lambda states, _: self.space.rewards_of(states),
            conditioning=lambda _: conditioning,
            generator=self.generator,
            exploration=Exploration(temperature=self.setting.temperature),
        )
        return map(self.with_backward, sampled) if self.setting.is_backward else sampled

    def with_backward(self, rollout: Rollout) -> Rollout:
        """Add trajectories into remembered terminal states, each state equally often."""
        terminals = GraphStates.cat([self.terminal, rollout.trajectories.terminal])
        codes, owner = self.space.env.identify(terminals).unique(return_inverse=True)
        first = torch.empty_like(codes).scatter_(0, owner, torch.arange(len(owner)))
        self.terminal = terminals[first]
        num = self.setting.batch * self.setting.replay
        states = self.terminal[draw(torch.ones(len(first)), num, self.generator)]
        conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
        backward = sample_backward(self.context, states, conditioning=conditioning, generator=self.generator)
        backward = backward.with_rewards(self.space.rewards_of(states))
        return replace(rollout, trajectories=TrajectoryBatch.cat([rollout.trajectories, backward]))


class PeerLearner(Learner):
    """torchgfn's learner in its own process.

    Raises:
        PeerError: the process failed, or its target distribution differs from ours.
    """

    def __init__(
        self, peer: PeerProcess, space: RaceSpace, enumerated: EnumeratedSpace, setting: Setting, *, seed: int
    ) -> None:
        self.peer, self.name = peer, f"{space.name}, {setting}, seed {seed}"
        shared = {"learning_rate_log_z": LEARNING_RATE_LOG_Z, "width": WIDTH, "num_layers": NUM_LAYERS}
        options = {**asdict(setting), **shared, "buffer": BUFFER, "clip": CLIP, "seed": seed}
        reply = self._request("start", space=space.message, setting=options)
        ours, theirs = enumerated.lexicographic_target(), torch.tensor(reply["target"], dtype=torch.float64)
        if len(ours) != len(theirs) or not torch.allclose(ours, theirs, rtol=1e-5, atol=0):
            raise PeerError(f"{space.name}: expected the same target on both sides, got two")

    def train(self, steps: int) -> Progress:
        """Take training steps as torchgfn's scripts do."""
        return Progress(**self._request("train", steps=steps))

    def close(self) -> None:
        """Delete the learner in the peer's process."""
        self._request("drop")

    def _request(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.peer.request({"do": do, "name": self.name, **fields})


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
