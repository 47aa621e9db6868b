"""Action values Q(s, a) >= 0 (QGFN, Lau et al. 2024), learned from the trajectories of a policy; greedier sampling.

Q is the expected reward without temperature, R(x)^(1 / beta), of the terminal state x after an action: the score where
the reward is score^beta (as in the published code, yunglau/QGFN). There are no intermediate rewards and no discount.
Letters: B trajectories or graphs, S steps, A slots of actions, -inf for illegal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from gflownet.mdp.answer import ask
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss

_COLDEST = 1e-6  # lower bound of beta against division by zero


def action_value_loss(
    context: GraphBuildingEnvContext,
    network: PolicyFunction,
    lagged: PolicyFunction,
    trajectories: TrajectoryBatch,
    *,
    num_steps: int,
) -> Loss:
    """Return the mean Huber loss of the action values of all steps against their n-step targets.

    Args:
        context: encodes the states.
        network: its logits are the action values before softplus.
        lagged: moving average of the network, for the value of the state `num_steps` steps later.
        trajectories: B, with rewards.
        num_steps: n; if at least the trajectory length, targets are the final rewards.
    """
    conditioning = trajectories.conditioning[trajectories.trajectory]
    outputs = ask(context, network, trajectories.states, conditioning)
    indices = context.to_indices(outputs.batch, trajectories.actions, graphs=outputs.owner)
    predicted = softplus(outputs.categorical.logits_of(indices))
    with torch.no_grad():
        values = torch.zeros_like(predicted)
        if num_steps < int(torch.bincount(trajectories.trajectory).max()):  # otherwise no target needs them
            values = softplus(ask(context, lagged, trajectories.states, conditioning).categorical.slots.amax(1))
        owner, outcome = trajectories.trajectory.to(predicted.device), outcomes(trajectories).to(predicted)
        target = n_step_targets(owner, values, outcome, num_steps=num_steps)
    value = huber_loss(predicted, target)
    return Loss(value, {"loss": float(value.detach()), "mean": float(predicted.detach().mean())})


def outcomes(trajectories: TrajectoryBatch) -> Tensor:
    """Return R(x)^(1 / beta) of each trajectory, [B]."""
    return (trajectories.log_reward / trajectories.beta.clamp(min=_COLDEST)).exp()


def n_step_targets(trajectory: Tensor, values: Tensor, outcome: Tensor, *, num_steps: int) -> Tensor:
    """Return max_a Q(s_(t+n), a) for each step t, or the outcome if the trajectory has ended by then, [S].

    Args:
        trajectory: [S] index of the trajectory of each step; steps in order.
        values: [S] max_a Q(s, a) of the state before each step.
        outcome: [B] final reward of each trajectory.
        num_steps: n.
    """
    order = trajectory.argsort(stable=True)
    owner = trajectory[order]
    later = torch.arange(len(order), device=order.device) + num_steps
    inside = later < len(order)
    later = torch.where(inside, later, 0)
    goes_on = inside & (owner[later] == owner)
    ordered = torch.where(goes_on, values[order[later]], outcome[owner])
    return torch.empty_like(ordered).index_put((order,), ordered)


# Maps the logits of P_F [B, A], action values [B, A] and p to the logits [B, A] of the greedier policy.
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
