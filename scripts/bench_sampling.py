"""Measure trajectories sampled and training steps per CPU second, compared with a networkx sampler and torchgfn.

    python scripts/bench_sampling.py [--quick] [--json FILE]

All sides of a part take turns, round after round. Figures are medians over rounds, ratios are medians of the rounds'
ratios. Times are CPU seconds of the process that did the work, on one thread, after a warm-up round. Policies are
untrained, with 3 layers. A training step is a step of the trainer on one batch: sample, trajectory balance, backward,
Adam. Freed memory stays with the process, as in the trainer.

torchgfn runs in its own environment and process, once with its default memory management and once with freed memory
kept. scripts/peers/torchgfn.txt has the commands that install it; its rows are missing otherwise.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from time import process_time
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import EnvConfig
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner, LearnerOptions
from gflownet.learning.sampler import sample_forward
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.workers.process import keep_freed_memory
from scripts.bench import K, Row, at_least, figure, finish, interleaved, median_ratio, parse_arguments, skip
from scripts.peers.process import AS_IT_COMES, KEEPS_FREED_MEMORY, PeerError, PeerProcess, find_environment
from tests.fixed_length_env import FixedLengthGraphBuildingEnv
from tests.oracles.networkx_sampler import rules_of, sample_with_networkx
from tests.sampled_rollouts import sampled_rollouts

SEED, NUM_LAYERS = 0, 3
NODE_TYPES = ("a", "b")
NUM_STEPS = 10**9  # a side takes one training step per turn
OURS, OURS_SPARSE, TWIN = "ours, dense", "ours, message passing", "networkx twin"
TORCHGFN = {"torchgfn as it comes": AS_IT_COMES, "torchgfn, memory kept": KEEPS_FREED_MEMORY}
FIXED, FREE = "fixed length", "free length"


class Key(NamedTuple):
    """A side, its activity (sample or train), and the length of its trajectories (FIXED or FREE)."""

    side: str
    activity: str
    length: str


@dataclass(frozen=True)
class Turn:
    """Cost and size of one batch, or of one training step on it."""

    cpu_seconds: float  # of the process that did it, one thread
    num_trajectories: int
    num_states: int  # evaluated by the policy

    def rate(self, unit: str) -> float:
        """Return steps, trajectories or states per CPU second."""
        num = {"steps": 1, "trajectories": self.num_trajectories, "states": self.num_states}[unit]
        return num / self.cpu_seconds


def median_rate(turns: Sequence[Turn], unit: str) -> float:
    """Return the median rate of some turns."""
    return median(turn.rate(unit) for turn in turns)


Side = Callable[[], Turn]


def fixed_length(max_nodes: int, num_actions: int, *, directed: bool = True) -> FixedLengthGraphBuildingEnv:
    """Return graph building with two node types and trajectories of one length."""
    return FixedLengthGraphBuildingEnv(NODE_TYPES, max_nodes=max_nodes, num_actions=num_actions, directed=directed)


class Ours:
    """An untrained policy on an environment with the product's training loop; all rewards are 1."""

    def __init__(
        self,
        env: Environment,
        *,
        policy_class: Callable[..., Policy] = DenseTransformerPolicy,
        width: int = 64,
        layers: int = NUM_LAYERS,
        batch: int = 64,
        context_class: type[GraphBuildingEnvContext] = GraphBuildingEnvContext,
    ) -> None:
        torch.manual_seed(SEED)
        self.context = context_class(env).with_layout(policy_class.layout)
        self.policy = policy_class(self.context, ModelConfig(num_layers=layers, num_emb=width))
        self.conditioning = Conditioning(torch.zeros(batch, self.context.num_cond_dim), torch.ones(batch))
        self.generator = torch.Generator().manual_seed(SEED)
        objective = TrajectoryBalance(self.context, AlgoConfig())
        options = LearnerOptions(num_steps=NUM_STEPS)
        self._learner = Learner(self.policy, objective, self.context, config=OptimizerConfig(), options=options)
        self._rollouts = sampled_rollouts(
            self.context,
            self.policy,
            log_reward=lambda terminal, _: torch.zeros(len(terminal)),
            conditioning=lambda _: self.conditioning,
            generator=self.generator,
        )

    def sample(self) -> Turn:
        """Time a batch of trajectories."""
        return _timed(self.sample_batch)

    def train(self) -> Turn:
        """Time a training step on a batch of new trajectories."""
        return _timed(self.train_batch)

    def train_batch(self) -> TrajectoryBatch:
        """Take a training step and return its batch."""
        rollout = next(self._rollouts)
        self._learner.learn(rollout)
        return rollout.trajectories

    def sample_batch(self) -> TrajectoryBatch:
        """Return a batch of trajectories."""
        return sample_forward(
            self.context, self.policy, conditioning=self.conditioning, generator=self.generator
        ).with_rewards(torch.zeros(len(self.conditioning.beta)))


