"""Who takes turns in the sampling benchmark, and how: here, our sampler and our training step on an environment."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from time import process_time
from typing import TypeVar

import torch

from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner, LearnerOptions, fit, sampled_rollouts
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy

SEED = 0
NUM_LAYERS = 3
ENDLESS = 10**9  # training steps; a side takes one per turn
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Turn:
    """What one batch, or one training step on it, cost and gave."""

    cpu_seconds: float  # of the process that did it, one thread
    num_trajectories: int
    num_states: int  # which the policy was asked about

    def steps_per_second(self) -> float:
        """Return how many such turns a CPU second is enough for."""
        return 1 / self.cpu_seconds

    def trajectories_per_second(self) -> float:
        """Return trajectories per CPU second."""
        return self.num_trajectories / self.cpu_seconds

    def states_per_second(self) -> float:
        """Return states per CPU second."""
        return self.num_states / self.cpu_seconds


Side = Callable[[], Turn]


class Ours:
    """An untrained policy on an environment, and the training loop of the product; rewards are 1."""

    def __init__(
        self,
        env: Environment,
        *,
        policy_class: Callable[..., Policy] = DenseTransformerPolicy,
        width: int = 64,
        batch: int = 64,
    ) -> None:
        torch.manual_seed(SEED)
        self.context = GraphBuildingEnvContext(env).with_layout(policy_class.layout)
        self.policy = policy_class(self.context, ModelConfig(num_layers=NUM_LAYERS, num_emb=width))
        self.conditioning = Conditioning(torch.zeros(batch, self.context.num_cond_dim), torch.ones(batch))
        self.generator = torch.Generator().manual_seed(SEED)
        objective = TrajectoryBalance(self.context, AlgoConfig())
        options = LearnerOptions(num_steps=ENDLESS)
        learner = Learner(self.policy, objective, self.context, config=OptimizerConfig(), options=options)
        rollouts = sampled_rollouts(
            self.context,
            self.policy,
            log_reward=lambda terminal, _: torch.zeros(len(terminal)),
            conditioning=lambda _: self.conditioning,
            generator=self.generator,
        )
        self._steps = fit(learner, rollouts, num_steps=ENDLESS)

    def sample(self) -> Turn:
        """Sample a batch of trajectories."""
        return _timed(self.sampled)

    def train(self) -> Turn:
        """Take a training step on a batch of new trajectories."""
        return _timed(self._trained)

    def sampled(self) -> TrajectoryBatch:
        """Return a batch of trajectories."""
        return sample_forward(
            self.context, self.policy, conditioning=self.conditioning, generator=self.generator
        ).with_rewards(torch.zeros(len(self.conditioning.beta)))

    def _trained(self) -> TrajectoryBatch:
        return next(self._steps).rollout.trajectories


def take_turns(sides: Mapping[K, Side], *, num_rounds: int) -> dict[K, list[Turn]]:
    """Return what every side did in each round, one after the other, in turn first and last.

    A round before the first, in which everything sets itself up, does not count; what stays from it for ever, Python's
    collector does not look through again.
    """
    for side in sides.values():
        side()
    gc.collect()
    gc.freeze()
    turns: dict[K, list[Turn]] = {name: [] for name in sides}
    for number in range(num_rounds):
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            turns[name].append(sides[name]())
    return turns


def _timed(run: Callable[[], TrajectoryBatch]) -> Turn:
    gc.collect()
    start = process_time()
    trajectories = run()
    seconds = process_time() - start
    return Turn(seconds, num_trajectories=len(trajectories), num_states=len(trajectories.states))
