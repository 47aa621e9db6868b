"""Whole numbers that say what a node is and how two nodes are joined, for tables of learned vectors.

Letters: B graphs, n nodes, F facets; each facet has codes of its own in one table, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch

_MOST_PATHS = 2  # more paths of length two than these look alike


class NodeCodes:
    """A node's type, its attributes, and how many edges of each type lead to it and away from it."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.num_edge_types, self.directed = len(vocabulary.edge_types), vocabulary.directed
        self.has_attributes = bool(vocabulary.node_attributes)
        sizes = [len(vocabulary.node_types) + 1, *(len(a.values) + 1 for a in vocabulary.node_attributes)]
        sizes += [vocabulary.max_nodes + 1] * (self.num_edge_types * (2 if self.directed else 1))
        self.num_codes = sum(sizes)
        # Types, values and their absence count from -1.
        first = [-1] * (1 + len(vocabulary.node_attributes))
        self._starts = _starts(sizes, first=[*first, *[0] * (len(sizes) - len(first))])

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of every node, [B, n, F] int64."""
        edge_type = batch["edge_type"]
        parts = [batch["node_type"][..., None], *([batch["node_attr"]] if self.has_attributes else [])]
        for kind in range(self.num_edge_types):
            edge = edge_type == kind
            degrees = [edge.sum(1), edge.sum(2)] if self.directed else [edge.sum(1)]
            parts += [degree[..., None] for degree in degrees]
        return torch.cat(parts, -1) + self._starts.to(edge_type.device)


class PairCodes:
    """The edges between two nodes, who reaches whom, paths of length two, and the edges' attributes and ranks."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.directed, self.num_kinds = vocabulary.directed, len(vocabulary.edge_types) + 1
        self.has_attributes, self.has_ranks = bool(vocabulary.edge_attributes), vocabulary.ranked
        ways = 2 if self.directed else 1
        paths = (_MOST_PATHS + 1) ** (3 if self.directed else 1)
        self.num_joints = (2 * self.num_kinds) ** ways * paths
        sizes = [self.num_joints]
        sizes += [len(a.values) + 1 for a in vocabulary.edge_attributes] * ways if self.has_attributes else []
        sizes += [vocabulary.max_nodes] * ways if self.has_ranks else []
        self.num_codes = sum(sizes)
        num_values = len(vocabulary.edge_attributes) * ways
        first = [0, *[-1] * num_values, *[0] * (len(sizes) - 1 - num_values)]
        self._starts = _starts(sizes, first=first)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of every pair, [B, n, n, F] int64."""
        parts = [self._joints(batch)[..., None]]
        for given, name in ((self.has_attributes, "edge_attr"), (self.has_ranks, "edge_order")):
            if given:
                value = batch[name] if name == "edge_attr" else batch[name][..., None]
                parts += [value, value.transpose(1, 2)] if self.directed else [value]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) + self._starts.to(parts[0].device)

    def _joints(self, batch: Batch) -> Tensor:
        """Return one code for edges, reachability and paths of length two together, [B, n, n] int64."""
        edge_type, reach = batch["edge_type"], batch["reach"]
        edge = (edge_type >= 0).float()
        kind = (edge_type + 1) + self.num_kinds * reach.to(torch.int16)  # up to twice as many as fit into int8
        if not self.directed:
            return kind + 2 * self.num_kinds * (edge @ edge).clamp_(max=_MOST_PATHS).long()
        n = edge.shape[-1]
        both = torch.cat([edge, edge.transpose(1, 2)], 1)
        # Blocks: along (A A), to common successors (A A'), from common predecessors (A' A).
        paths = (both @ both.transpose(1, 2)).clamp_(max=_MOST_PATHS)
        code = paths[:, :n, n:] + 3 * paths[:, :n, :n] + 9 * paths[:, n:, n:]
        size = 2 * self.num_kinds
        return (kind + size * kind.transpose(1, 2).long()) + size * size * code.long()


def _starts(sizes: Sequence[int], *, first: Sequence[int]) -> Tensor:
    """Return what to add to each facet so that its smallest value gets the first code of its part of the table."""
    return torch.tensor([sum(sizes[:i]) - low for i, low in enumerate(first)])
