"""Constructions of terminal states: taken apart by legal backward actions, and repeated by legal forward actions.

Letters: B states, N maximum number of nodes, T steps, L actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import count

import torch
from torch import Tensor
from torch.nn.functional import pad

from gflownet.mdp.action import PAIR_TYPES, SETTING_TYPES, ActionBatch, ActionLayout
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

NONE = -1  # no step, no node
# Share of completions that prefer an edge to a node: an edge usually completes a graph, a node needs further actions.
_EDGE_PROBABILITY = 0.75
_STOP = 0  # position in flat masks
_NOWHERE = -(2**32)  # place of a missing node; positions that depend on it are negative


@dataclass(frozen=True)
class Construction:
    """Forward actions of B states. A node's name is its position in the terminal state, N for a new node."""

    kind: Tensor  # [B, T] int64, a GraphActionType; NONE: no action
    source: Tensor  # [B, T] int64, the node of an action; NONE: the first node of an empty graph is added
    target: Tensor  # [B, T] int64, the second node of a pair, or the node that is added
    column: Tensor  # [B, T] int64
    position: Tensor  # [B, N + 1] int64, position of each node in the initial state; NONE: it is added

    def __len__(self) -> int:
        """Return B."""
        return len(self.kind)

    def __getitem__(self, index: Tensor | slice) -> Construction:
        """Return the constructions at an index."""
        return Construction(*(getattr(self, field.name)[index] for field in fields(self)))


def taken_apart(env: Environment, states: GraphStates, generator: torch.Generator) -> Construction:
    """Return a construction of each state: the reverse of uniformly random backward actions."""
    with torch.inference_mode():  # a tenth faster than no_grad
        construction = _taken_apart(env, states[:], generator)
    return Construction(*(getattr(construction, field.name).clone() for field in fields(construction)))


def _taken_apart(env: Environment, states: GraphStates, generator: torch.Generator) -> Construction:
    num, n = states.node_type.shape
    index, names, steps = torch.arange(num), torch.arange(n).repeat(num, 1), []
    position = torch.full((num, n + 1), NONE)
    num_initial = int(env.initial_states(1).num_nodes)
    while len(states):
        masks = env.backward_masks(states)
        is_alive = masks.flat.any(1)
        if not bool(is_alive.all()):
            alive, initial = is_alive.nonzero().squeeze(1), (~is_alive).nonzero().squeeze(1)
            position[index[initial, None], names[initial, :num_initial]] = torch.arange(num_initial)
            states, index, names, masks = states[alive], index[alive], names[alive], masks[alive]
            if not len(alive):
                break
        actions = masks.sample_uniform(generator)
        reverse, states = env.reverse(states, actions), env.apply(states, actions)
        step = torch.full((4, num), NONE)
        is_node = reverse.kind == int(Kind.AddNode)
        added = names.gather(1, torch.where(is_node, actions.row, 0)[:, None]).squeeze(1)
        later = torch.arange(n) >= torch.where(is_node, actions.row, n)[:, None]
        names = names.gather(1, (torch.arange(n) + later).clamp(max=n - 1))
        step[:, index] = _named(reverse, names, added, states.num_nodes)
        steps.append(step)
    stacked = torch.stack(steps[::-1], -1) if steps else torch.empty(4, num, 0, dtype=torch.int64)
    kind, source, target, column = stacked
    return Construction(kind, source, target, column, position)


