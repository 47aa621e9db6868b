"""A policy on its device: moves batches there and evaluates them in the chosen precision."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.layout import Batch, moved
from gflownet.mdp.policy import Policy, TwoWayPolicy
from gflownet.training.precision import autocast


class PolicyOnDevice:
    """Calls a policy with batches in main memory; the outputs stay on its device, distributions in float32."""

    def __init__(self, policy: Policy, *, device: torch.device, precision: str) -> None:
        self.policy, self.device, self._precision = policy, device, precision

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the outputs of the policy, see `Policy.forward`."""
        with autocast(self.device, self._precision):
            categorical, numbers = self.policy(self._moved(batch), sent(conditioning, self.device))
        return categorical, numbers.float()

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the outputs of a two-way policy, see `TwoWayPolicy.both`."""
        policy = cast(TwoWayPolicy, self.policy)
        with autocast(self.device, self._precision):
            forward, backward, numbers = policy.both(self._moved(batch), sent(conditioning, self.device))
        return forward, backward, numbers.float()

    def _moved(self, batch: Batch) -> Batch:
        return batch if self.device.type == "cpu" else moved(batch, self.device)
