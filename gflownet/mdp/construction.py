"""Constructions of terminal states: taken apart by legal backward actions, and repeated by legal forward actions.

Letters: B states, N maximum number of nodes, T steps, L actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from gflownet.mdp.action import PAIR_TYPES, SETTING_TYPES, ActionBatch, ActionMasks
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

NONE = -1  # no step, no node
# Share of completions that prefer an edge to a node: an edge usually completes a graph, a node needs further actions.
_EDGE_PROBABILITY = 0.75


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

    def actions(self, position: Tensor, *, directed: bool) -> ActionBatch:
        """Return the actions [B, T] on states with nodes at `position` [B, N + 1]; row -1: a node is not there yet."""
        num_nodes = position.shape[1] - 1
        first, second = (position.gather(1, names.clamp(min=0)) for names in (self.source, self.target))
        first = torch.where(self.source == NONE, 0, first)
        on_pair = torch.isin(self.kind, torch.tensor(sorted(PAIR_TYPES)))
        is_missing = (first == NONE) | (on_pair & (second == NONE))
        if not directed:
            first, second = (torch.where(on_pair, torch.minimum(first, second), first), torch.maximum(first, second))
        row = torch.where(on_pair, first * num_nodes + second, first)
        return ActionBatch(self.kind, row.masked_fill(is_missing, NONE), self.column)


def taken_apart(env: Environment, states: GraphStates, generator: torch.Generator) -> Construction:
    """Return a construction of each state: the reverse of uniformly random backward actions."""
    num, n = states.node_type.shape
    index, names, steps = torch.arange(num), torch.arange(n).repeat(num, 1), []
    position = torch.full((num, n + 1), NONE)
    num_initial = int(env.initial_states(1).num_nodes)
    while True:
        masks = env.backward_masks(states)
        alive = masks.num_actions() > 0
        position[index[~alive, None], names[~alive, :num_initial]] = torch.arange(num_initial)
        if not bool(alive.any()):
            break
        states, index, names = states[alive], index[alive], names[alive]
        actions = masks[alive].sample_uniform(generator)
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


@dataclass(frozen=True)
class _Work:
    """Unfinished states with the rest of their plans."""

    index: Tensor  # [B] int64
    plan: Construction
    states: GraphStates
    position: Tensor  # [B, N + 1] int64, present positions of the plan's nodes
    pending: Tensor  # [B, T] bool
    num_repairs: Tensor  # [B] int64

    def __getitem__(self, index: Tensor | slice) -> _Work:
        return _Work(*(getattr(self, field.name)[index] for field in fields(self)))

    def num_left(self) -> Tensor:
        """Return the number of nodes and edges of the plan that are not there, [B]."""
        first, second = (self.position.gather(1, each.clamp(min=0)) for each in (self.plan.source, self.plan.target))
        graph = torch.arange(len(self.index))[:, None]
        has_edge = self.states.has_edge[graph, first.clamp(min=0), second.clamp(min=0)] & (first >= 0) & (second >= 0)
        is_edge = (self.plan.kind == int(Kind.AddEdge)) & ~has_edge
        return (self.pending & (is_edge | (self.plan.kind == int(Kind.AddNode)))).sum(1)


def built(env: Environment, plan: Construction, generator: torch.Generator) -> tuple[GraphStates, Tensor]:
    """Return terminal states [B] by legal actions, and the number of repairs [B]: departures from the plan.

    Each step takes the first action of the plan that is left and legal. Where there is none and Stop is illegal, a
    random action is taken, one that sets an attribute or concerns the new node (name N) if possible. Repairs are
    nodes and edges of the plan that are left at the end, and other random nodes and edges.
    """
    num = len(plan)
    pending, num_repairs = plan.kind != NONE, torch.zeros(num, dtype=torch.int64)
    work = _Work(torch.arange(num), plan, env.initial_states(num), plan.position, pending, num_repairs)
    finished = [work[:0]]
    while len(work.index):
        masks = env.forward_masks(work.states)
        planned = work.plan.actions(work.position, directed=env.vocabulary.directed)
        legal = work.pending & masks.contains(planned)
        done = ~legal.any(1) & masks.masks[Kind.Stop].flatten(1).any(1)
        if bool(done.any()):
            finished.append(work[done])
            work, masks, planned, legal = work[~done], masks[~done], planned[~done], legal[~done]
        if len(work.index):
            work = _stepped(env, work, masks, planned, legal, generator)
    order = torch.cat([part.index for part in finished]).argsort()
    num_repairs = torch.cat([part.num_repairs + part.num_left() for part in finished])
    return GraphStates.cat([part.states for part in finished])[order], num_repairs[order]


def _stepped(
    env: Environment, work: _Work, masks: ActionMasks, planned: ActionBatch, legal: Tensor, generator: torch.Generator
) -> _Work:
    """Return the work after the first legal action [B, T] of each plan, or a random one."""
    follows, step = legal.any(1), legal.int().argmax(1, keepdim=True)
    actions, num_repairs = ActionBatch(*(part.gather(1, step).squeeze(1) for part in planned.parts)), work.num_repairs
    if not bool(follows.all()):
        free, is_repair = _completions(masks, work.position[:, -1], generator)
        pairs = zip(actions.parts, free.parts, strict=True)
        actions = ActionBatch(*(torch.where(follows, first, second) for first, second in pairs))
        num_repairs = num_repairs + (is_repair & ~follows)
    adds = (follows & (actions.kind == int(Kind.AddNode))).nonzero().squeeze(1)
    added = work.plan.target.gather(1, step)[adds, 0]
    return replace(
        work,
        states=env.apply(work.states, actions),
        position=work.position.index_put((adds, added), work.states.num_nodes[adds]),
        pending=work.pending.scatter(1, step, work.pending.gather(1, step) & ~follows[:, None]),
        num_repairs=num_repairs,
    )


def _completions(masks: ActionMasks, new: Tensor, generator: torch.Generator) -> tuple[ActionBatch, Tensor]:
    """Return a random action per state other than Stop, and whether it is a repair; `new` [B] is the new node."""
    masks = ActionMasks({kind: mask for kind, mask in masks.masks.items() if kind != Kind.Stop})
    prefers_edge = torch.rand(len(new), 1, generator=generator) < _EDGE_PROBABILITY
    ranks = []
    for kind, mask in masks.masks.items():
        rank = torch.rand(mask.shape, generator=generator)
        if kind in SETTING_TYPES:
            rank += 3.0
        elif kind == Kind.AddEdge:
            row, num_nodes = torch.arange(mask.shape[1]), math.isqrt(mask.shape[1])
            concerns_new = (new[:, None] != NONE) & (
                (row // num_nodes == new[:, None]) | (row % num_nodes == new[:, None])
            )
            rank += torch.where(concerns_new, 2.0, prefers_edge.float())[:, :, None]
        ranks.append(rank.masked_fill(~mask, NONE).flatten(1))
    best, position = torch.cat(ranks, 1).max(1)
    return masks.at(position), best < 2.0
