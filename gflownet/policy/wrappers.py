"""Wrappers of a policy: on its device, in the chosen precision; greedier, at inference only.

Letters: B graphs, A slots of actions, -inf for illegal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.layout import Batch, moved
from gflownet.mdp.policy import Policy, PolicyFunction, TwoWayPolicy
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


# Maps the logits of P_F [B, A], action values [B, A] and p to the logits [B, A] of a greedier policy (QGFN, Lau et al.
# 2024).
Greediness = Callable[[Tensor, Tensor, float], Tensor]

_ROUNDING = 1e-9  # tolerance for positions p (n - 1) that are integers up to rounding


def p_greedy(logits: Tensor, values: Tensor, p: float) -> Tensor:
    """Return the logits of (1 - p) P_F + p times the uniform distribution over the best actions."""
    best = (values == values.amax(1, keepdim=True)).to(logits)
    mixture = (1 - p) * logits.softmax(1) + p * best / best.sum(1, keepdim=True)
    return mixture.log()


def p_quantile(logits: Tensor, values: Tensor, p: float) -> Tensor:
    """Return the logits of P_F without the actions below the p-quantile of the values of legal actions."""
    legal = values > -math.inf
    ordered = values.masked_fill(~legal, math.inf).sort(1).values
    position = (p * (legal.sum(1, keepdim=True) - 1).double() - _ROUNDING).ceil().long()
    return logits.masked_fill(values < ordered.gather(1, position), -math.inf)


def p_of_max(logits: Tensor, values: Tensor, p: float) -> Tensor:
    """Return the logits of P_F without the actions with a value below p times the maximum."""
    return logits.masked_fill(values < p * values.amax(1, keepdim=True), -math.inf)


GREEDINESS: dict[str, Greediness] = {"p_greedy": p_greedy, "p_quantile": p_quantile, "p_of_max": p_of_max}


class GreedyPolicy:
    """A policy function filtered by action values; p = 0 is the policy itself, p = 1 takes only the best actions."""

    def __init__(self, policy: PolicyFunction, action_values: PolicyFunction, *, variant: str, p: float) -> None:
        """Combine a policy with action values for the same batches.

        Args:
            policy: P_F.
            action_values: its logits are action values before softplus.
            variant: one of GREEDINESS.
            p: in [0, 1].

        Raises:
            ValueError: an unknown variant, or p outside [0, 1].
        """
        if variant not in GREEDINESS:
            raise ValueError(f"variant: expected one of {', '.join(GREEDINESS)}, got {variant!r}")
        if not 0 <= p <= 1:
            raise ValueError(f"p: expected a number in [0, 1], got {p}")
        self._policy, self._action_values, self._greediness, self._p = policy, action_values, GREEDINESS[variant], p

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the greedier distributions and the scalars of the policy, see `Policy.forward`."""
        categorical, numbers = self._policy(batch, conditioning)
        if self._p == 0:
            return categorical, numbers
        slots = self._action_values(batch, conditioning)[0].slots
        values = torch.where(slots > -math.inf, softplus(slots), -math.inf)
        return categorical.with_slots(self._greediness(categorical.slots, values, self._p)), numbers
