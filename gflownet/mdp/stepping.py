"""Effects of actions on a batch of graphs: one in-place edit per action type, and the inverse of each action."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gflownet.mdp.action import BACKWARD_TYPES, FORWARD_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.states import (
    ABSENT,
    MAIN_EDGE,
    UNSET,
    GraphStates,
    GraphVocabulary,
    count_bridges,
    transitive_closure,
)


@dataclass(frozen=True)
class _Edit:
    """G actions of one type on states that are edited in place."""

    states: GraphStates  # B graphs
    graphs: Tensor  # [G] int64, the edited graphs
    row: Tensor  # [G] int64
    column: Tensor  # [G] int64
    ordered: Tensor  # [B, N] bool, nodes that rank their in-edges


class GraphEditor:
    """Applies legal actions to states, without any rules."""

    def __init__(self, vocabulary: GraphVocabulary) -> None:
        self.vocabulary = vocabulary
        self._counted = torch.tensor([a.counted for a in vocabulary.node_attributes], dtype=torch.bool)
        # [C, 2] attribute and value of the columns that set one
        self.node_columns = torch.tensor(vocabulary.node_columns, dtype=torch.int64).reshape(-1, 2)
        self.edge_columns = torch.tensor(vocabulary.edge_columns, dtype=torch.int64).reshape(-1, 2)
        self._node_offsets = _offsets([len(a.values) for a in vocabulary.node_attributes])
        self._edge_offsets = _offsets([len(a.values) for a in vocabulary.edge_attributes])
        self._edits = {
            GraphActionType.AddNode: self._add_node,
            GraphActionType.AddEdge: self._add_edge,
            GraphActionType.SetNodeAttr: self._set_node_attr,
            GraphActionType.SetEdgeAttr: self._set_edge_attr,
            GraphActionType.RemoveNode: self._remove_node,
            GraphActionType.RemoveEdge: self._remove_edge,
            GraphActionType.RemoveNodeAttr: self._remove_node_attr,
            GraphActionType.RemoveEdgeAttr: self._remove_edge_attr,
        }

    def apply(self, states: GraphStates, actions: ActionBatch, ordered: Tensor) -> GraphStates:
        """Return the states after one action each; `ordered` [B, N] marks nodes that rank their in-edges."""
        kinds = actions.kinds()
        edited = {name for kind in kinds for name in _EDITED[GraphActionType(kind)]}
        after = replace(states, **{name: getattr(states, name).clone() for name in edited})
        for kind in sorted(self._edits.keys() & kinds):
            if len(kinds) == 1:
                graphs = torch.arange(len(actions), device=actions.row.device)
                edit = _Edit(after, graphs, actions.row, actions.column, ordered)
            else:
                graphs = actions.of_kind(kind)
                edit = _Edit(after, graphs, actions.row[graphs], actions.column[graphs], ordered)
            self._edits[kind](edit)
        return after

    def undo(self, states: GraphStates, actions: ActionBatch) -> ActionBatch:
        """Return the actions from `apply(states, actions)` back to `states` (up to the order of nodes)."""
        kind, row, column = actions.kind.clone(), actions.row.clone(), torch.zeros_like(actions.column)
        for action_type in sorted(_INVERSE.keys() & actions.kinds()):
            graphs = actions.of_kind(action_type)
            kind[graphs] = int(_INVERSE[action_type])
            r, c = actions.row[graphs], actions.column[graphs]
            s, t = self._ends(r)
            if action_type == GraphActionType.AddNode:
                row[graphs] = states.num_nodes[graphs]
            elif action_type == GraphActionType.SetNodeAttr:
                column[graphs] = self.node_columns[c, 0]
            elif action_type == GraphActionType.SetEdgeAttr:
                column[graphs] = self.edge_columns[c, 0]
            elif action_type == GraphActionType.RemoveNode:
                column[graphs] = states.node_type[graphs, r].long()
                parent = (states.edge_type[graphs, :, r] == MAIN_EDGE).int().argmax(1)
                row[graphs] = parent - (parent > r).long()
            elif action_type == GraphActionType.RemoveEdge:
                column[graphs] = states.edge_type[graphs, s, t].long()
            elif action_type == GraphActionType.RemoveNodeAttr:
                column[graphs] = self._node_offsets[c] + states.node_attr[graphs, r, c].long()
            elif action_type == GraphActionType.RemoveEdgeAttr:
                column[graphs] = self._edge_offsets[c] + states.edge_attr[graphs, s, t, c].long()
        return ActionBatch(kind, row, column)

    def _ends(self, row: Tensor) -> tuple[Tensor, Tensor]:
        return row // self.vocabulary.max_nodes, row % self.vocabulary.max_nodes

    def _add_node(self, edit: _Edit) -> None:
        states, graphs, row = edit.states, edit.graphs, edit.row
        new = states.num_nodes[graphs]
        states.node_type[graphs, new] = edit.column.to(torch.int8)
        states.num_nodes[graphs] = new + 1
        # The first node of an empty graph has no neighbour: its position is 0, as its row.
        edge = torch.where(new > 0, MAIN_EDGE, ABSENT).to(torch.int8)
        states.edge_type[graphs, row, new] = edge
        if self.vocabulary.directed:
            states.reach[graphs, :, new] |= states.reach[graphs, :, row]
            return
        states.edge_type[graphs, new, row] = edge
        present = torch.arange(self.vocabulary.max_nodes, device=new.device) < new[:, None]
        distance = (states.num_bridges[graphs, row] + 1) * present
        states.num_bridges[graphs, new] = distance
        states.num_bridges[graphs, :, new] = distance

    def _add_edge(self, edit: _Edit) -> None:
        states, graphs, column = edit.states, edit.graphs, edit.column
        source, target = self._ends(edit.row)
        if self.vocabulary.ranked:
            rank = (states.edge_type[graphs, :, target] != ABSENT).sum(1) * edit.ordered[graphs, target]
            states.edge_order[graphs, source, target] = rank.to(torch.int8)
        states.edge_type[graphs, source, target] = column.to(torch.int8)
        if not self.vocabulary.directed:
            states.edge_type[graphs, target, source] = column.to(torch.int8)
            self._close_cycle(states.num_bridges, graphs, source, target)
            return
        before = states.reach[graphs, :, source]  # [G, N] nodes that reach the source
        if len(self.vocabulary.edge_types) > 1:
            before &= (column == MAIN_EDGE)[:, None]
        after = states.reach[graphs, target]  # [G, N] nodes reachable from the target
        states.reach[graphs] |= before[:, :, None] & after[:, None, :]

    @staticmethod
    def _close_cycle(num_bridges: Tensor, graphs: Tensor, source: Tensor, target: Tensor) -> None:
        """Join source and target: the edges between them are bridges no more.

        The bridges between nodes are a tree metric. The path contracts to a point, at a distance of half of
        d(node, source) + d(node, target) - d(source, target) bridges from a node.
        """
        joined = num_bridges[graphs].to(torch.int16)  # sums may pass 127
        index = torch.arange(len(graphs), device=graphs.device)
        from_source, from_target = joined[index, source], joined[index, target]
        off = (from_source + from_target - from_source.gather(1, target[:, None])).clamp(min=0) // 2  # [G, N]
        num_bridges[graphs] = torch.minimum(joined, off[:, :, None] + off[:, None, :]).to(torch.int8)

    def _set_node_attr(self, edit: _Edit) -> None:
        attribute, value = self.node_columns[edit.column].unbind(1)
        edit.states.node_attr[edit.graphs, edit.row, attribute] = value.to(torch.int8)

    def _set_edge_attr(self, edit: _Edit) -> None:
        attribute, value = self.edge_columns[edit.column].unbind(1)
        self._write_edge_attr(edit, attribute, value.to(torch.int8))

    def _write_edge_attr(self, edit: _Edit, attribute: Tensor, value: Tensor) -> None:
        source, target = self._ends(edit.row)
        edit.states.edge_attr[edit.graphs, source, target, attribute] = value
        if not self.vocabulary.directed:
            edit.states.edge_attr[edit.graphs, target, source, attribute] = value

    def _remove_node(self, edit: _Edit) -> None:
        states, graphs, row, n = edit.states, edit.graphs, edit.row, self.vocabulary.max_nodes
        position = torch.arange(n, device=row.device).expand(len(graphs), n)
        # Later nodes move down by one; the cleared position of the removed node moves to the end.
        source = torch.where(position >= row[:, None], (position + 1).clamp(max=n - 1), position)
        source[:, -1] = row
        g = graphs[:, None]
        states.node_type[graphs, row] = ABSENT
        states.node_attr[graphs, row] = UNSET
        pairs = [(states.edge_type, ABSENT), (states.edge_attr, UNSET), (states.edge_order, 0), (states.reach, False)]
        if not self.vocabulary.directed:
            pairs.append((states.num_bridges, 0))
        for tensor, blank in pairs:
            if not tensor.numel():
                continue
            tensor[graphs, row] = blank
            tensor[graphs, :, row] = blank
            tensor[graphs] = tensor[g[:, :, None], source[:, :, None], source[:, None, :]]
        states.reach[graphs, n - 1, n - 1] = True  # absent nodes reach themselves
        states.node_type[graphs] = states.node_type[g, source]
        states.node_attr[graphs] = states.node_attr[g, source]
        states.num_nodes[graphs] -= 1

    def _remove_edge(self, edit: _Edit) -> None:
        states, graphs = edit.states, edit.graphs
        source, target = self._ends(edit.row)
        states.edge_type[graphs, source, target] = ABSENT
        states.edge_order[graphs, source, target] = 0
        if not self.vocabulary.directed:
            states.edge_type[graphs, target, source] = ABSENT
            states.num_bridges[graphs] = count_bridges(states.edge_type[graphs] != ABSENT)
        else:
            states.reach[graphs] = transitive_closure(states.edge_type[graphs] == MAIN_EDGE)

    def _remove_node_attr(self, edit: _Edit) -> None:
        at = edit.graphs, edit.row, edit.column
        before = torch.where(self._counted[edit.column], edit.states.node_attr[at] - 1, UNSET)
        edit.states.node_attr[at] = before.to(torch.int8)

    def _remove_edge_attr(self, edit: _Edit) -> None:
        self._write_edge_attr(edit, edit.column, torch.full_like(edit.column, UNSET, dtype=torch.int8))


_ON_NODE, _ON_PATHS = ("num_nodes", "node_type", "edge_type"), ("reach", "num_bridges")
_EDITED = {  # arrays that an action changes
    GraphActionType.Stop: (),
    GraphActionType.AddNode: (*_ON_NODE, *_ON_PATHS),
    GraphActionType.AddEdge: ("edge_type", "edge_order", *_ON_PATHS),
    GraphActionType.SetNodeAttr: ("node_attr",),
    GraphActionType.SetEdgeAttr: ("edge_attr",),
    GraphActionType.RemoveNode: (*_ON_NODE, "node_attr", "edge_attr", "edge_order", *_ON_PATHS),
    GraphActionType.RemoveEdge: ("edge_type", "edge_order", *_ON_PATHS),
    GraphActionType.RemoveNodeAttr: ("node_attr",),
    GraphActionType.RemoveEdgeAttr: ("edge_attr",),
}

_PAIRS = tuple(zip(FORWARD_TYPES[1:], BACKWARD_TYPES, strict=True))  # without Stop
_INVERSE = {kind: other for pair in _PAIRS for kind, other in (pair, pair[::-1])}


def _offsets(sizes: list[int]) -> Tensor:
    return torch.tensor([sum(sizes[:i]) for i in range(len(sizes))], dtype=torch.int64)
