"""Actions that lead to isomorphic states: their probabilities are summed when classes of graphs are counted.

Letters: B states, A actions, K equivalent actions of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates


@dataclass(frozen=True)
class Equivalents:
    """For every action the legal actions of its state into the same class, including itself."""

    owner: Tensor  # [K] int64, which of the A actions
    actions: ActionBatch  # K


def equivalent_actions(
    env: Environment, states: GraphStates, actions: ActionBatch, *, backward: bool = False
) -> Equivalents:
    """Return the equivalents of one action per state, forward or backward; Stop is only equivalent to itself."""
    masks = env.backward_masks(states) if backward else env.forward_masks(states)
    owner, candidates = masks.positions()
    # Equivalent actions have the same type and column: the same kind of node or edge, or the same value.
    same_type = (candidates.kind == actions.kind[owner]) & (candidates.column == actions.column[owner])
    owner, candidates = owner[same_type], candidates[same_type]
    reached = env.identify(env.apply(states, actions))
    same = env.identify(env.apply(states[owner], candidates)) == reached[owner]
    return Equivalents(owner[same], candidates[same])


def num_parent_classes(env: Environment, states: GraphStates) -> Tensor:
    """Return the number of parent classes of each state, [B] int64."""
    owner, actions = env.backward_masks(states).positions()
    parents = env.identify(env.apply(states[owner], actions))
    distinct = torch.unique(torch.stack([owner, parents], 1), dim=0)
    return torch.bincount(distinct[:, 0], minlength=len(states))


def log_sum_by(owner: Tensor, values: Tensor, num: int) -> Tensor:
    """Return the log-sum-exp of the values [K] of each owner, [num]; -inf for an owner without values."""
    highest = torch.full((num,), -torch.inf, dtype=values.dtype, device=values.device)
    highest = highest.scatter_reduce(0, owner, values.detach(), "amax")
    shift = torch.where(highest.isfinite(), highest, 0.0)
    total = torch.zeros_like(shift).index_add(0, owner, (values - shift[owner]).exp())
    return total.log() + shift
