"""Actions on graphs: one action, a batch of actions, and masks of the legal ones.

Letters of this package: B graphs, N maximum number of nodes, R rows and C columns of an action type.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor


class GraphActionType(IntEnum):
    """The kinds of action. The `Remove...` kinds undo the others, `Stop` undoes itself."""

    Stop = 0
    AddNode = 1
    AddEdge = 2
    SetNodeAttr = 3
    SetEdgeAttr = 4
    RemoveNode = 5
    RemoveEdge = 6
    RemoveNodeAttr = 7
    RemoveEdgeAttr = 8

    @property
    def field_name(self) -> str:
        """Return the prefix of this type's tensors in a batch: `add_node`, `set_edge_attr`, ..."""
        return _FIELD_NAMES[self]


_FIELD_NAMES = {
    kind: "".join("_" + c.lower() if c.isupper() else c for c in kind.name).lstrip("_") for kind in GraphActionType
}
FORWARD_TYPES = (
    GraphActionType.Stop,
    GraphActionType.AddNode,
    GraphActionType.AddEdge,
    GraphActionType.SetNodeAttr,
    GraphActionType.SetEdgeAttr,
)
BACKWARD_TYPES = (
    GraphActionType.RemoveNode,
    GraphActionType.RemoveEdge,
    GraphActionType.RemoveNodeAttr,
    GraphActionType.RemoveEdgeAttr,
)
# Actions on pairs of nodes, actions on attributes, and actions that set the value of an attribute.
PAIR_TYPES = frozenset(kind for kind in GraphActionType if "Edge" in kind.name)
ATTRIBUTE_TYPES = frozenset(kind for kind in GraphActionType if "Attr" in kind.name)
SETTING_TYPES = frozenset(kind for kind in GraphActionType if "Set" in kind.name)


@dataclass(frozen=True)
class GraphAction:
    """One action in names: a node (`source`) or a pair of nodes, an attribute, a value."""

    action_type: GraphActionType
    source: int | None = None
    target: int | None = None
    attribute: str | None = None
    value: Hashable = None

    def __str__(self) -> str:
        """Return e.g. `AddEdge(source=0, target=3)`."""
        names = ("source", "target", "attribute", "value")
        fields = ((name, getattr(self, name)) for name in names)
        return f"{self.action_type.name}({', '.join(f'{k}={v!r}' for k, v in fields if v is not None)})"


