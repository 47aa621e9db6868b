"""The construction of a terminal state as categorical decisions: one name always has the same number of choices.

In an environment of places a decision is the value of a place, in the order of the places. In others it is the kind,
the row or the column of an action, and its name contains the number of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from gflownet.data.action_sequences import action_sequences
from gflownet.data.sampler import Step, assembled
from gflownet.envs.slots import SlotEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin

Action = tuple[int, int, int]  # kind, row, column
_STOP: Action = (int(GraphActionType.Stop), 0, 0)
_STOP_BEFORE = "stop before "  # a place


@dataclass(frozen=True)
class Decision:
    """A choice among `num_choices`."""

    name: str
    num_choices: int
    choice: int


# Name, number of choices -> any choice; an illegal one is replaced by the next legal one.
Choose = Callable[[str, int], int]


def construct(env: Environment, choose: Choose) -> GraphStates:
    """Return the terminal state of a sequence of decisions, one state."""
    state, decide = env.initial_states(1), _set_place if _has_places(env) else _act
    for step in count():
        _, legal = env.forward_masks(state).positions()
        actions = list(zip(*(column.tolist() for column in legal.parts), strict=True))
        action = _STOP if actions == [_STOP] else decide(env, actions, step, choose)
        if action == _STOP:
            break
        state = env.apply(state, _batch(action))
    return state


def decisions_of(env: Environment, state: GraphStates) -> list[Decision]:
    """Return the decisions that construct one terminal state, up to isomorphism.

    Of the many orders in which a graph can be built, it is the one whose inverse removes later nodes first.
    """
    if _has_places(env):
        return _decisions_of_places(env, state)
    decisions = []
    for step, (kind, row, column) in enumerate(_actions_of(env, state)):
        names, sizes = _names(step, kind), _sizes(env, kind)
        decisions += [
            Decision(name, size, choice)
            for name, size, choice in zip(names, sizes, (env.forward_types.index(kind), row, column), strict=True)
            if size > 1
        ]
    return decisions


def _has_places(env: Environment) -> bool:
    """Return whether an architecture is an assignment of values to places."""
    return isinstance(env, SlotEnv) and not any(attribute.counted for attribute in env.vocabulary.node_attributes)


def _decisions_of_places(env: Environment, state: GraphStates) -> list[Decision]:
    """Return the decisions of the places in the order in which they can be set."""
    decisions, places = [], {name: place for place, name in enumerate(env.vocabulary.node_types)}

    def choose(name: str, size: int) -> int:
        value = int(state.node_attr[0, places[name.removeprefix(_STOP_BEFORE)], 0])
        decisions.append(Decision(name, size, int(value < 0) if name.startswith(_STOP_BEFORE) else value))
        return decisions[-1].choice

    construct(env, choose)
    return decisions


def _set_place(env: Environment, actions: Sequence[Action], step: int, choose: Choose) -> Action:
    """Choose the value of the first place that can be set, or Stop where it is legal."""
    place = min(row for kind, row, _ in actions if kind != _STOP[0])
    name = env.vocabulary.node_types[place]
    if _STOP in actions and choose(_STOP_BEFORE + name, 2):
        return _STOP
    columns = {column for kind, row, column in actions if row == place and kind != _STOP[0]}
    size = env.vocabulary.num_columns(GraphActionType.SetNodeAttr)
    return int(GraphActionType.SetNodeAttr), place, _next_legal(columns, choose(name, size))


def _act(env: Environment, actions: Sequence[Action], step: int, choose: Choose) -> Action:
    """Choose the kind, the row and the column of an action."""
    prefix: Action | tuple = ()
    for part in range(3):
        legal = {_position(env, action, part) for action in actions if action[:part] == prefix}
        kind = prefix[0] if prefix else _STOP[0]
        name, size = _names(step, kind)[part], _sizes(env, kind)[part]
        choice = _next_legal(legal, choose(name, size)) if size > 1 else min(legal)
        prefix = (*prefix, choice if part else int(env.forward_types[choice]))
    return prefix


def _position(env: Environment, action: Action, part: int) -> int:
    return action[part] if part else env.forward_types.index(action[0])


def _next_legal(legal: set[int], choice: int) -> int:
    """Return a choice where it is legal, otherwise the next legal one, cyclically."""
    return min(legal, key=lambda each: (each < choice, each))


def _names(step: int, kind: int) -> tuple[str, str, str]:
    action = f"step {step}: {GraphActionType(kind).name}"
    return f"step {step}: kind", f"{action} row", f"{action} column"


def _sizes(env: Environment, kind: int) -> tuple[int, int, int]:
    """Return the number of kinds, and of rows and columns of a kind."""
    n = env.vocabulary.max_nodes
    num_rows = 1 if kind == _STOP[0] else n * n if kind in PAIR_TYPES else n
    return len(env.forward_types), num_rows, env.vocabulary.num_columns(GraphActionType(kind))


def _actions_of(env: Environment, state: GraphStates) -> list[Action]:
    """Return the forward actions, Stop included, that build a state when the last node is removed first."""
    stop = _batch(_STOP)
    steps = [Step(state, torch.zeros(1, dtype=torch.int64), stop, stop, torch.zeros(1))]
    while True:
        masks = env.backward_masks(state)
        _, legal = masks.positions()
        if not len(legal):
            break
        action = max(zip(*(column.tolist() for column in legal.parts), strict=True), key=lambda a: _rank(env, a))
        backward = _batch(action)
        before, forward = env.apply(state, backward), env.reverse(state, backward)
        log_backward = -masks.num_actions().log()
        steps.append(Step(before, torch.zeros(1, dtype=torch.int64), forward, backward, log_backward))
        state = before
    trajectory = assembled(env, steps[::-1], Conditioning(torch.zeros(1, 0), torch.ones(1)), Origin.RESAMPLED)
    actions = action_sequences(env, trajectory).actions
    return list(zip(*(column.tolist() for column in actions.parts), strict=True))


def _rank(env: Environment, action: Action) -> tuple[int, ...]:
    """Order backward actions by the last node that they change."""
    kind, row, column = action
    nodes = divmod(row, env.vocabulary.max_nodes) if kind in PAIR_TYPES else (row, row)
    return max(nodes), kind, row, column


def _batch(action: Action) -> ActionBatch:
    return ActionBatch(*(torch.tensor([value]) for value in action))
