"""Directed graphs with labelled nodes and edges: the input of graph features.

Letters: B graphs, N maximum number of nodes, P parts of a label, S named places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.mdp.states import UNSET, GraphStates

NO_EDGE = 0  # code of a missing edge
# Odd factor by which type, attributes and rank of an edge are combined to one code; products wrap around.
_FACTOR = 0x9E3779B1


@dataclass(frozen=True)
class LabelledGraphs:
    """B graphs. The order of the nodes has no meaning; a place is identified by its position."""

    labels: Tensor  # [B, N, P] int64, part 0 is the type of the node; UNSET: no node, or no value
    edges: Tensor  # [B, N, N] int64, code of the edge s -> t; NO_EDGE: none
    places: Tensor  # [B, S] int64, values of named places that the graph does not show; UNSET: empty

    def __len__(self) -> int:
        """Return the number of graphs."""
        return self.labels.shape[0]

    @property
    def exists(self) -> Tensor:
        """Return which nodes exist, [B, N] bool."""
        return self.labels[:, :, 0] != UNSET


def labelled_graphs(states: GraphStates) -> LabelledGraphs:
    """Return states with types and attributes as labels; edge codes include attributes and ranks."""
    labels = torch.cat([states.node_type[:, :, None], states.node_attr], 2).long()
    code = states.edge_type.long() + 1
    for part in (*states.edge_attr.unbind(-1), states.edge_order):
        code = code * _FACTOR + part.long() + 1
    edges = code.masked_fill(~states.has_edge, NO_EDGE)
    return LabelledGraphs(labels, edges, torch.empty(len(states), 0, dtype=torch.int64))
