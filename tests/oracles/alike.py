"""Log-probabilities of the steps of a batch, with actions into the same class counted as one.

Classes are identified by canonical forms, state by state; the losses of tests/oracles/losses.py are the same.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.trajectory import TrajectoryBatch
from tests.oracles.losses import Trajectories, listen


@dataclass(frozen=True)
class Alike:
    """Labelled actions that count as one with a step's, and how many classes lead to the state that follows."""

    forward: ActionBatch
    backward: ActionBatch  # in the state that follows; of Stop, itself
    num_parents: int


def alike_of(env, batch: TrajectoryBatch) -> list[Alike]:
    """Return the legal actions that are equivalent to the action of each step."""
    following = dict(zip(*(steps.tolist() for steps in batch.successors()), strict=True))
    found = []
    for step in range(len(batch.actions)):
        if step in following:
            found.append(_alike(env, batch, step, following[step]))
        else:
            stop = batch.actions[step : step + 1]
            found.append(Alike(stop, stop, 0))
    return found


def _alike(env, batch: TrajectoryBatch, step: int, following: int) -> Alike:
    before, after = batch.states[step : step + 1], batch.states[following : following + 1]
    undone = env.backward_masks(after).positions()[1]
    parents = keys_behind(env, after, undone)
    back = undone[torch.tensor([key == class_keys(env, before)[0] for key in parents])]
    return Alike(
        forward=moves_to(env, before, class_keys(env, after)[0]),
        backward=back,
        num_parents=len(set(parents)),
    )


def moves_to(env, state, key: Hashable) -> ActionBatch:
    """Return all actions on one state that lead to a class, but Stop."""
    actions = env.forward_masks(state).positions()[1]
    actions = actions[actions.kind != int(GraphActionType.Stop)]
    return actions[torch.tensor([found == key for found in keys_behind(env, state, actions)])]


def class_keys(env, states) -> list[Hashable]:
    """The canonical forms of states."""
    return [env.coloured_graph(states, i).canonical_key() for i in range(len(states))]


def keys_behind(env, state, actions: ActionBatch) -> list[Hashable]:
    """The canonical forms of the states after each action on one state."""
    return class_keys(env, env.apply(state[torch.zeros(len(actions), dtype=torch.int64)], actions))


@torch.no_grad()
def listen_to_classes(
    context, policy, batch: TrajectoryBatch, beside: nn.Module | None, alike: Sequence[Alike], *, learned: bool
) -> Trajectories:
    """Evaluate every state with equivalent actions counted as one; P_B learned, or uniform over classes."""
    shown = context.to_batch(batch.states)
    forward, backward, _ = policy.both(shown, batch.conditioning[batch.trajectory])
    heard = [list(said) for said in listen(context, policy, batch, beside)]
    for i, said in enumerate(heard):
        steps = (batch.trajectory == i).nonzero().squeeze(1).tolist()
        for t, step in enumerate(steps):
            same, log_backward = alike[step], 0.0
            log_forward = log_sum(forward, context, shown, same.forward, step)
            if t + 1 < len(steps) and learned:
                log_backward = log_sum(backward, context, shown, same.backward, steps[t + 1], backward=True)
            elif t + 1 < len(steps):
                log_backward = -math.log(same.num_parents)
            said[t] = replace(said[t], log_forward=log_forward, log_backward=log_backward)
    return heard


def log_sum(categorical, context, shown, actions: ActionBatch, graph: int, *, backward: bool = False) -> float:
    """Return the log of the probability of all these actions on one graph of a batch."""
    graphs = torch.full((len(actions),), graph)
    indices = context.to_indices(shown, actions, graphs=graphs, backward=backward)
    return math.log(sum(categorical.log_prob(indices, graphs=graphs).exp().tolist()))
