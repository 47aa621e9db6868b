"""Actions on graphs: one action, a batch of actions, and masks of the legal ones.

Letters of this package: B graphs, N maximum number of nodes, R rows and C columns of an action type.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

INVALID = -1  # type, row and column of an action that cannot be sampled


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
BACKWARD_TYPES = (  # each undoes a forward type, in the same order, Stop left out
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
class ActionLayout:
    """Positions [A] of all actions in flat masks: type after type, row after row."""

    shapes: tuple[tuple[int, int, int], ...]  # type, R and C

    @cached_property
    def slices(self) -> Mapping[int, slice]:
        """Return the positions of each type."""
        ends = accumulate(rows * columns for _, rows, columns in self.shapes)
        return {
            kind: slice(end - rows * columns, end) for (kind, rows, columns), end in zip(self.shapes, ends, strict=True)
        }

    def extents(self, kind: Tensor) -> Tensor:
        """Return the first position, R and C of some types, [3, ...] int64; all 0 for a type without actions here."""
        return _extents(self.shapes, kind.device)[:, kind]

    def find(self, actions: ActionBatch) -> Tensor:
        """Return the position of each action, negative if there is no such action."""
        offset, rows, columns = self.extents(actions.kind)
        inside = (actions.row >= 0) & (actions.row < rows) & (actions.column >= 0) & (actions.column < columns)
        return torch.where(inside, offset + actions.row * columns + actions.column, -1)

    def entries(self, device: torch.device) -> Tensor:
        """Return (type, row, column) of every position, then of INVALID, [A + 1, 3] int64."""
        return _entries(self.shapes, device)

    def at(self, position: Tensor) -> ActionBatch:
        """Return the actions at positions [B]."""
        return ActionBatch(*self.entries(position.device)[position].unbind(1))


@lru_cache(maxsize=256)
def _extents(shapes: tuple[tuple[int, int, int], ...], device: torch.device) -> Tensor:
    """Return the first position, R and C of every type, [3, types + 1]; a last column of zeros for no type."""
    with torch.inference_mode(False):
        extents = torch.zeros(3, len(GraphActionType) + 1, dtype=torch.int64, device="cpu")
        offset = 0
        for kind, rows, columns in shapes:
            extents[:, kind] = torch.tensor([offset, rows, columns], device="cpu")
            offset += rows * columns
        return extents.to(device)


@lru_cache(maxsize=256)
def _entries(shapes: tuple[tuple[int, int, int], ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        entries = [(kind, *divmod(i, columns)) for kind, rows, columns in shapes for i in range(rows * columns)]
        return torch.tensor([*entries, (INVALID,) * 3], dtype=torch.int64, device=device)


@dataclass(frozen=True)
class ActionMasks:
    """The legal actions: for every type a boolean tensor over its rows and columns."""

    masks: Mapping[GraphActionType, Tensor]  # each [B, R, C] bool

    def __getitem__(self, index: Tensor) -> ActionMasks:
        """Return the masks of the graphs at an index."""
        return ActionMasks({kind: mask[index] for kind, mask in self.masks.items()})

    @cached_property
    def layout(self) -> ActionLayout:
        """Return the positions of the actions in `flat`."""
        return ActionLayout(tuple((int(kind), mask.shape[1], mask.shape[2]) for kind, mask in self.masks.items()))

    @cached_property
    def flat(self) -> Tensor:
        """Return the masks of all types side by side, [B, A] bool."""
        parts = [mask.flatten(1) for mask in self.masks.values()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def without_stop(self) -> ActionMasks:
        """Return the masks of the other types than Stop."""
        return ActionMasks({kind: mask for kind, mask in self.masks.items() if kind != GraphActionType.Stop})

    def num_actions(self) -> Tensor:
        """Return the number of legal actions of each graph, [B] int64."""
        return self.flat.sum(1)

    def contains(self, actions: ActionBatch) -> Tensor:
        """Return which actions are legal, bool; types without a mask are illegal.

        Args:
            actions: one action per graph, [B], or several, [B, T].
        """
        position = self.layout.find(actions)
        index = position.clamp(min=0)
        legal = self.flat.gather(1, index if index.dim() == 2 else index[:, None]).view_as(position)
        return legal & (position >= 0)

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
        has_action = self.flat.any(1)
        if not bool(has_action.all()):
            raise ValueError(f"graph {int(has_action.int().argmin())}: expected at least one legal action, got none")
        noise = torch.rand(self.flat.shape, generator=generator).masked_fill_(~self.flat, -1.0)
        return self.layout.at(noise.argmax(1))
