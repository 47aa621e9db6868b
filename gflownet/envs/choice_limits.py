"""Which settings of places a search may reach: a list of them, or those whose sums of costs are within caps.

Both answer exactly: a value is offered iff a setting within the caps has it and the values set before.

Letters: B states, N places, V values, X listed settings, K numbers of empty places by class, F points of a front.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from gflownet.envs.choice_places import Places, Setting, text_of
from gflownet.envs.config import ChoicesConfig
from gflownet.envs.slots import Caps
from gflownet.errors import UserError
from gflownet.mdp.states import NO_LIMIT, UNSET
from gflownet.plugins import load_function

MAX_SETTINGS = 100_000
MAX_FRONTS = 100_000
_SECONDS_BETWEEN_LINES = 10.0
_log = logging.getLogger(__name__)

Point = tuple[int, int]  # parameters, multiply-adds
CostFunction = Callable[[dict[str, Any]], Point]  # of a complete setting


@dataclass(frozen=True)
class ListedSettings:
    """Complete settings and their costs, which are within the caps."""

    places: Places
    settings: tuple[Setting, ...]
    costs: tuple[Point, ...] = ()  # of the settings; empty: nothing
    caps: Caps = (None, None)

    @classmethod
    def within(cls, places: Places, config: ChoicesConfig) -> Self:
        """Return the settings within the caps of a config; every setting's cost is computed once.

        Raises:
            UserError: too many settings, a cost function that fails, or no setting within the caps.
        """
        num_settings = places.num_settings()
        if num_settings > MAX_SETTINGS:
            raise UserError(
                f"env.choices.cost: expected at most {MAX_SETTINGS:,} settings, whose costs are computed one by one, "
                f"got {num_settings:,}"
            )
        cost: CostFunction = load_function("env.choices.cost", config.cost)
        costs, started = [], time.monotonic()
        for setting in places.settings():
            costs.append((setting, _cost_of(cost, config.cost, setting)))
            if time.monotonic() - started > _SECONDS_BETWEEN_LINES:
                started = time.monotonic()
                _log.info("costs of %d of %d settings", len(costs), num_settings)
        caps = (config.max_parameters, config.max_multiply_adds)
        within = [(s, c) for s, c in costs if all(cap is None or x <= cap for x, cap in zip(c, caps, strict=True))]
        if not within:
            raise _unreachable("env.choices", "a setting", caps, [c for _, c in costs])
        settings, costs_within = zip(*within, strict=True)
        return cls(places, settings, costs_within, caps)

    @property
    def least(self) -> Point:
        """The smallest parameters and multiply-adds."""
        parameters, multiply_adds = self._costs.amin(0).tolist()
        return parameters, multiply_adds

    def sizes(self, positions: Tensor) -> Tensor:
        """Return the costs of the first settings that agree with values [B, N], [B, 2]."""
        return self._costs[self.agrees(positions).view(torch.uint8).argmax(1)]

    def fits(self, positions: Tensor, caps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values [B, N, V] of the settings within caps [B, 2] that agree, and whether one does, [B]."""
        agrees = self.agrees(positions) & (self._costs <= caps[:, None]).all(-1)
        values = (agrees.float() @ self._one_hot_settings) > 0
        return values.unflatten(1, (-1, len(self.places.texts))), agrees.any(1)

    def agrees(self, positions: Tensor) -> Tensor:
        """Return which settings have the values that are set, [B, X] bool."""
        num_equal = self._one_hot(positions) @ self._one_hot_settings.T
        return num_equal == (positions != UNSET).sum(1, keepdim=True)

    @cached_property
    def _costs(self) -> Tensor:
        return torch.tensor(self.costs or [(0, 0)] * len(self.settings))  # [X, 2]

    @cached_property
    def _one_hot_settings(self) -> Tensor:
        names, index = [*self.places.by_name], {text: place for place, text in enumerate(self.places.texts)}
        rows = [[index[text_of(s[name])] if name in s else UNSET for name in names] for s in self.settings]
        return self._one_hot(torch.tensor(rows, dtype=torch.int8))

    def _one_hot(self, positions: Tensor) -> Tensor:
        """Return positions [B, N] as [B, N * V] float32; an unset place has zeros only."""
        return (positions[:, :, None] == torch.arange(len(self.places.texts), dtype=torch.int8)).flatten(1).float()


def _cost_of(cost: CostFunction, name: str, setting: Mapping[str, Any]) -> Point:
    """Return the parameters and multiply-adds of a setting. Raises UserError where the function fails."""
    try:
        result: Any = cost(dict(setting))
        parameters, multiply_adds = result
        return int(parameters), int(multiply_adds)
    except Exception as error:  # raised by the user's function
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"env.choices.cost: expected {name} to return (parameters, multiply-adds) of {dict(setting)}, got {reason}"
        ) from error


