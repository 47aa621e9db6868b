"""A network that learns beside the policy, from the same trajectories, with an optimiser of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.objectives.base import Loss
from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.optimiser import clip_gradients, differentiate, make_optimizer
from gflownet.objectives.schedules import make_schedule
from gflownet.policy.in_parts import PolicyInParts
from gflownet.policy.on_device import PolicyOnDevice


class CompanionNetwork:
    """The network, how it is optimised, and all of that in checkpoints."""

    def __init__(
        self,
        name: str,
        network: Policy,
        context: GraphBuildingEnvContext,
        *,
        device: torch.device,
        opt: OptimizerConfig,
        num_steps: int,
        learning_rate: float | None = None,
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Keep the network and make its optimiser, which is that of the policy but for what is given here.

        Args:
            name: what its metrics begin with.
            network: reads what the policy reads.
            context: the policy's.
            device: where it lives.
            opt: options of the policy's optimiser.
            num_steps: training steps of the run, over which the learning rate is scheduled.
            learning_rate: of the network, that of the policy if not given.
            groups: optimiser groups of what is learned beside it.
        """
        self.name, self.network, self.opt = name, network.to(device), opt
        own = {} if learning_rate is None else {"lr": learning_rate}
        self._optimizer = make_optimizer([{"params": list(network.parameters()), **own}, *groups], opt)
        self._schedule = make_schedule(self._optimizer, opt, num_steps=num_steps)
        in_parts = PolicyInParts(network, context, num_parts=opt.num_micro_batches)
        self.function = PolicyOnDevice(in_parts, device=device, precision=opt.precision)

    def learn(self, loss: Loss) -> dict[str, float]:
        """Take one step down a loss, and return its metrics.

        Raises:
            FloatingPointError: the loss is no number.
        """
        self._optimizer.zero_grad()
        try:
            metrics = differentiate(loss)
        except FloatingPointError as error:
            raise FloatingPointError(f"{self.name}: {error}") from error
        clip_gradients(list(self.network.parameters()), self.opt)
        self._optimizer.step()
        self._schedule.step()
        return {f"{self.name}_{metric}": value for metric, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
