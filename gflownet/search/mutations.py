"""Mutations of terminal states: some construction steps are undone, and random actions build a new terminal state.

Letters: B terminal states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.data.sampler import roll_out, terminal_states
from gflownet.data.uniform import uniform_states
from gflownet.mdp.action import ActionBatch, ActionMasks, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

# Probability of Stop where it is legal: uniform actions alone would nearly always add to a graph that may still grow.
_STOP_PROBABILITY = 0.5
# A mutation that equals its original is repeated up to this often: a space may have no other one.
_MAX_TRIES = 10
# Undone steps in a space where some steps can be undone only after others: a node with its type and its edges.
_DEPENDENT_STEPS = 6
_NUM_SAMPLES, _SAMPLES_SEED = 16, 0  # states from which the dependence of steps is read


def mutated(env: Environment, states: GraphStates, generator: torch.Generator, *, max_undone: int = 1) -> GraphStates:
    """Return one mutation of each terminal state, B terminal states that differ from their originals where they can.

    The number of undone steps is uniform between 1 and `max_undone`; each is a uniformly random backward action.
    """
    codes, children = env.identify(states), states
    for _ in range(_MAX_TRIES):
        index = (env.identify(children) == codes).nonzero().squeeze(1)
        if not len(index):
            break
        children = _replaced(children, index, _rebuilt(env, states[index], generator, max_undone))
    return children


def _rebuilt(env: Environment, states: GraphStates, generator: torch.Generator, max_undone: int) -> GraphStates:
    """Undo a random number of steps of each terminal state, and continue with random actions."""
    num_undone = torch.randint(1, max_undone + 1, (len(states),), generator=generator)
    parents = undone(env, states, num_undone, generator)
    return terminal_states(roll_out(env, parents, lambda states, _: _random_actions(env, states, generator)))


def undone(env: Environment, states: GraphStates, num_steps: Tensor, generator: torch.Generator) -> GraphStates:
    """Return the states after `num_steps` [B] uniformly random backward actions, at most back to the initial state."""
    for step in range(int(num_steps.max())):
        masks = env.backward_masks(states)
        index = ((num_steps > step) & (masks.num_actions() > 0)).nonzero().squeeze(1)
        if not len(index):
            break
        actions = ActionMasks({kind: mask[index] for kind, mask in masks.masks.items()}).sample_uniform(generator)
        states = _replaced(states, index, env.apply(states[index], actions))
    return states


def default_max_undone(env: Environment) -> int:
    """Return 1 where any step of a terminal state can be undone first, otherwise enough for a node and its edges."""
    generator = torch.Generator().manual_seed(_SAMPLES_SEED)
    terminal = uniform_states(env, _NUM_SAMPLES, generator=generator)
    num_first, num_steps, states = env.backward_masks(terminal).num_actions(), torch.zeros(_NUM_SAMPLES), terminal
    while bool((num_actions := env.backward_masks(states).num_actions()).any()):
        num_steps += num_actions > 0
        states = undone(env, states, torch.ones(_NUM_SAMPLES), generator)
    return 1 if bool((num_first == num_steps).all()) else _DEPENDENT_STEPS


def neighbours(env: Environment, state: GraphStates) -> GraphStates:
    """Return the distinct other terminal states that differ from one terminal state in at most one step, in any order.

    One step is undone, one is made, or both; in an environment of places: every change of one place.
    """
    parents = distinct(env, GraphStates.cat([state, _after(env, state, env.backward_masks(state))]))
    reached = GraphStates.cat([parents, _after(env, parents, env.forward_masks(parents))])
    may_stop = env.forward_masks(reached).masks[GraphActionType.Stop].flatten(1).any(1)
    is_other = env.identify(reached) != env.identify(state)
    return distinct(env, reached[(may_stop & is_other).nonzero().squeeze(1)])


def _after(env: Environment, states: GraphStates, masks: ActionMasks) -> GraphStates:
    """Return the states after every legal action other than Stop."""
    graphs, actions = ActionMasks({k: m for k, m in masks.masks.items() if k != GraphActionType.Stop}).positions()
    return env.apply(states[graphs], actions)


def distinct(env: Environment, states: GraphStates) -> GraphStates:
    """Return the first of all isomorphic states, in order."""
    first: dict[int, int] = {}
    for index, code in enumerate(env.identify(states).tolist()):
        first.setdefault(code, index)
    return states[torch.tensor(list(first.values()), dtype=torch.int64)]


def _replaced(states: GraphStates, index: Tensor, others: GraphStates) -> GraphStates:
    """Return the states with others at an index."""
    position = torch.arange(len(states)).index_copy(0, index, torch.arange(len(index)) + len(states))
    return GraphStates.cat([states, others])[position]


def _random_actions(env: Environment, states: GraphStates, generator: torch.Generator) -> ActionBatch:
    """Return a random legal action per state: Stop half of the time where it is legal, else uniform."""
    masks = env.forward_masks(states)
    actions = masks.sample_uniform(generator)
    may_stop = masks.masks[GraphActionType.Stop].flatten(1).any(1)
    stop = may_stop & (torch.rand(len(states), generator=generator) < _STOP_PROBABILITY)
    kind = actions.kind.masked_fill(stop, int(GraphActionType.Stop))
    return ActionBatch(kind, actions.row.masked_fill(stop, 0), actions.column.masked_fill(stop, 0))
