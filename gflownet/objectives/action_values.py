"""Action values Q(s, a) >= 0 (QGFN, Lau et al. 2024), learned from the trajectories of a policy.

Q is the expected reward without temperature, R(x)^(1 / beta), of the terminal state x after an action: the score where
the reward is score^beta (as in the published code, yunglau/QGFN). There are no intermediate rewards and no discount.
Letters: B trajectories, S steps, A slots of actions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

from gflownet.mdp.answer import ask
from gflownet.mdp.context import GraphBuildingEnvContext
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
