"""Ours and torchgfn's learners, behind one contract: train a while, say what it took and how far the target is."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from gflownet.data.replay import draw
from gflownet.data.sampler import Exploration, sample_backward
from gflownet.data.source import Rollout
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning import learner as learning
from gflownet.learning.learner import fit, sampled_rollouts
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.exact import (
    forward_scores,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OBJECTIVES, AlgoConfig, OptimizerConfig
from gflownet.policy.config import ModelConfig
from gflownet.policy.mlp import MLPPolicy
from scripts.peers.environment import PeerError
from scripts.peers.process import PeerProcess
from scripts.race.spaces import EnumeratedSpace, RaceSpace, lexicographic_target

WIDTH, NUM_LAYERS = 256, 2  # torchgfn's MLP as it comes
LEARNING_RATE_LOG_Z = 0.1  # of torchgfn's scripts; our default, too
BUFFER = 2_048  # trajectories; torchgfn's train_hypergrid.py
MAX_STEPS = 10**9  # of a learner, which ends when a bar is reached
CLIP = 1.0  # of the gradient's norm; torchgfn's train_hypergrid_simple.py


@dataclass(frozen=True)
class Setting:
    """How a learner is trained."""

    objective: str
    batch: int  # trajectories sampled per step
    replay: int  # times as many are trained on again beside them, drawn from the last BUFFER
    updates: int  # of the policy per step, each on the new trajectories and on others drawn afresh
    learning_rate: float
    is_backward: bool  # those are drawn backwards from remembered terminal states instead, once per step
    temperature: float = 1.0  # of the policy while sampling: above 1 it explores

    def __str__(self) -> str:
        """Return e.g. `64 + 192 x 4, 0.001`."""
        kind = " backward" if self.is_backward else ""
        again = f" + {self.batch * self.replay}{kind}" if self.replay else ""
        updates = f" x {self.updates}" if self.updates > 1 else ""
        softened = f", temperature {self.temperature:g}" if self.temperature != 1 else ""
        return f"{self.batch}{again}{updates}, {self.learning_rate:g}{softened}"


@dataclass(frozen=True)
class Progress:
    """What some training steps cost and where they led."""

    cpu_seconds: float
    total_variation: float  # exact, of the terminating distribution


class Learner(ABC):
    """A policy in training."""

    @abstractmethod
    def train(self, steps: int) -> Progress:
        """Take training steps; what it takes to measure is not in their time."""

    @abstractmethod
    def close(self) -> None:
        """Forget what was learned."""


class OurLearner(Learner):
    """This project's learner with its MLP policy; each distinct state of a batch is read once.

    Remembered terminal states are distinct and drawn evenly, as with `replay.priority=uniform`.
    """

    def __init__(self, space: EnumeratedSpace, setting: Setting, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed + 1_000)
        self.space, self.setting = space, setting
        self.context = GraphBuildingEnvContext(space.env).with_layout(MLPPolicy.layout)
        policy = MLPPolicy(self.context, ModelConfig(name="mlp", num_layers=NUM_LAYERS, num_emb=WIDTH))
        self.learner = learning.Learner(
            policy,
            _objective(self.context, setting),
            self.context,
            config=OptimizerConfig(learning_rate=setting.learning_rate, schedule="constant", clip_grad_param=CLIP),
            options=learning.LearnerOptions(
                num_steps=MAX_STEPS,
                num_updates=setting.updates,
                num_remembered=0 if setting.is_backward else setting.replay,
                remembered_growth="constant",
                memory_capacity=BUFFER // setting.batch,
                seed=seed,
            ),
        )
        self.terminal = space.env.initial_states(0)
        self.target = target_distribution(space.graph, space.log_reward)
        self._steps = fit(self.learner, self._rollouts(), num_steps=MAX_STEPS)
        gc.collect()
        gc.freeze()  # long-lived objects are not scanned again and again

    def train(self, steps: int) -> Progress:
        """Take training steps as the trainer does."""
        start = time.process_time()
        for _ in range(steps):
            next(self._steps)
        return Progress(time.process_time() - start, self._distance())

    def close(self) -> None:
        """End the training loop."""
        self._steps.close()

    def _rollouts(self) -> Iterator[Rollout]:
        ones = Conditioning(torch.zeros(self.setting.batch, 1), torch.ones(self.setting.batch))
        sampled = sampled_rollouts(
            self.context,
            self.learner.policy,
            log_reward=lambda states, conditioning: self.space.rewards_of(states),
            conditioning=lambda generator: ones,
            generator=self.generator,
            exploration=Exploration(temperature=self.setting.temperature),
        )
        return map(self.with_backward, sampled) if self.setting.is_backward else sampled

    def with_backward(self, rollout: Rollout) -> Rollout:
        """Return a rollout with trajectories into terminal states that were seen, all of those equally often."""
        fresh = rollout.trajectories
        seen = GraphStates.cat([self.terminal, fresh.terminal])
        codes, owner = self.space.env.identify(seen).unique(return_inverse=True)
        first = torch.empty_like(codes).scatter_(0, owner, torch.arange(len(owner)))
        self.terminal = seen[first]
        num = self.setting.batch * self.setting.replay
        drawn = self.terminal[draw(torch.ones(len(first)), num, self.generator)]
        conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
        again = sample_backward(self.context, drawn, conditioning=conditioning, generator=self.generator)
        again = again.with_rewards(self.space.rewards_of(drawn))
        return replace(rollout, trajectories=TrajectoryBatch.cat([fresh, again]))

    def _distance(self) -> float:
        graph = self.space.graph
        scores = forward_scores(self.context, self.learner.policy, torch.zeros(1, 1))
        return total_variation(terminating_distribution(graph, policy_log_prob(graph, scores, chunk=4096)), self.target)


def _objective(context: GraphBuildingEnvContext, setting: Setting) -> Objective:
    """Return the objective; flows have one learning rate, like those of torchgfn."""
    algo = AlgoConfig(method=setting.objective)
    algo.tb.Z_learning_rate = LEARNING_RATE_LOG_Z if setting.objective == "tb" else setting.learning_rate
    objective: Any = OBJECTIVES.load(setting.objective)
    return objective(context, algo)


class PeerLearner(Learner):
    """torchgfn's learner in its own process."""

    def __init__(
        self, peer: PeerProcess, space: RaceSpace, enumerated: EnumeratedSpace, setting: Setting, *, seed: int
    ) -> None:
        self.peer, self.name = peer, f"{space.name}, {setting}, seed {seed}"
        own = {
            **asdict(setting),
            "learning_rate_log_z": LEARNING_RATE_LOG_Z,
            "width": WIDTH,
            "num_layers": NUM_LAYERS,
            "buffer": BUFFER,
            "clip": CLIP,
            "seed": seed,
        }
        answer = self._ask("start", space=space.message, setting=own)
        ours = lexicographic_target(enumerated)
        theirs = torch.tensor(answer["target"], dtype=torch.float64)
        if len(ours) != len(theirs) or not torch.allclose(ours, theirs, rtol=1e-5, atol=0):
            raise PeerError(f"{space.name}: expected one target on both sides, got two")

    def train(self, steps: int) -> Progress:
        """Let the peer take training steps, as torchgfn's scripts do."""
        return Progress(**self._ask("train", steps=steps))

    def close(self) -> None:
        """Let the peer forget it."""
        self._ask("drop")

    def _ask(self, do: str, **rest: Any) -> dict[str, Any]:
        return self.peer.request({"do": do, "name": self.name, **rest})
