"""Wrappers of a policy: on its device, in the chosen precision; in parts (micro-batches, gradient checkpointing)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.context import GraphBuildingEnvContext
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


Flat = tuple[Tensor, ...]  # logits of each action type, forward ones first, and the scalar per state


class PolicyInParts(TwoWayPolicy):
    """The same outputs and gradient as the policy, with less memory and one more forward pass (Chen et al. 2016).

    Works for any loss: the gradient is the gradient of the whole batch.
    """

    def __init__(self, policy: Policy, context: GraphBuildingEnvContext, *, num_parts: int) -> None:
        super().__init__()
        self.policy, self.context, self.num_parts = policy, context, num_parts

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the outputs of the policy, see `Policy.forward`."""
        if self._is_whole:
            return self.policy(batch, conditioning)

        def evaluate(part: Batch, conditioning: Tensor) -> Flat:
            categorical, numbers = self.policy(part, conditioning)
            return *categorical.logits, numbers

        *logits, numbers = self._joined(evaluate, batch, conditioning)
        return self.context.categorical(batch, logits), numbers

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the outputs of a two-way policy, see `TwoWayPolicy.both`."""
        policy = cast(TwoWayPolicy, self.policy)
        if self._is_whole:
            return policy.both(batch, conditioning)

        def evaluate(part: Batch, conditioning: Tensor) -> Flat:
            forward, backward, numbers = policy.both(part, conditioning)
            return *forward.logits, *backward.logits, numbers

        *logits, numbers = self._joined(evaluate, batch, conditioning)
        num = len(self.context.action_types)
        forward = self.context.categorical(batch, logits[:num])
        return forward, self.context.backward_categorical(batch, logits[num:]), numbers

    @property
    def _is_whole(self) -> bool:
        """Return whether one part is enough: without gradients no activations are stored."""
        return self.num_parts == 1 or not torch.is_grad_enabled()

    def _joined(self, evaluate: Callable[[Batch, Tensor], Flat], batch: Batch, conditioning: Tensor) -> list[Tensor]:
        """Return the outputs of all parts, concatenated."""
        num_parts = min(self.num_parts, len(conditioning))
        bounds = [len(conditioning) * part // num_parts for part in range(num_parts + 1)]
        outputs = [
            checkpoint(
                evaluate, self.context.layout.part(batch, start, stop), conditioning[start:stop], use_reentrant=False
            )
            for start, stop in pairwise(bounds)
        ]
        return [torch.cat(parts) for parts in zip(*cast(list[Flat], outputs), strict=True)]