def _unreachable(key: str, what: str, caps: Caps, costs: Sequence[Point]) -> UserError:
    """Return the error for caps below every cost."""
    smallest = " and ".join(f"{min(axis):,}" for axis in zip(*costs, strict=True))
    return UserError(
        f"{key}: expected {what} within max_parameters={caps[0]} and max_multiply_adds={caps[1]}, got none; the "
        f"smallest have {smallest}"
    )


@dataclass(frozen=True)
class SummedCosts:
    """Costs that add up: of everything else, and of each value at each place; with caps."""

    base: Point
    places: tuple[tuple[Point, ...], ...]  # [N places][V values]
    caps: Caps = (None, None)

    def __post_init__(self) -> None:
        """Raise UserError where no setting fits, or where there are too many sums of costs to compare."""
        if self.caps == (None, None):
            return
        if (num := prod(num + 1 for num in self._class_sizes)) > MAX_FRONTS:
            raise UserError(
                f"env.cells: caps need at most {MAX_FRONTS:,} combinations of places with different costs, got {num:,}"
            )
        every = [(x + self.base[0], y + self.base[1]) for x, y in self._front_of[tuple(self._class_sizes)]]
        if not self._within(every):
            raise _unreachable("env.cells", "a cell", self.caps, every)

    def of(self, choice: Sequence[int]) -> Point:
        """Return the cost of the values at these positions, one per place."""
        points = [self.base, *(costs[value] for costs, value in zip(self.places, choice, strict=True))]
        parameters, multiply_adds = map(sum, zip(*points, strict=True))
        return parameters, multiply_adds

    @property
    def least(self) -> Point:
        """The smallest parameters and multiply-adds within the caps."""
        front = self._front_of[tuple(self._class_sizes)]
        within = self._within([(x + self.base[0], y + self.base[1]) for x, y in front])
        parameters, multiply_adds = map(min, zip(*within, strict=True))
        return parameters, multiply_adds

    def sizes(self, positions: Tensor) -> Tensor:
        """Return the costs of the base and of the values that are set, [B, 2]."""
        index = positions.long().clamp(min=0)[:, :, None, None].expand(-1, -1, 1, 2)
        cost = self._cost.expand(len(positions), -1, -1, -1).gather(2, index).squeeze(2)
        return self._base + (cost * (positions >= 0)[:, :, None]).sum(1)

    def fits(self, positions: Tensor, caps: Tensor) -> tuple[Tensor, Tensor]:
        """Return which value may be set at which empty place within caps [B, 2], [B, N, V], and what is set, [B]."""
        is_empty, left = positions < 0, caps - self.sizes(positions)
        key = (is_empty * self._weights).sum(1, keepdim=True)
        fronts = self._fronts[(key - self._weights).clamp(min=0)]  # [B, N, F, 2] of the places empty after the action
        remaining = left[:, None, None] - self._cost[None]  # [B, N, V, 2]
        values = (fronts[:, :, None] <= remaining[:, :, :, None]).all(-1).any(-1)
        return values, (self._fronts[key.squeeze(1)] <= left[:, None]).all(-1).any(-1)

    def _within(self, points: Sequence[Point]) -> list[Point]:
        limits = [NO_LIMIT if cap is None else cap for cap in self.caps]
        return [point for point in points if point[0] <= limits[0] and point[1] <= limits[1]]

    @cached_property
    def _base(self) -> Tensor:
        return torch.tensor(self.base)

    @cached_property
    def _cost(self) -> Tensor:
        return torch.tensor(self.places)  # [N, V, 2]

    @cached_property
    def _classes(self) -> dict[tuple[Point, ...], list[int]]:
        """Return the places with equal costs, by their costs."""
        classes: dict[tuple[Point, ...], list[int]] = {}
        for place, costs in enumerate(self.places):
            classes.setdefault(costs, []).append(place)
        return classes

    @cached_property
    def _class_sizes(self) -> list[int]:
        return [len(places) for places in self._classes.values()]

    @cached_property
    def _weights(self) -> Tensor:
        """Return the number that an empty place adds to the key of a front, [N] int64."""
        weights, weight = [0] * len(self.places), 1
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
            front = fronts[counts] = []
            for point in sorted({(a + c, b + d) for a, b in before for c, d in choices[used]}):
                if not front or point[1] < front[-1][1]:
                    front.append(point)
        return fronts

    @cached_property
    def _fronts(self) -> Tensor:
        """Return all fronts by key, [K, F, 2] int64; unused points cost more than every cap."""
        ordered = [
            self._front_of[tuple(reversed(counts))]
            for counts in product(*(range(num + 1) for num in reversed(self._class_sizes)))
        ]
        size = max(map(len, ordered))
        return torch.tensor([front + [(2 * NO_LIMIT,) * 2] * (size - len(front)) for front in ordered])
