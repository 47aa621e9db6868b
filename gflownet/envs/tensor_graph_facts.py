"""Properties of a batch of tensor-program states that the rules use, computed once from types and edges.

Letters: B states, N nodes, C node types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gflownet.envs.tensor_program import BINARY, KEEP, NEW, ORDERED, SUM, TRANSFORM
from gflownet.mdp.states import UNSET, GraphStates


class TensorKinds:
    """Properties of each node type, [C + 1] each; the last entry stands for "no node" (ABSENT = -1)."""

    def __init__(self, types: Sequence[str], inputs: Mapping[str, Sequence[int]], operations: Sequence[str]) -> None:
        def table(condition: Callable[[str], bool]) -> Tensor:
            return torch.tensor([*map(condition, types), False])

        def extent_of(kind: str) -> int:
            return int(kind.partition(":")[2] or 0)

        self.is_operation = table(lambda kind: kind in operations)
        self.is_binary = table(lambda kind: kind in operations and kind in BINARY)
        self.is_transform = table(lambda kind: kind in operations and kind == TRANSFORM)
        self.is_ordered = table(lambda kind: kind in operations and kind == ORDERED)
        self.is_tensor = self.is_operation | table(lambda kind: kind in inputs)
        self.is_kept = table(lambda kind: kind == KEEP)
        self.is_placed = table(lambda kind: kind in (KEEP, SUM))  # indices that axes are placed on
        self.is_new = table(lambda kind: kind.startswith(f"{NEW}:"))
        self.is_axis = self.is_kept | table(lambda kind: extent_of(kind) > 0)
        self.extent = torch.tensor([*map(extent_of, types), 0])  # extents of axes, 0 for other types
        self.arity = self.is_operation.long() + self.is_binary.long()


class TensorGraphFacts:
    """Existing nodes, the open operation, and the nodes that may still change."""

    def __init__(self, kinds: TensorKinds, states: GraphStates) -> None:
        self._types = states.node_type.long()
        self.has_edge = states.has_edge
        self.is_tensor, self.is_axis = self.of(kinds.is_tensor), self.of(kinds.is_axis)  # [B, N]
        self.is_placed = self.of(kinds.is_placed)
        self.is_index = self.is_placed | self.of(kinds.is_new)
        is_operation = self.of(kinds.is_operation)
        self.operand = self.has_edge & self.is_tensor[:, :, None] & is_operation[:, None, :]  # [B, tensor, operation]
        self.owns = self.has_edge & self.is_tensor[:, :, None] & ~is_operation[:, None, :]  # [B, tensor, index]
        self.placed = self.has_edge & self.is_axis[:, :, None]  # [B, axis, index]
        self.num_operands, self.num_axes = self.operand.sum(1), self.placed.sum(1)  # [B, N]
        self.owns_axis = self.owns & self.is_axis[:, None, :]
        self.rank = self.owns_axis.sum(2)  # [B, N] of tensors
        needed = self.operand.mT.float() @ self.owns_axis.float() > 0  # [B, operation, axis]
        unplaced = needed & ~(self.owns.float() @ self.placed.mT.float() > 0)
        self.has_operands = self.num_operands == self.of(kinds.arity)
        self.is_open = is_operation & (~self.has_operands | unplaced.any(2))
        self.has_open = self.is_open.any(1)  # [B]
        self.other_open = self.has_open[:, None] & ~self.is_open  # [B, N]: at most one operation is open
        self.is_pending = (unplaced & (self.is_open & self.has_operands)[:, :, None]).any(1)  # [B, N] axes
        self.is_used = self.operand.any(2)
        self.is_sink = is_operation & ~self.is_used
        self.num_sinks, self.num_operations = self.is_sink.sum(1), is_operation.sum(1)  # [B]
        self.has_function = (states.node_attr != UNSET).any(2)  # [B, N]
        roots = torch.where(self.is_axis, self.of(kinds.extent), 0)
        # An axis only reaches the indices on which it is placed, directly or through results.
        self.extent = (states.reach * roots[:, :, None]).amax(1) * (self.is_axis | self.is_index)

    def of(self, table: Tensor) -> Tensor:
        """Return the entry of a table [C + 1] for each node, [B, N]."""
        return table[self._types]


class IndexFacts(TensorGraphFacts):
    """Additionally: axes that share a tensor with an axis of an index."""

    def __init__(self, kinds: TensorKinds, states: GraphStates) -> None:
        super().__init__(kinds, states)
        of_one_tensor = self.owns_axis.mT.float() @ self.owns_axis.float()  # [B, axis, axis]
        self.shares_tensor = of_one_tensor @ self.placed.float() > 0  # [B, axis, index]
