"""Mutations of terminal states by local moves, and neighbourhoods.

Letters: B terminal states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.moves import Moves
from gflownet.mdp.states import GraphStates
from gflownet.search.history import first_mask

# Edits of one kind that are tried for a mutation, and kinds: few edits are legal where shapes and budgets are tight.
_MAX_EDITS, _MAX_KINDS = 4, 3
_NUM_TOGETHER = 256  # edits of few states are tried together: a batch of them takes hardly longer than one


def mutated(env: Environment, states: GraphStates, generator: torch.Generator) -> GraphStates:
    """Return each terminal state after one random local move, different from its original where a move is found.

    The kind of move is uniform, then the edit. Of several edits the first without repairs is taken, otherwise the one
    with the smallest number of them.
    """
    moves, codes, children = Moves.of(env, states, generator), env.identify(states), states
    for _ in range(_MAX_KINDS):
        index = ((env.identify(children) == codes) & moves.kinds().any(1)).nonzero().squeeze(1)
        if not len(index):
            break
        kind = torch.multinomial(moves.kinds()[index].double(), 1, generator=generator).squeeze(1)
        children = _moved(env, children, index, kind, moves=moves, codes=codes, generator=generator)
    return children


def _moved(
    env: Environment,
    states: GraphStates,
    index: Tensor,
    kind: Tensor,
    *,
    moves: Moves,
    codes: Tensor,
    generator: torch.Generator,
) -> GraphStates:
    """Return the states with those at an index after moves of these kinds."""
    most = torch.iinfo(torch.int64).max
    num_repairs, num_tried = torch.full((len(index),), most), 0
    while num_tried < _MAX_EDITS and bool((num_repairs > 0).any()):
        rows = (num_repairs > 0).nonzero().squeeze(1)
        num_copies = max(1, min(_MAX_EDITS - num_tried, _NUM_TOGETHER // len(rows)))
        owner, kinds = index[rows].repeat(num_copies), kind[rows].repeat(num_copies)
        children, repairs = moves.results(owner, kinds, moves.sample(owner, kinds, generator), generator)
        repairs = repairs.masked_fill(env.identify(children) == codes[owner], most).unflatten(0, (num_copies, -1))
        fewest, copy = repairs.min(0)
        chosen = (fewest < num_repairs[rows]).nonzero().squeeze(1)
        states = _replaced(states, index[rows[chosen]], children[copy[chosen] * len(rows) + chosen])
        num_repairs[rows[chosen]] = fewest[chosen]
        num_tried += num_copies
    return states


def neighbours(env: Environment, state: GraphStates, generator: torch.Generator, *, num: int) -> GraphStates:
    """Return distinct other terminal states one move away from one terminal state, in random order.

    In an environment of places these are all changes of one place; otherwise up to `num` random ones.
    """
    if {GraphActionType.AddNode, GraphActionType.AddEdge}.isdisjoint(env.forward_types):
        moves = Moves.of(env, state, generator)
        kind, position = moves.all_of(0)
        states, _ = moves.results(torch.zeros_like(kind), kind, position, generator)
    else:
        states = mutated(env, state[torch.zeros(num, dtype=torch.int64)], generator)
    states = distinct(env, states[(env.identify(states) != env.identify(state)).nonzero().squeeze(1)])
    return states[torch.randperm(len(states), generator=generator)]


def distinct(env: Environment, states: GraphStates) -> GraphStates:
    """Return the first of all isomorphic states, in order."""
    return states[first_mask(env.identify(states))]


def _replaced(states: GraphStates, index: Tensor, others: GraphStates) -> GraphStates:
    """Return the states with others at an index."""
    position = torch.arange(len(states)).index_copy(0, index, torch.arange(len(index)) + len(states))
    return GraphStates.cat([states, others])[position]
