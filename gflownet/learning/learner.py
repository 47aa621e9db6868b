"""Policy and objective in training, one optimiser step at a time."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gflownet.data.source import Rollout
from gflownet.learning.memory import FormedBatch, TrajectoryMemory, formed
from gflownet.learning.merging import merge_isomorphic
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.identifier import CanonicalForms
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.optimiser import clip_gradients, differentiate, make_optimizer
from gflownet.objectives.schedules import make_schedule
from gflownet.policy.in_parts import PolicyInParts
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.process import stream_seed


@dataclass(frozen=True)
class LearnerOptions:
    """What a training step learns from beside its rollout, and how often."""

    num_steps: int  # training steps of the run: where schedules end
    num_updates: int = 1  # optimiser steps per training step
    merge_isomorphic: bool = False
    num_remembered: int = 0  # earlier batches that an update sees as well
    remembered_growth: Literal["linear", "constant"] = (
        "linear"  # linear: from none at the first step to all at the last
    )
    memory_capacity: int = 1_000  # batches
    sampling_tau: float = 0.0  # decay of the moving average that samples; 0: the trained policy samples
    seed: int = 0  # of the draws from memory


class Learner:
    """Policy and objective on their device, their optimiser, its schedule, and the memory of earlier batches."""

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        context: GraphBuildingEnvContext,
        *,
        config: OptimizerConfig,
        options: LearnerOptions,
        device: torch.device | None = None,
    ) -> None:
        self.policy, self.objective, self.config, self.options = policy, objective, config, options
        self.device = device or torch.device("cpu")
        self._env = context.env
        self._in_parts = PolicyInParts(policy, context, num_parts=config.num_micro_batches)
        self.sampling_policy = copy.deepcopy(policy) if options.sampling_tau else policy
        groups = [{"params": list(policy.parameters())}, *objective.parameter_groups()]
        self.optimizer = make_optimizer(groups, config)
        self.schedule = make_schedule(self.optimizer, config, num_steps=options.num_steps)
        self.memory = TrajectoryMemory(context.env, capacity=options.memory_capacity, merges=options.merge_isomorphic)

    @property
    def trained(self) -> PolicyOnDevice:
        """Return the trained policy, callable on batches in main memory."""
        return self._computed(self._in_parts)

    @property
    def sampling(self) -> PolicyOnDevice:
        """Return the policy that samples, callable on batches in main memory."""
        return self._computed(self.sampling_policy)

    @property
    def num_steps_done(self) -> int:
        """Return the number of training steps so far."""
        return self.schedule.last_epoch

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Take the optimiser steps of one training step, and return the metrics of the last on the rollout.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        trajectories = self.objective.annotated(self.trained, rollout.trajectories)
        batch = formed(self._env, trajectories, merges=self.options.merge_isomorphic)
        metrics: dict[str, float] = {}
        for update in range(self.options.num_updates * self.objective.num_epochs):
            metrics = self._update(self._with_remembered(batch, update))
        for replayed in rollout.replays:
            self._update(self.objective.annotated(self.trained, replayed))
        if self.options.num_remembered:
            self.memory.add(_first(batch, rollout.num_fresh))
        self.schedule.step()
        self._follow_policy()
        return metrics

    def accumulate_gradients(self, batch: TrajectoryBatch) -> dict[str, float]:
        """Differentiate the loss of the trajectories, and return its metrics.

        Raises:
            FloatingPointError: the loss is not finite.
        """
        self.optimizer.zero_grad()
        return differentiate(self.objective.loss(self.trained, batch))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on learning."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        names = ("policy", "sampling_policy", "objective", "optimizer", "schedule", "memory")
        return {name: getattr(self, name) for name in names}

    def _with_remembered(self, batch: FormedBatch, update: int) -> TrajectoryBatch:
        """Return the batch with remembered ones, isomorphic states of all of them merged if the options say so."""
        options, step = self.options, self.num_steps_done
        share = min(step / options.num_steps, 1.0) if options.remembered_growth == "linear" else 1.0
        num = math.ceil(options.num_remembered * share)
        generator = torch.Generator().manual_seed(stream_seed(options.seed, step, update))
        batches = [batch, *self.memory.sample(num, generator=generator)]
        trajectories = batch.trajectories
        if len(batches) > 1:
            trajectories = TrajectoryBatch.cat([each.trajectories for each in batches])
        if not options.merge_isomorphic:
            return trajectories
        forms = CanonicalForms.cat([each.forms for each in batches if each.forms is not None])
        return merge_isomorphic(self._env, trajectories, forms)

    def _update(self, batch: TrajectoryBatch) -> dict[str, float]:
        """Take one step of the optimiser, and return the metrics of the loss before it."""
        metrics = self.accumulate_gradients(batch)
        clip_gradients(list(self.policy.parameters()), self.config)
        self.optimizer.step()
        return metrics

    def _computed(self, policy: Policy) -> PolicyOnDevice:
        return PolicyOnDevice(policy, device=self.device, precision=self.config.precision)

    @torch.no_grad()
    def _follow_policy(self) -> None:
        """Move the sampling policy towards the trained one, where it is a moving average of it."""
        if self.options.sampling_tau:
            pairs = zip(self.sampling_policy.parameters(), self.policy.parameters(), strict=True)
            for average, current in pairs:
                average.lerp_(current, 1 - self.options.sampling_tau)


def _first(batch: FormedBatch, num: int) -> FormedBatch:
    """Return the first `num` trajectories of a batch."""
    if num == len(batch.trajectories):
        return batch
    steps = batch.trajectories.trajectory < num
    forms = None if batch.forms is None else batch.forms[steps]
    return FormedBatch(batch.trajectories.part(0, num), forms)
