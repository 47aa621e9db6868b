"""Integer codes of nodes and of pairs of nodes, indices into embedding tables.

Letters: B graphs, n nodes, F facets, each with its own range of codes in one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch

_MOST_PATHS = 2  # larger counts of paths of length two have the same code


class NodeCodes:
    """Codes of a node: its type, its attributes, and its in- and out-degree per edge type."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.num_edge_types, self.directed = len(vocabulary.edge_types), vocabulary.directed
        self.has_attributes = bool(vocabulary.node_attributes)
        sizes = [len(vocabulary.node_types) + 1, *(len(a.values) + 1 for a in vocabulary.node_attributes)]
        sizes += [vocabulary.max_nodes + 1] * (self.num_edge_types * (2 if self.directed else 1))
        self.num_codes = sum(sizes)
        # Types and values start at -1, "absent".
        first = [-1] * (1 + len(vocabulary.node_attributes))
        self._starts = _starts(sizes, first=[*first, *[0] * (len(sizes) - len(first))])

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of each node, [B, n, F] int64."""
        edge_type = batch["edge_type"]
        parts = [batch["node_type"][..., None], *([batch["node_attr"]] if self.has_attributes else [])]
        for kind in range(self.num_edge_types):
            edge = edge_type == kind
            degrees = [edge.sum(1), edge.sum(2)] if self.directed else [edge.sum(1)]
            parts += [degree[..., None] for degree in degrees]
        return torch.cat(parts, -1) + _on(edge_type.device, self._starts)


class PairCodes:
    """Codes of a pair: edges, reachability, number of paths of length two, attributes and ranks of the edges."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.directed, self.num_kinds = vocabulary.directed, len(vocabulary.edge_types) + 1
        self.has_attributes, self.has_ranks = bool(vocabulary.edge_attributes), vocabulary.ranked
        directions = 2 if self.directed else 1
        paths = (_MOST_PATHS + 1) ** (3 if self.directed else 1)
        self.num_joints = (2 * self.num_kinds) ** directions * paths
        sizes = [self.num_joints]
        sizes += [len(a.values) + 1 for a in vocabulary.edge_attributes] * directions if self.has_attributes else []
        sizes += [vocabulary.max_nodes] * directions if self.has_ranks else []
        self.num_codes = sum(sizes)
        num_values = len(vocabulary.edge_attributes) * directions
        first = [0, *[-1] * num_values, *[0] * (len(sizes) - 1 - num_values)]
        self._starts = _starts(sizes, first=first)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of each pair, [B, n, n, F] int64."""
        parts = [self._joints(batch)[..., None]]
        for is_present, name in ((self.has_attributes, "edge_attr"), (self.has_ranks, "edge_order")):
            if is_present:
                value = batch[name] if name == "edge_attr" else batch[name][..., None]
                parts += [value, value.transpose(1, 2)] if self.directed else [value]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) + _on(parts[0].device, self._starts)

    def _joints(self, batch: Batch) -> Tensor:
        """Return one joint code of edges, reachability and paths of length two, [B, n, n] int64."""
        edge_type, reach = batch["edge_type"], batch["reach"]
        edge = (edge_type >= 0).float()
        kind = (edge_type + 1) + self.num_kinds * reach.to(torch.int16)  # too large for int8
        if not self.directed:
            return kind + 2 * self.num_kinds * (edge @ edge).clamp_(max=_MOST_PATHS).long()
        n = edge.shape[-1]
        both = torch.cat([edge, edge.transpose(1, 2)], 1)
        # Blocks: along (A A), to common successors (A A'), from common predecessors (A' A).
        paths = (both @ both.transpose(1, 2)).clamp_(max=_MOST_PATHS)
        code = paths[:, :n, n:] + 3 * paths[:, :n, :n] + 9 * paths[:, n:, n:]
        size = 2 * self.num_kinds
        return (kind + size * kind.transpose(1, 2).long()) + size * size * code.long()


def _starts(sizes: Sequence[int], *, first: Sequence[int]) -> tuple[int, ...]:
    """Return the offset of each facet that maps its smallest value to the first code of its range."""
    return tuple(sum(sizes[:i]) - low for i, low in enumerate(first))


@lru_cache(maxsize=64)
def _on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)
