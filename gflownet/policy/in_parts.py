"""A policy asked part by part, and once more for the gradient: the activations of one part at a time are kept."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import Policy, TwoWayPolicy

Flat = tuple[Tensor, ...]  # logits of every action type, forward ones first, and the numbers


class PolicyInParts(TwoWayPolicy):
    """Says what the policy says, with its gradient, in less memory and a forward pass more (Chen et al. 2016).

    Whatever a loss does with the answers is none of its business: the gradient is that of the whole batch.
    """

    def __init__(self, policy: Policy, context: GraphBuildingEnvContext, *, num_parts: int) -> None:
        super().__init__()
        self.policy, self.context, self.num_parts = policy, context, num_parts

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return what the policy says, see `Policy.forward`."""
        if self._is_whole:
            return self.policy(batch, conditioning)

        def ask(part: Batch, shown: Tensor) -> Flat:
            categorical, numbers = self.policy(part, shown)
            return *categorical.logits, numbers

        *logits, numbers = self._joined(ask, batch, conditioning)
        return self.context.categorical(batch, logits), numbers

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return what a two-way policy says, see `TwoWayPolicy.both`."""
        policy = cast(TwoWayPolicy, self.policy)
        if self._is_whole:
            return policy.both(batch, conditioning)

        def ask(part: Batch, shown: Tensor) -> Flat:
            forward, backward, numbers = policy.both(part, shown)
            return *forward.logits, *backward.logits, numbers

        *logits, numbers = self._joined(ask, batch, conditioning)
        num = len(self.context.action_types)
        forward = self.context.categorical(batch, logits[:num])
        return forward, self.context.backward_categorical(batch, logits[num:]), numbers

    @property
    def _is_whole(self) -> bool:
        """Return whether one part will do: without gradients there is nothing to keep."""
        return self.num_parts == 1 or not torch.is_grad_enabled()

    def _joined(self, ask: Callable[[Batch, Tensor], Flat], batch: Batch, conditioning: Tensor) -> list[Tensor]:
        """Return what all parts are answered."""
        num_parts = min(self.num_parts, len(conditioning))
        bounds = [len(conditioning) * part // num_parts for part in range(num_parts + 1)]
        answers = [
            checkpoint(ask, self.context.layout.part(batch, start, stop), conditioning[start:stop], use_reentrant=False)
            for start, stop in pairwise(bounds)
        ]
        return [torch.cat(parts) for parts in zip(*cast(list[Flat], answers), strict=True)]
