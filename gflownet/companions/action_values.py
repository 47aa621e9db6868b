"""Action values learned beside a policy, which make it greedier at inference (QGFN, Lau et al. 2024)."""

from __future__ import annotations

import copy
from typing import Any

import torch

from gflownet.companions.network import CompanionNetwork
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.action_values import action_value_loss
from gflownet.objectives.base import Loss
from gflownet.objectives.config import OptimizerConfig, QGFNConfig
from gflownet.policy.greedy import GreedyPolicy
from gflownet.policy.on_device import PolicyOnDevice


class ActionValues:
    """A network of action values, and the moving average of it that its targets are made of."""

    def __init__(
        self,
        network: Policy,
        context: GraphBuildingEnvContext,
        *,
        config: QGFNConfig,
        opt: OptimizerConfig,
        num_steps: int,
        device: torch.device,
    ) -> None:
        """Make the optimiser and the average.

        Args:
            network: one like the policy, whose logits are read as action values.
            context: the policy's.
            config: options of the action values.
            opt: options of the optimiser but for the learning rate.
            device: where the networks live.
        """
        self._context, self._config = context, config
        rate = config.learning_rate
        self._network = CompanionNetwork(
            "action_value", network, context, device=device, opt=opt, num_steps=num_steps, learning_rate=rate
        )
        self._average = copy.deepcopy(network).requires_grad_(False)
        self._lagged = PolicyOnDevice(self._average, device=device, precision=opt.precision)

    def learn(self, trajectories: TrajectoryBatch) -> dict[str, float]:
        """Learn from a step's trajectories, and return the metrics."""
        metrics = self._network.learn(self._loss(trajectories))
        with torch.no_grad():
            pairs = zip(self._average.parameters(), self._network.network.parameters(), strict=True)
            for average, current in pairs:
                average.lerp_(current, 1 - self._config.decay)
        return metrics

    def greedier(self, policy: PolicyFunction, *, variant: str | None = None, p: float | None = None) -> GreedyPolicy:
        """Return the policy made greedier, by the options' variant and p where none are given."""
        return GreedyPolicy(
            policy,
            self._network.function,
            variant=self._config.variant if variant is None else variant,
            p=self._config.p if p is None else p,
        )

    def _loss(self, trajectories: TrajectoryBatch) -> Loss:
        networks = self._network.function, self._lagged
        return action_value_loss(self._context, *networks, trajectories, num_steps=self._config.num_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        return {**self._network.state_dict(), "average": self._average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._network.load_state_dict(state)
        self._average.load_state_dict(state["average"])
