"""What learns: the policy and what the objective learns beside it, one optimiser step at a time."""

from __future__ import annotations

import copy
from typing import Any

import torch

from gflownet.data.source import Rollout
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.optimiser import clip_gradients, differentiate, make_optimizer, make_schedule
from gflownet.policy.in_parts import PolicyInParts
from gflownet.policy.on_device import PolicyOnDevice


class Learner:
    """Policy and objective on their device, their optimiser, and the policy that samples.

    With `sampling_tau` > 0 that is a moving average of the trained one, else the trained one itself.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        context: GraphBuildingEnvContext,
        *,
        config: OptimizerConfig,
        sampling_tau: float,
        device: torch.device,
    ) -> None:
        self.policy, self.objective, self.config, self.device = policy, objective, config, device
        self._in_parts = PolicyInParts(policy, context, num_parts=config.num_micro_batches)
        self.sampling_tau = sampling_tau
        self.sampling_policy = copy.deepcopy(policy) if sampling_tau else policy
        groups = [{"params": list(policy.parameters())}, *objective.parameter_groups()]
        self.optimizer = make_optimizer(groups, config)
        self.schedule = make_schedule(self.optimizer, config)

    @property
    def trained(self) -> PolicyOnDevice:
        """Return the trained policy, to be asked from the main memory."""
        return self._computed(self._in_parts)

    @property
    def sampling(self) -> PolicyOnDevice:
        """Return the policy that samples, to be asked from the main memory."""
        return self._computed(self.sampling_policy)

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Take the optimiser steps that a rollout is good for, and return the metrics of the last on its trajectories.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        batch = self.objective.annotated(self.trained, rollout.trajectories)
        metrics: dict[str, float] = {}
        for _ in range(self.objective.num_epochs):
            metrics = self._update(batch)
        for again in rollout.replays:
            self._update(self.objective.annotated(self.trained, again))
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
        names = ("policy", "sampling_policy", "objective", "optimizer", "schedule")
        return {name: getattr(self, name) for name in names}

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
        if self.sampling_tau:
            pairs = zip(self.sampling_policy.parameters(), self.policy.parameters(), strict=True)
            for average, current in pairs:
                average.lerp_(current, 1 - self.sampling_tau)