def _named(actions: ActionBatch, names: Tensor, added: Tensor, num_nodes: Tensor) -> Tensor:
    """Return kind, source, target and column of forward actions, [4, B], for `added` nodes and others in `names`."""
    n = names.shape[1]
    on_pair = torch.isin(actions.kind, torch.tensor(sorted(PAIR_TYPES)))
    is_node = actions.kind == int(Kind.AddNode)
    row = torch.where(on_pair, actions.row // n, actions.row)
    source = names.gather(1, row[:, None]).squeeze(1).masked_fill(is_node & (num_nodes == 0), NONE)
    target = names.gather(1, torch.where(on_pair, actions.row % n, 0)[:, None]).squeeze(1)
    target = torch.where(is_node, added, torch.where(on_pair, target, NONE))
    return torch.stack([actions.kind, source, target, actions.column])


class _Plan:
    """The steps that are left of B constructions, as positions in the flat masks of the states built so far.

    Step T stands for an action outside the plan.
    """

    def __init__(self, env: Environment, plan: Construction) -> None:
        vocabulary = env.vocabulary
        kinds = [(int(kind), vocabulary.num_rows(kind), vocabulary.num_columns(kind)) for kind in env.forward_types]
        self.layout, self._plan, self._directed = ActionLayout(tuple(kinds)), plan, vocabulary.directed
        on_pair = torch.isin(plan.kind, torch.tensor(sorted(PAIR_TYPES)))
        offset, rows, columns = self.layout.extents(plan.kind)
        exists = (rows > 0) & (plan.column >= 0) & (plan.column < columns)
        self._offset = pad(torch.where(exists, offset + plan.column, _NOWHERE), (0, 1), value=_NOWHERE)  # [B, T + 1]
        # Two further names: the row without a source, 0, and a name that no step reads.
        zero = plan.position.shape[1]
        place = torch.where(plan.position == NONE, _NOWHERE, plan.position)
        self._place = pad(place, (0, 2))  # [B, N + 3]
        source = torch.where(plan.source == NONE, zero, plan.source)
        target = torch.where(on_pair, plan.target.clamp(min=0), source)
        self._names = torch.cat([source, target], 1)  # [B, 2 T]
        self._weights = torch.stack([torch.where(on_pair, vocabulary.max_nodes, 1) * columns, on_pair * columns], 1)
        is_node = plan.kind == int(Kind.AddNode)
        self._added = pad(torch.where(is_node, plan.target, zero + 1), (0, 1), value=zero + 1)  # [B, T + 1]

    def positions(self) -> Tensor:
        """Return the position of every step, [B, T + 1]; negative if it was taken or lacks a node."""
        places = self._place.gather(1, self._names).view_as(self._weights)
        if not self._directed:
            places = torch.stack([places.amin(1), places.amax(1)], 1)
        return self._offset + pad((places * self._weights).sum(1), (0, 1))

    def take(self, step: Tensor, num_nodes: Tensor) -> None:
        """Take one step [B] of each plan; a node that it adds gets the next place."""
        step = step[:, None]
        self._place.scatter_(1, self._added.gather(1, step), num_nodes[:, None])
        self._offset.scatter_(1, step, _NOWHERE)

    def new_nodes(self, rows: Tensor) -> Tensor:
        """Return the place of the new node (name N) of some plans, negative if there is none."""
        return self._place[rows, self._plan.position.shape[1] - 1]

    def num_left(self, states: GraphStates) -> Tensor:
        """Return the number of nodes and edges of each plan that are not there, [B]."""
        source, target = (self._place.gather(1, each.clamp(min=0)) for each in (self._plan.source, self._plan.target))
        graph, is_there = torch.arange(len(source))[:, None], (source >= 0) & (target >= 0)
        has_edge = states.has_edge[graph, source.clamp(min=0), target.clamp(min=0)] & is_there
        is_edge = (self._plan.kind == int(Kind.AddEdge)) & ~has_edge
        return ((self._offset[:, :-1] >= 0) & (is_edge | (self._plan.kind == int(Kind.AddNode)))).sum(1)


def built(
    env: Environment, plan: Construction, generator: torch.Generator, *, num_legal: Tensor | None = None
) -> tuple[GraphStates, Tensor]:
    """Return terminal states [B] by legal actions, and the number of repairs [B]: departures from the plan.

    Each step takes the first action of the plan that is left and legal. Where there is none and Stop is illegal, a
    random action is taken, one that sets an attribute or concerns the new node (name N) if possible. Repairs are
    nodes and edges of the plan that are left at the end, and other random nodes and edges.

    Args:
        env: the environment.
        plan: B constructions.
        generator: of the random actions.
        num_legal: [B] first steps of each plan, known to be legal in order; none by default.
    """
    with torch.inference_mode():
        states, num_repairs = _built(env, plan, generator, num_legal)
    return states.clone(), num_repairs.clone()


def _built(
    env: Environment, plan: Construction, generator: torch.Generator, num_legal: Tensor | None
) -> tuple[GraphStates, Tensor]:
    num, num_steps = plan.kind.shape
    left, states = _Plan(env, plan), env.initial_states(num)
    # The plans of shorter constructions start with steps that are none.
    first = (plan.kind == NONE).long().cumprod(1).sum(1)
    num_known = torch.zeros_like(first) if num_legal is None else num_legal - first
    is_live, num_repairs = torch.ones(num, dtype=torch.bool), torch.zeros(num, dtype=torch.int64)
    for turn in count():
        position, step = left.positions(), (first + turn).clamp_(max=num_steps)
        rows = (is_live & (num_known <= turn)).nonzero().squeeze(1)
        stuck = rows[:0]
        if len(rows):
            legal = env.forward_masks(states if len(rows) == num else states[rows]).flat
            follows, step[rows] = _first_legal(legal, position[rows])
            may_go_on = follows | ~legal[:, _STOP]
            is_live[rows] = may_go_on
            stuck = (may_go_on & ~follows).nonzero().squeeze(1)
        num_live = int(is_live.sum())
        if not num_live:
            break
        step.masked_fill_(~is_live, num_steps)
        chosen = position.gather(1, step[:, None]).squeeze(1).clamp_(min=_STOP)
        if len(stuck):
            legal, stuck = legal[stuck], rows[stuck]
            among_live = is_live.cumsum(0)[stuck] - 1
            chosen[stuck], is_repair = _completions(
                legal, left.new_nodes(stuck), left.layout, rows=among_live, num=num_live, generator=generator
            )
            num_repairs[stuck] += is_repair
        left.take(step, states.num_nodes)
        states = env.apply(states, left.layout.at(chosen))
    return states, num_repairs + left.num_left(states)


def _first_legal(legal: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether one of the positions [B, T + 1] in flat masks is legal, and the first such one, T if none is."""
    is_legal = legal.gather(1, position.clamp(min=0)) & (position >= 0)
    follows = is_legal.any(1)
    return follows, torch.where(follows, is_legal.view(torch.uint8).argmax(1), position.shape[1] - 1)


def _completions(
    legal: Tensor, new: Tensor, layout: ActionLayout, *, rows: Tensor, num: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the position of a random action other than Stop for each of B states, and whether it is a repair.

    Args:
        legal: flat masks [B, A], Stop first.
        new: [B] the new nodes, negative without one.
        layout: of the masks.
        rows: [B] places of these states among the unfinished ones, all of which draw random numbers.
        num: number of unfinished states.
        generator: of the random numbers.
    """
    noise = torch.rand(num * legal.shape[1], generator=generator)
    prefers_edge, ranks, start = noise[:num][rows, None] < _EDGE_PROBABILITY, [], num
    for kind, num_rows, num_columns in layout.shapes[1:]:
        end = start + num * num_rows * num_columns
        rank = noise[start:end].view(num, -1)[rows]
        if kind in SETTING_TYPES:
            rank += 3.0
        elif kind == Kind.AddEdge:
            row, num_nodes = torch.arange(num_rows).repeat_interleave(num_columns), math.isqrt(num_rows)
            concerns_new = (row // num_nodes == new[:, None]) | (row % num_nodes == new[:, None])
            rank += torch.where(concerns_new, 2.0, prefers_edge.float())
        ranks.append(rank)
        start = end
    best, position = torch.cat(ranks, 1).masked_fill_(~legal[:, 1:], NONE).max(1)
    return position + 1, best < 2.0