class NetworkxTwin:
    """Sample networkx graphs one after another with a message-passing policy; automorphisms are not counted."""

    def __init__(self, max_nodes: int, num_actions: int, *, batch: int) -> None:
        self._ours = Ours(fixed_length(max_nodes, num_actions), policy_class=GraphTransformerPolicy, batch=batch)
        self._rng = Random(SEED)

    def sample(self) -> Turn:
        """Time a batch of trajectories."""
        context, ours = self._ours.context, self._ours
        gc.collect()
        start = process_time()
        trajectories = sample_with_networkx(
            context, rules_of(context.env), ours.policy, conditioning=ours.conditioning, rng=self._rng
        )
        seconds = process_time() - start
        return Turn(seconds, len(trajectories), num_states=sum(len(t.actions) for t in trajectories))


def our_sides(max_nodes: int, num_actions: int, *, batch: int) -> dict[Key, Side]:
    """Return our samplers and training steps, and the networkx twin.

    Each side has its own policy: the policies of samplers stay untrained, as torchgfn's do.
    """
    fixed = fixed_length(max_nodes, num_actions)
    free = GraphBuildingEnv(NODE_TYPES, max_nodes=max_nodes, directed=True)
    sides: dict[Key, Side] = {}
    for length, env in ((FIXED, fixed), (FREE, free)):
        sides[Key(OURS, "sample", length)] = Ours(env, batch=batch).sample
        sides[Key(OURS, "train", length)] = Ours(env, batch=batch).train
    sides[Key(OURS_SPARSE, "sample", FIXED)] = Ours(fixed, policy_class=GraphTransformerPolicy, batch=batch).sample
    sides[Key(TWIN, "sample", FIXED)] = NetworkxTwin(max_nodes, num_actions, batch=batch).sample
    return sides


def torchgfn_sides(stack: ExitStack, max_nodes: int, num_actions: int, *, batch: int) -> dict[Key, Side]:
    """Start torchgfn with its default memory management and with freed memory kept; return both processes' sides.

    Raises:
        PeerError: torchgfn is not installed.
    """
    python, sides = find_environment("torchgfn"), {}
    for name, variables in TORCHGFN.items():
        process = stack.enter_context(PeerProcess(python, "torchgfn_side.py", variables=variables))
        for length, num in ((FIXED, num_actions), (FREE, None)):
            for activity in ("sample", "train"):
                settings = {"batch": batch, "max_nodes": max_nodes, "num_actions": num, "directed": True, "seed": SEED}
                sides[Key(name, activity, length)] = partial(_torchgfn_turn, process, {"do": activity, **settings})
    return sides


def _torchgfn_turn(process: PeerProcess, message: Mapping[str, object]) -> Turn:
    return Turn(**process.request(message))


def take_turns(sides: Mapping[K, Side], *, num_rounds: int) -> dict[K, list[Turn]]:
    """Run all sides round after round in alternating order and return their turns.

    A warm-up round is not counted. Objects that remain after it are excluded from Python's garbage collection.
    """
    for side in sides.values():
        side()
    gc.collect()
    gc.freeze()
    return interleaved(sides, rounds=num_rounds, warm_up=0)


def _timed(run: Callable[[], TrajectoryBatch]) -> Turn:
    gc.collect()
    start = process_time()
    trajectories = run()
    seconds = process_time() - start
    return Turn(seconds, num_trajectories=len(trajectories), num_states=len(trajectories.states))


POLICIES: Mapping[str, type[Policy]] = {"dense": DenseTransformerPolicy, "message passing": GraphTransformerPolicy}
GOAL_TWIN = 30.0
GOAL_TORCHGFN = {"sample": 5.0, "train": 10.0}


@dataclass(frozen=True)
class Setting:
    """An environment, a policy and a batch size."""

    env: GraphBuildingEnv
    policy: type[Policy] = DenseTransformerPolicy
    width: int = 64
    batch: int = 64
    is_trained: bool = True  # whether training steps are measured too

    @property
    def label(self) -> str:
        """Return the row label of the setting."""
        kind = "directed" if self.env.vocabulary.directed else "undirected"
        length = FREE
        if isinstance(self.env, FixedLengthGraphBuildingEnv):
            length = f"{self.env.num_actions + 1} states"
        network = "message passing" if self.policy is GraphTransformerPolicy else "dense"
        sizes = f"{self.env.vocabulary.max_nodes} nodes, {length}"
        return f"{kind}, {sizes}, {network}, width {self.width}, batch {self.batch}"


_ENV = fixed_length(7, 12)
SETTINGS = (
    Setting(_ENV),
    Setting(_ENV, batch=256),
    Setting(_ENV, width=128),
    Setting(_ENV, width=128, batch=256),
    Setting(_ENV, policy=GraphTransformerPolicy, is_trained=False),
    Setting(_ENV, policy=GraphTransformerPolicy, batch=256, is_trained=False),
)
LARGER_SETTINGS = (
    Setting(fixed_length(7, 12, directed=False)),
    Setting(GraphBuildingEnv(NODE_TYPES, max_nodes=7, directed=True)),
    Setting(fixed_length(12, 24)),
    Setting(fixed_length(20, 40)),
    Setting(fixed_length(20, 40), policy=GraphTransformerPolicy),
    Setting(fixed_length(40, 80)),
    Setting(fixed_length(40, 80), policy=GraphTransformerPolicy),
)


