"""Local moves from terminal states to others, derived from the rules of any environment.

A state is taken apart, its construction is edited at one place and repeated by legal actions: the result is legal.

Letters: B states, N maximum number of nodes, T steps, C columns, K moves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

from gflownet.mdp.action import FORWARD_TYPES, ActionMasks
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.construction import NONE, Construction, built, taken_apart
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

_NUM_EDITS = 1  # steps that an edit may add


class Move(IntEnum):
    """The kinds of move."""

    RELABEL = 0  # another type, attribute or setting of a node or an edge; an optional setting is left out
    REWIRE = 1  # another end of an edge
    INSERT = 2  # a node in an edge; any further action after the last one: a leaf, an edge, a setting
    REMOVE = 3  # a node, whose in- and out-edges are joined; an edge


@dataclass(frozen=True)
class Moves:
    """The edits of the constructions of B states; whether one is legal shows only when it is built."""

    env: Environment
    plan: Construction  # B
    after: ActionMasks  # legal actions of the terminal states, without Stop
    edits: Mapping[Move, Tensor]  # each [B, any number] bool

    @staticmethod
    def of(env: Environment, states: GraphStates, generator: torch.Generator) -> Moves:
        """Return the moves of terminal states within the environment's caps, each in a random order."""
        states = states.with_limit(env.initial_states(1).limit)
        plan = taken_apart(env, states, generator)
        after = env.forward_masks(states).without_stop()
        changes = _changes(env)
        on_edge, on_node = plan.kind == int(Kind.AddEdge), plan.kind == int(Kind.AddNode)
        ends = torch.stack([on_edge | (on_node & (plan.source != NONE)), on_edge], -1)  # [B, T, 2]
        node = torch.arange(states.exists.shape[1])
        is_other = states.exists[:, None] & (node != plan.source[..., None]) & (node != plan.target[..., None])
        has_room = (states.num_nodes < env.vocabulary.max_nodes)[:, None, None]
        inside = ends[:, :, :1] & changes[int(Kind.AddNode), -1, :-1] & has_room  # [B, T, C]
        edits = {
            Move.RELABEL: changes[plan.kind, plan.column].flatten(1),  # [B, T * (C + 1)]
            Move.REWIRE: (ends[..., None] & is_other[:, :, None]).flatten(1),  # [B, T * 2 * N]
            Move.INSERT: torch.cat([inside.flatten(1), *(mask.flatten(1) for mask in after.masks.values())], 1),
            Move.REMOVE: on_edge | on_node,  # [B, T]
        }
        return Moves(env, plan, after, edits)

    def kinds(self) -> Tensor:
        """Return which kinds of move each state has, [B, 4] bool."""
        return torch.stack([mask.any(1) for mask in self.edits.values()], 1)

    def sample(self, owner: Tensor, kind: Tensor, generator: torch.Generator) -> Tensor:
        """Return a uniformly random edit of one kind [K] for each of the states `owner` [K]."""
        position = torch.zeros_like(owner)
        for move, mask in self.edits.items():
            rows = (kind == int(move)).nonzero().squeeze(1)
            noise = torch.rand(len(rows), mask.shape[1], generator=generator).masked_fill_(~mask[owner[rows]], NONE)
            position[rows] = noise.argmax(1) if len(rows) else rows
        return position

    def all_of(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the kind and the position of every edit of one state, [K] each."""
        positions = [mask[index].nonzero().squeeze(1) for mask in self.edits.values()]
        kinds = [torch.full_like(each, int(move)) for move, each in zip(self.edits, positions, strict=True)]
        return torch.cat(kinds), torch.cat(positions)

    def results(
        self, owner: Tensor, kind: Tensor, position: Tensor, generator: torch.Generator
    ) -> tuple[GraphStates, Tensor]:
        """Return the terminal states [K] after an edit of the states `owner` [K], and the number of repairs [K]."""
        original = self.plan[owner]
        before = original.kind, original.source, original.target, original.column
        kind_of, source, target, column = (pad(part, (0, _NUM_EDITS), value=NONE) for part in before)
        plan = Construction(kind_of, source, target, column, original.position)
        for move, edit in _EDITS.items():
            rows = (kind == int(move)).nonzero().squeeze(1)
            if len(rows):
                edit(self, plan, rows, position[rows])
        after, num_steps = (plan.kind, plan.source, plan.target, plan.column), original.kind.shape[1]
        parts = zip(before, after, strict=True)
        differs = functools.reduce(torch.logical_or, [old != new[:, :num_steps] for old, new in parts])
        num_legal = pad(differs, (0, 1), value=True).view(torch.uint8).argmax(1)  # the steps before the edit
        return built(self.env, plan, generator, num_legal=num_legal)


def _changes(env: Environment) -> Tensor:
    """Return the columns that may replace a column of each kind of action, [kinds + 1, C + 1, C + 1] bool.

    The last column stands for no action, the last kind for no step. In the last row of AddNode are all types of nodes
    that are added.
    """
    vocabulary = env.vocabulary
    size = max(vocabulary.num_columns(kind) for kind in FORWARD_TYPES) + 1
    changes = torch.zeros(len(FORWARD_TYPES) + 1, size, size, dtype=torch.bool)
    if Kind.AddNode in env.forward_types:
        num = vocabulary.num_columns(Kind.AddNode)
        is_added = torch.ones(num, dtype=torch.bool)
        initial = env.initial_states(1)
        is_added[initial.node_type[initial.exists].long()] = False
        changes[int(Kind.AddNode), :num, :num] = is_added & ~torch.eye(num, dtype=torch.bool)
        changes[int(Kind.AddNode), -1, :num] = is_added
    num = vocabulary.num_columns(Kind.AddEdge)
    changes[int(Kind.AddEdge), :num, :num] = ~torch.eye(num, dtype=torch.bool)
    settings = (
        (Kind.SetNodeAttr, vocabulary.node_columns, vocabulary.node_attributes),
        (Kind.SetEdgeAttr, vocabulary.edge_columns, vocabulary.edge_attributes),
    )
    for kind, columns, attributes in settings:
        attribute, num = torch.tensor([each for each, _ in columns], dtype=torch.int64), len(columns)
        # Values of a counted attribute follow one another: one can be left out, not replaced.
        is_counted = torch.tensor([attributes[each].counted for each, _ in columns], dtype=torch.bool)
        alike = (attribute[:, None] == attribute) & ~torch.eye(num, dtype=torch.bool)
        changes[int(kind), :num, :num] = alike & ~is_counted
        changes[int(kind), :num, -1] = True
    return changes


def _relabel(moves: Moves, plan: Construction, rows: Tensor, position: Tensor) -> None:
    num_columns = moves.edits[Move.RELABEL].shape[1] // max(moves.plan.kind.shape[1], 1)
    step, column = position // num_columns, position % num_columns
    plan.column[rows, step] = column
    plan.kind[rows, step] = plan.kind[rows, step].masked_fill(column == num_columns - 1, NONE)


def _rewire(moves: Moves, plan: Construction, rows: Tensor, position: Tensor) -> None:
    num_nodes = plan.position.shape[1] - 1
    step, end, node = position // (2 * num_nodes), position // num_nodes % 2, position % num_nodes
    source, target = plan.source[rows, step], plan.target[rows, step]
    new_source, new_target = torch.where(end == 0, node, source), torch.where(end == 1, node, target)
    # Attributes of the edge move with it.
    moves_too = (plan.source[rows] == source[:, None]) & (plan.target[rows] == target[:, None])
    plan.source[rows] = torch.where(moves_too, new_source[:, None], plan.source[rows])
    plan.target[rows] = torch.where(moves_too, new_target[:, None], plan.target[rows])


def _insert(moves: Moves, plan: Construction, rows: Tensor, position: Tensor) -> None:
    num_steps, new = moves.plan.kind.shape[1], plan.position.shape[1] - 1
    num_types = moves.edits[Move.RELABEL].shape[1] // max(num_steps, 1) - 1
    num_inside = num_steps * num_types
    inside = position < num_inside
    rows, after_rows, after = rows[inside], rows[~inside], moves.after.layout.at(position[~inside] - num_inside)
    step, column = position[inside] // num_types, position[inside] % num_types
    last = plan.kind.shape[1] - 1
    # A node in an edge is added at its source; the edge starts from the new node.
    plan.kind[rows, last], plan.column[rows, last] = int(Kind.AddNode), column
    plan.source[rows, last], plan.target[rows, last] = plan.source[rows, step], new
    plan.source[rows, step] = new
    on_pair = torch.isin(after.kind, torch.tensor([int(Kind.AddEdge), int(Kind.SetEdgeAttr)]))
    adds = after.kind == int(Kind.AddNode)
    plan.kind[after_rows, last], plan.column[after_rows, last] = after.kind, after.column
    plan.source[after_rows, last] = torch.where(on_pair, after.row // new, after.row)
    plan.target[after_rows, last] = torch.where(adds, new, torch.where(on_pair, after.row % new, NONE))


def _remove(moves: Moves, plan: Construction, rows: Tensor, position: Tensor) -> None:
    on_node = plan.kind[rows, position] == int(Kind.AddNode)
    parent, node = plan.source[rows, position, None], plan.target[rows, position, None]
    plan.kind[rows, position] = NONE
    rows, parent, node = rows[on_node], parent[on_node], node[on_node]
    kind, source, target = plan.kind[rows], plan.source[rows], plan.target[rows]
    # Out-edges start from the node's first source; in-edges lead to the target of its first out-edge.
    follows = (source == node) & ((kind == int(Kind.AddNode)) | (kind == int(Kind.AddEdge)))
    successor = target.gather(1, follows.int().argmax(1, keepdim=True))
    successor = successor.where(follows.any(1, keepdim=True), NONE)
    leads = (target == node) & (kind == int(Kind.AddEdge)) & (successor != NONE)
    plan.source[rows] = new_source = torch.where(follows, parent, source)
    plan.target[rows] = new_target = torch.where(leads, successor, target)
    is_lost = (new_source == node) | (new_target == node) | ((follows | leads) & (new_source == new_target))
    plan.kind[rows] = kind.masked_fill(is_lost, NONE)


_EDITS = {Move.RELABEL: _relabel, Move.REWIRE: _rewire, Move.INSERT: _insert, Move.REMOVE: _remove}
