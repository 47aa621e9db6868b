"""Reference log-probabilities when actions that lead to isomorphic states are counted as one action.

Classes are compared by canonical forms, one state at a time; the losses of tests/oracles/losses.py apply unchanged.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.trajectory import TrajectoryBatch
from tests.oracles.losses import Trajectories, read_steps


@dataclass(frozen=True)
class EquivalentActions:
    """Labelled actions equivalent to one step, and the number of classes of parents of the next state."""

    forward: ActionBatch
    backward: ActionBatch  # in the next state; for Stop, Stop itself
    num_parents: int


def equivalent_actions_of(env, batch: TrajectoryBatch) -> list[EquivalentActions]:
    """Return the actions equivalent to each step of the batch."""
    following = dict(zip(*(steps.tolist() for steps in batch.successors()), strict=True))
    equivalents = []
    for step in range(len(batch.actions)):
        if step in following:
            equivalents.append(_equivalent_actions(env, batch, step, following[step]))
        else:
            stop = batch.actions[step : step + 1]
            equivalents.append(EquivalentActions(stop, stop, 0))
    return equivalents


def _equivalent_actions(env, batch: TrajectoryBatch, step: int, following: int) -> EquivalentActions:
    before, after = batch.states[step : step + 1], batch.states[following : following + 1]
    backward_actions = env.backward_masks(after).positions()[1]
    parents = child_keys(env, after, backward_actions)
    equivalent = backward_actions[torch.tensor([key == class_keys(env, before)[0] for key in parents])]
    return EquivalentActions(
        forward=moves_to(env, before, class_keys(env, after)[0]), backward=equivalent, num_parents=len(set(parents))
    )


def moves_to(env, state, key: Hashable) -> ActionBatch:
    """Return all actions except Stop that lead from one state to a class."""
    actions = env.forward_masks(state).positions()[1]
    actions = actions[actions.kind != int(GraphActionType.Stop)]
    return actions[torch.tensor([child == key for child in child_keys(env, state, actions)])]


def class_keys(env, states) -> list[Hashable]:
    return [env.coloured_graph(states, i).canonical_key() for i in range(len(states))]


def child_keys(env, state, actions: ActionBatch) -> list[Hashable]:
    """Return the canonical keys of the children of one state, one per action."""
    return class_keys(env, env.apply(state[torch.zeros(len(actions), dtype=torch.int64)], actions))


@torch.no_grad()
def read_class_steps(
    context,
    policy,
    batch: TrajectoryBatch,
    offset: nn.Module | None,
    equivalents: Sequence[EquivalentActions],
    *,
    learned: bool,
) -> Trajectories:
    """Evaluate the policy, probabilities summed over equivalent actions; P_B is learned or uniform over classes."""
    encoded = context.to_batch(batch.states)
    forward, backward, _ = policy.both(encoded, batch.conditioning[batch.trajectory])
    trajectories = [list(steps) for steps in read_steps(context, policy, batch, offset)]
    for i, policy_steps in enumerate(trajectories):
        steps = (batch.trajectory == i).nonzero().squeeze(1).tolist()
        for t, step in enumerate(steps):
            same, log_backward = equivalents[step], 0.0
            log_forward = log_sum(forward, context, encoded, same.forward, step)
            if t + 1 < len(steps) and learned:
                log_backward = log_sum(backward, context, encoded, same.backward, steps[t + 1], backward=True)
            elif t + 1 < len(steps):
                log_backward = -math.log(same.num_parents)
            policy_steps[t] = replace(policy_steps[t], log_forward=log_forward, log_backward=log_backward)
    return trajectories


def log_sum(categorical, context, encoded, actions: ActionBatch, graph: int, *, backward: bool = False) -> float:
    """Return the log of the total probability of actions on one graph of a batch."""
    graphs = torch.full((len(actions),), graph)
    indices = context.to_indices(encoded, actions, graphs=graphs, backward=backward)
    return math.log(sum(categorical.log_prob(indices, graphs=graphs).exp().tolist()))
