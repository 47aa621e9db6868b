"""The sides of bench_sampling.py: this project's sampler and training step, a networkx sampler, and torchgfn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import process_time
from typing import NamedTuple

import torch

from gflownet.data.sampler import sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner, LearnerOptions
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.bench import K, interleaved
from scripts.peers.process import AS_IT_COMES, KEEPS_FREED_MEMORY, PeerProcess, find_environment
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
