"""Hard caps on parameters and multiply-adds of cells whose costs add up over places.

Letters: B states, N places, V operations, K numbers of empty places by class, F points of a Pareto front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import torch
from torch import Tensor

from gflownet.envs.cell_networks import SlotCosts
from gflownet.errors import UserError
from gflownet.graphs.operation_costs import OperationCost

Point = tuple[int, int]  # parameters, multiply-adds

MAX_FRONTS = 100_000
_UNLIMITED = torch.iinfo(torch.int64).max // 4


@dataclass(frozen=True)
class CostCaps:
    """Costs of a space and its caps; masks are exact: an action is legal iff a cell within the caps completes it."""

    costs: SlotCosts
    max_parameters: int | None
    max_multiply_adds: int | None

    def __post_init__(self) -> None:
        """Raise UserError where no cell fits, or where there are too many sums of costs to compare."""
        if prod(num + 1 for num in self._class_sizes) > MAX_FRONTS:
            raise UserError(
                f"env.cells: caps need at most {MAX_FRONTS:,} combinations of places with different costs, got "
                f"{prod(num + 1 for num in self._class_sizes):,}"
            )
        if not any(self._fits(point, self._budget.tolist()) for point in self._front_of[tuple(self._class_sizes)]):
            smallest = self._front_of[tuple(self._class_sizes)]
            least = [
                min(point[axis] for point in smallest) + base for axis, base in enumerate(_point(self.costs.skeleton))
            ]
            raise UserError(
                f"env.cells: expected a cell within max_parameters={self.max_parameters} and "
                f"max_multiply_adds={self.max_multiply_adds}, got none; the smallest have {least[0]:,} and {least[1]:,}"
            )

    def allowed(self, positions: Tensor) -> Tensor:
        """Return which operation may be set at which empty place, [B, N, V], for operations [B, N], -1 where empty."""
        is_empty = positions < 0
        remaining = self._remaining(positions)[:, None, None, :] - self._cost[None]  # [B, N, V, 2]
        key = (is_empty * self._weights).sum(1, keepdim=True) - self._weights  # [B, N], empty places after the action
        points = self._fronts[key.clamp(min=0)]  # [B, N, F, 2]
        return (points[:, :, None] <= remaining[:, :, :, None]).all(-1).any(-1)

    def is_within(self, positions: Tensor) -> Tensor:
        """Return whether the operations that are set can be completed within the caps, [B] bool."""
        key = ((positions < 0) * self._weights).sum(1)
        return (self._fronts[key] <= self._remaining(positions)[:, None]).all(-1).any(-1)

    def _remaining(self, positions: Tensor) -> Tensor:
        """Return what the caps leave after the operations that are set, [B, 2]."""
        index = positions.long().clamp(min=0)[:, :, None, None].expand(-1, -1, 1, 2)
        cost = self._cost.expand(len(positions), -1, -1, -1).gather(2, index).squeeze(2)
        return self._budget - (cost * (positions >= 0)[:, :, None]).sum(1)

    @cached_property
    def _budget(self) -> Tensor:
        """Return what the caps leave to the cells, [2] int64."""
        caps = (self.max_parameters, self.max_multiply_adds)
        used = _point(self.costs.skeleton)
        return torch.tensor([_UNLIMITED if cap is None else cap - base for cap, base in zip(caps, used, strict=True)])

    @cached_property
    def _cost(self) -> Tensor:
        """Return the costs of operations, [N, V, 2] int64."""
        return torch.tensor([[_point(cost) for cost in costs] for costs in self.costs.places])

    @cached_property
    def _classes(self) -> dict[tuple[Point, ...], list[int]]:
        """Return the places with equal costs, by their costs."""
        classes: dict[tuple[Point, ...], list[int]] = {}
        for place, costs in enumerate(self.costs.places):
            classes.setdefault(tuple(map(_point, costs)), []).append(place)
        return classes

    @cached_property
    def _class_sizes(self) -> list[int]:
        return [len(places) for places in self._classes.values()]

    @cached_property
    def _weights(self) -> Tensor:
        """Return the number that an empty place adds to the key of a front, [N] int64."""
        weights, weight = [0] * len(self.costs.places), 1
        for places in self._classes.values():
            for place in places:
                weights[place] = weight
            weight *= len(places) + 1
        return torch.tensor(weights)

    @cached_property
    def _front_of(self) -> dict[tuple[int, ...], list[Point]]:
        """Return the smallest costs of numbers of empty places per class: no point is larger in both than another."""
        fronts: dict[tuple[int, ...], list[Point]] = {}
        choices = list(self._classes)
        for counts in product(*(range(num + 1) for num in self._class_sizes)):
            used = next((axis for axis, count in enumerate(counts) if count), None)
            if used is None:
                fronts[counts] = [(0, 0)]
                continue
            before = fronts[(*counts[:used], counts[used] - 1, *counts[used + 1 :])]
            sums = {(a + c, b + d) for a, b in before for c, d in choices[used]}
            fronts[counts] = _pareto(sorted(sums))
        return fronts

    @cached_property
    def _fronts(self) -> Tensor:
        """Return all fronts by key, [K, F, 2] int64; unused points cost more than every cap."""
        ordered = [
            self._front_of[tuple(reversed(counts))]
            for counts in product(*(range(num + 1) for num in reversed(self._class_sizes)))
        ]
        size = max(map(len, ordered))
        return torch.tensor([front + [(2 * _UNLIMITED,) * 2] * (size - len(front)) for front in ordered])

    @staticmethod
    def _fits(point: Point, budget: Sequence[int]) -> bool:
        return all(cost <= left for cost, left in zip(point, budget, strict=True))


def _pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points, sorted, that no other point undercuts."""
    front: list[Point] = []
    for point in points:
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _point(cost: OperationCost) -> Point:
    return cost.num_parameters, cost.multiply_adds
