"""Cells with places as graphs of their operations.

Letters: B cells, S places; nodes 0 .. S - 1 are the operations, S is the input, S + 1 the output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.envs.cell_networks import Cell, ends_of
from gflownet.mdp.labelled_graphs import NO_EDGE, LabelledGraphs
from gflownet.mdp.states import UNSET

_EDGE = 1


class CellGraphs:
    """The operations of cells as nodes, joined where one reads the result of the other.

    Operations without effect are left out: zeros, and those on no path of operations from the input to the output.
    """

    def __init__(self, cell: Cell) -> None:
        """Precompute which places follow one another in a cell with `has_graph`."""
        if "<-" in cell.places[0]:
            ends = [ends_of(place) for place in cell.places]
        else:
            ends = [(index + 1, index) for index in range(len(cell.places))]
        self._targets, self._sources = ([end[side] for end in ends] for side in (0, 1))
        self._last = max(self._targets)
        self._values = len(cell.operations)
        self._is_zero = torch.tensor([name in cell.zeros for name in cell.operations])
        starts, stops = torch.tensor([*self._sources, -1, self._last]), torch.tensor([*self._targets, 0, -1])
        self._follows = (stops[:, None] == starts[None]) & (stops[:, None] >= 0)  # [S + 2, S + 2]
        self._follows[-2, -1] = False  # not from input to output without an operation

    def __call__(self, operations: Tensor) -> LabelledGraphs:
        """Return the graphs of cells with the positions of their operations, [B, S] int64; UNSET: empty."""
        active = (operations != UNSET) & ~self._is_zero[operations.clamp(min=0)]
        active = active & self._reached(active, self._sources, self._targets, start=0)
        active = active & self._reached(active, self._targets, self._sources, start=self._last)
        ends = torch.tensor([self._values, self._values + 1]).expand(len(operations), 2)
        labels = torch.cat([operations.masked_fill(~active, UNSET), ends], 1)
        exists = labels != UNSET
        joined = self._follows & exists[:, :, None] & exists[:, None, :]
        return LabelledGraphs(labels[:, :, None], torch.where(joined, _EDGE, NO_EDGE), operations)

    def _reached(self, active: Tensor, tails: list[int], heads: list[int], *, start: int) -> Tensor:
        """Return which places have their tail on a path of active places from `start`, [B, S] bool."""
        reached = torch.zeros(len(active), self._last + 1, dtype=torch.bool)
        reached[:, start] = True
        # Every node is complete before it is read: places sorted by their tail, in the direction of the paths.
        for place in sorted(range(len(tails)), key=tails.__getitem__, reverse=start > 0):
            reached[:, heads[place]] |= reached[:, tails[place]] & active[:, place]
        return reached[:, tails]


def has_graph(cell: Cell) -> bool:
    """Return whether the places of a cell are edges or layers, so that its operations form a graph."""
    return all("<-" in place for place in cell.places) or cell.places == tuple(
        f"layer{index}" for index in range(len(cell.places))
    )