def setting_rows(settings: Sequence[Setting], *, num_rounds: int) -> list[Row]:
    """Return the speeds at all settings, measured in turn."""
    sides = {}
    for setting in settings:
        for is_training in (False, True) if setting.is_trained else (False,):
            ours = Ours(setting.env, policy_class=setting.policy, width=setting.width, batch=setting.batch)
            sides[setting, is_training] = ours.train if is_training else ours.sample
    rows = []
    for (setting, is_training), turns in take_turns(sides, num_rounds=num_rounds).items():
        label, unit = ("trained", "steps") if is_training else ("sampled", "trajectories")
        rows.append(figure(f"{setting.label}: {label}", median_rate(turns, unit), f"{unit}/CPU-s"))
    return rows


def side_by_side_rows(*, max_nodes: int = 7, num_actions: int = 12, batch: int = 64, num_rounds: int) -> list[Row]:
    """Return the speeds of all sides and their ratios; without torchgfn's rows where it is not installed."""
    with ExitStack() as stack:
        sides = our_sides(max_nodes, num_actions, batch=batch)
        try:
            sides |= torchgfn_sides(stack, max_nodes, num_actions, batch=batch)
        except PeerError as error:
            skip("rows of torchgfn", str(error))
        turns = take_turns(sides, num_rounds=num_rounds)
    rows = []
    for key, of_key in turns.items():
        label = f"side by side, {key.length}, {key.side}: {key.activity}"
        units = ("trajectories", "states") if key.activity == "sample" else ("steps",)
        rows += [figure(f"{label}, {unit}", median_rate(of_key, unit), "per CPU-s") for unit in units]
        if key.length == FREE:
            length = median(turn.num_states / turn.num_trajectories for turn in of_key)
            rows.append(figure(f"{label}, length", length, "states per trajectory"))
    return [*rows, *_ratio_rows(turns)]


def _ratio_rows(turns: Mapping[Key, list[Turn]]) -> list[Row]:
    """Return the speed of our sides over the networkx twin and torchgfn."""
    reference = Key(TWIN, "sample", FIXED)
    comparisons = [
        (reference._replace(side=OURS), reference, "trajectories", GOAL_TWIN),
        (reference._replace(side=OURS_SPARSE), reference, "trajectories", None),
    ]
    for key in turns:
        if key.side in TORCHGFN:
            unit = "states" if key.activity == "sample" else "steps"
            comparisons.append((key._replace(side=OURS), key, unit, GOAL_TORCHGFN[key.activity]))
    rows = []
    for ours, other, unit, goal in comparisons:
        ratio = median_ratio([turn.rate(unit) for turn in turns[ours]], [turn.rate(unit) for turn in turns[other]])
        label = f"side by side, {ours.length}, {ours.side} against {other.side}: {ours.activity}, {unit}"
        rows.append(at_least(label, ratio, "x", goal))
    return rows


class Cell(NamedTuple):
    """A policy, a graph size and a batch size."""

    policy: str
    num_hidden: int
    batch: int

    @property
    def label(self) -> str:
        """Return the row label."""
        return f"growth, {self.policy}, {self.num_hidden} hidden nodes, batch {self.batch}"


def growth_rows(hidden: Sequence[int], batches: Sequence[int], *, num_rounds: int) -> list[Row]:
    """Return CPU seconds per 1,000 trajectories of architectures as graphs (two edges per hidden node) grow.

    Graphs of more than 20 hidden nodes, with passes of up to 45 seconds, are measured once.
    """
    turns: dict[Cell, list[Turn]] = defaultdict(list)
    for number in range(num_rounds):
        for policy, num_hidden, batch in product(POLICIES, hidden, batches):
            cell = Cell(policy, num_hidden, batch)
            if not number or num_hidden <= 20:
                turns[cell].append(_architectures(cell).sample())
    return [
        figure(cell.label, 1000 / median_rate(of_cell, "trajectories"), "CPU-s per 1,000")
        for cell, of_cell in turns.items()
    ]


def _architectures(cell: Cell) -> Ours:
    """Return a policy on the environment of the default search with another graph size."""
    config = EnvConfig()
    env = ComputationGraphEnv(
        (8,),
        (4,),
        activations=config.activations,
        aggregations=config.aggregations,
        hidden_sizes=config.output_sizes,
        max_hidden_nodes=cell.num_hidden,
        max_edges=2 * cell.num_hidden,
    )
    return Ours(env, policy_class=POLICIES[cell.policy], batch=cell.batch)


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    quick = arguments.quick
    larger = LARGER_SETTINGS
    if quick:
        larger = [replace(s, is_trained=False) for s in larger if s.env.vocabulary.max_nodes <= 12]
    rows = setting_rows(SETTINGS, num_rounds=2 if quick else 21)
    rows += setting_rows(larger, num_rounds=1 if quick else 5)
    rows += side_by_side_rows(num_rounds=2 if quick else 15)
    hidden, batches = ((5, 10), (16, 64)) if quick else ((5, 10, 20, 40, 80), (16, 64, 256))
    rows += growth_rows(hidden, batches, num_rounds=1 if quick else 3)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