@dataclass(frozen=True)
class ActionBatch:
    """One action per graph by position: `row` is a node, or source * N + target for actions on pairs."""

    kind: Tensor  # [B] int64, a GraphActionType
    row: Tensor  # [B] int64
    column: Tensor  # [B] int64
    # Number of actions of each kind, read ahead from a device.
    counts: Mapping[int, int] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        """Return the number of actions."""
        return self.kind.shape[0]

    def __getitem__(self, index: Tensor | slice) -> ActionBatch:
        """Return the actions at an index, a slice or a boolean mask."""
        return ActionBatch(self.kind[index], self.row[index], self.column[index])

    def kinds(self) -> set[int]:
        """Return the kinds of the actions; waits for a device, unless the counts are known."""
        return set(self.kind.tolist() if self.counts is None else self.counts)

    def of_kind(self, kind: GraphActionType) -> Tensor:
        """Return the graphs with an action of a kind, ascending."""
        return _positions(self.kind == int(kind), None if self.counts is None else self.counts[kind])

    def unfinished(self) -> tuple[Tensor, ActionBatch]:
        """Return the graphs with other actions than Stop, ascending, and these actions."""
        stop = GraphActionType.Stop
        others = None if self.counts is None else {kind: num for kind, num in self.counts.items() if kind != stop}
        graphs = _positions(self.kind != int(stop), None if others is None else sum(others.values()))
        if len(graphs) == len(self):
            return graphs, self
        return graphs, ActionBatch(self.kind[graphs], self.row[graphs], self.column[graphs], counts=others)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return kind, row and column."""
        return self.kind, self.row, self.column

    def renamed(self, names: Tensor, *, directed: bool) -> ActionBatch:
        """Return the same actions on graphs with permuted nodes.

        Args:
            names: [B, N] int64, the new position of each node.
            directed: whether pairs are ordered; undirected ones are stored from the smaller to the larger node.
        """
        n, graphs = names.shape[1], torch.arange(len(self))
        on_pair = torch.isin(self.kind, torch.tensor(sorted(PAIR_TYPES)))
        source = names[graphs, torch.where(on_pair, self.row // n, self.row)]
        target = names[graphs, self.row % n]
        if not directed:
            swapped = on_pair & (target < source)
            source, target = torch.where(swapped, target, source), torch.where(swapped, source, target)
        row = torch.where(on_pair, source * n + target, source)
        row = torch.where(self.kind == int(GraphActionType.Stop), self.row, row)
        return ActionBatch(self.kind, row, self.column)

    @staticmethod
    def cat(batches: Sequence[ActionBatch]) -> ActionBatch:
        """Return the concatenated batches."""
        return ActionBatch(*map(torch.cat, zip(*(batch.parts for batch in batches), strict=True)))


def _positions(mask: Tensor, num: int | None) -> Tensor:
    """Return where a mask [B] holds; a known number of places spares waiting for a device."""
    return (mask.nonzero() if num is None else torch.nonzero_static(mask, size=num)).squeeze(1)


@dataclass(frozen=True)
class ActionMasks:
    """The legal actions: for every type a boolean tensor over its rows and columns."""

    masks: Mapping[GraphActionType, Tensor]  # each [B, R, C] bool

    def __getitem__(self, index: Tensor) -> ActionMasks:
        """Return the masks of the graphs at an index."""
        return ActionMasks({kind: mask[index] for kind, mask in self.masks.items()})

    def num_actions(self) -> Tensor:
        """Return the number of legal actions of each graph, [B] int64."""
        return functools.reduce(torch.add, [mask.flatten(1).sum(1) for mask in self.masks.values()])

    def contains(self, actions: ActionBatch) -> Tensor:
        """Return which actions are legal, bool; types without a mask are illegal.

        Args:
            actions: one action per graph, [B], or several, [B, T].
        """
        legal = torch.zeros_like(actions.kind, dtype=torch.bool)
        for kind, mask in self.masks.items():
            inside = (actions.kind == kind) & (actions.row >= 0) & (actions.row < mask.shape[1])
            inside &= (actions.column >= 0) & (actions.column < mask.shape[2])
            index = inside.nonzero(as_tuple=True)
            legal[index] = mask[index[0], actions.row[index], actions.column[index]]
        return legal

    def positions(self) -> tuple[Tensor, ActionBatch]:
        """Return the graph [M] of every legal action, and the actions: by type, graphs ascending in each type."""
        graphs, parts = [], []
        for kind, mask in self.masks.items():
            graph, row, column = mask.nonzero(as_tuple=True)
            graphs.append(graph)
            parts.append(ActionBatch(torch.full_like(graph, int(kind)), row, column))
        return torch.cat(graphs), ActionBatch.cat(parts)

    def sample_uniform(self, generator: torch.Generator) -> ActionBatch:
        """Return one legal action per graph, uniformly at random.

        Raises:
            ValueError: a graph has no legal action; the message names it.
        """
        flat = torch.cat([mask.flatten(1) for mask in self.masks.values()], 1)
        stuck = (~flat.any(1)).nonzero().squeeze(1)
        if len(stuck):
            raise ValueError(f"graph {int(stuck[0])}: expected at least one legal action, got none")
        noise = torch.rand(flat.shape, generator=generator).masked_fill_(~flat, -1.0)
        return self.at(noise.argmax(1))

    def at(self, position: Tensor) -> ActionBatch:
        """Return the actions at positions [B] of the concatenated flat masks, legal or not."""
        kind, row, column = (torch.zeros_like(position) for _ in range(3))
        offset = 0
        for action_type, mask in self.masks.items():
            size = mask.shape[1] * mask.shape[2]
            inside = (position >= offset) & (position < offset + size)
            local = position - offset
            kind = torch.where(inside, int(action_type), kind)
            row = torch.where(inside, local.div(max(mask.shape[2], 1), rounding_mode="floor"), row)
            column = torch.where(inside, local % max(mask.shape[2], 1), column)
            offset += size
        return ActionBatch(kind, row, column)
