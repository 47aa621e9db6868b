"""Choices in a user's own code: places with values, some of which exist only for some values of others.

An action sets any place that exists and has no value. A setting is complete when every place that exists is set, so
two settings that differ only in places that do not exist are one object. Nothing is interchangeable.

Letters: B states, N places, V values, K conditions, X settings within the caps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from gflownet.envs.choice_places import Places, Setting, read_places, text_of
from gflownet.envs.config import ChoicesConfig, EnvConfig
from gflownet.envs.slots import Caps, SlotEnv
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription
from gflownet.mdp.environment import SIZES, Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates
from gflownet.plugins import load_function

MAX_SETTINGS = 100_000
_SECONDS_BETWEEN_LINES = 10.0
_log = logging.getLogger(__name__)

# Complete setting -> (parameters, multiply-adds).
CostFunction = Callable[[dict[str, Any]], tuple[int, int]]


@dataclass(frozen=True)
class CappedSettings:
    """The complete settings whose cost is within the caps."""

    settings: tuple[Setting, ...]
    costs: tuple[tuple[int, int], ...] = ()  # of the settings: parameters and multiply-adds
    caps: Caps = (None, None)

    @classmethod
    def of(cls, places: Places, config: ChoicesConfig) -> Self:
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
            smallest = " and ".join(f"{min(c[i] for _, c in costs):,}" for i in range(2))
            raise UserError(
                f"env.choices: expected a setting within max_parameters={caps[0]} and max_multiply_adds={caps[1]}, "
                f"got none; the smallest have {smallest}"
            )
        settings, costs_within = zip(*within, strict=True)
        return cls(settings, costs_within, caps)


def _cost_of(cost: CostFunction, name: str, setting: Mapping[str, Any]) -> tuple[int, int]:
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


class ChoicesEnv(SlotEnv):
    """Settings of places; `capped` restricts them to the settings within hard caps."""

    def __init__(self, places: Places, capped: CappedSettings | None = None) -> None:
        self.places, self.capped = places, capped
        texts = tuple(dict.fromkeys(text_of(value) for place in places.places for value in place.values))
        names = tuple(place.name for place in places.places)
        super().__init__(names, Attribute("value", texts), (None, None) if capped is None else capped.caps)
        self._position = {text: position for position, text in enumerate(texts)}
        self._value_at = [{self._position[text_of(v)]: v for v in place.values} for place in places.places]
        self._allowed = torch.tensor([[p in values for p in range(len(texts))] for values in self._value_at])  # [N, V]
        conditions = [(n, *item) for n, place in enumerate(places.places) for item in place.only_if]
        self._owner = torch.tensor([owner for owner, _, _ in conditions], dtype=torch.int64)  # [K]
        self._read = torch.tensor([names.index(name) for _, name, _ in conditions], dtype=torch.int64)  # [K]
        # The last column stands for "unset", for which no condition holds.
        self._holds = torch.zeros(len(conditions), len(texts) + 1, dtype=torch.bool)
        for condition, (_, _, values) in enumerate(conditions):
            self._holds[condition, [self._position[text_of(value)] for value in values]] = True
        self._reads = torch.zeros(len(names), len(names))  # [N, N], whether the first has a condition on the second
        self._reads[self._owner, self._read] = 1.0
        self._completions = None if capped is None else self._one_hot(self._positions(capped))  # [X, N * V]
        costs = torch.tensor([] if capped is None else capped.costs, dtype=torch.int64).reshape(-1, len(SIZES))
        self._costs = costs[:, self.limited]  # [X, K]

    def sizes(self, states: GraphStates) -> Tensor:
        """Return the costs with a cap, [B, K]."""
        if not self.limited:
            return super().sizes(states)
        return self._costs[self._agrees(states).view(torch.uint8).argmax(1)]

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the smallest costs within the caps."""
        return tuple(self._costs.amin(0).tolist()) if self.limited else ()

    def offered(self, place: int) -> tuple[Sequence[int], Sequence[Any]]:
        return [*self._value_at[place]], [*self._value_at[place].values()]

    def terminal(self, states: GraphStates, index: int) -> Assignment:
        positions = states.node_attr[index, :, 0].tolist()
        values = zip(self.vocabulary.node_types, self._value_at, positions, strict=True)
        return Assignment.of({name: value_at[p] for name, value_at, p in values if p != UNSET})

    def describe(self, candidate: Assignment) -> GraphDescription:
        values = dict(zip(candidate.names, candidate.values, strict=True))
        unknown = [name for name in values if name not in self.places.by_name]
        if unknown:
            raise ValueError(f"expected places out of {', '.join(self.places.by_name)}, got {unknown[0]!r}")
        positions = []
        for place, value_at in zip(self.places.places, self._value_at, strict=True):
            texts = {(text_of(value), isinstance(value, str)): position for position, value in value_at.items()}
            value = values.get(place.name)
            if value is not None and (text_of(value), isinstance(value, str)) not in texts:
                raise ValueError(f"{place.name}: expected a value out of {list(place.values)}, got {value!r}")
            positions.append([UNSET if value is None else texts[text_of(value), isinstance(value, str)]])
        return GraphDescription(range(len(positions)), positions)

    def forward_rules(self, states: GraphStates) -> Rules:
        filled, exists = self.filled(states), self._exist(states)
        set_rules = [
            Rule("the place has a value", ~filled[:, :, None]),
            Rule("the place does not exist with these values", exists[:, :, None]),
            Rule("the value is of another place", self._allowed[None]),
        ]
        stop_rules = [
            Rule("a place has no value", (filled | ~exists).all(1)[:, None, None]),
            Rule.of_graph("a place has a value and does not exist with the other values", (exists | ~filled).all(1)),
        ]
        if self._completions is not None:
            values, is_within = self._within_caps(states)
            set_rules.append(Rule("no setting within the caps has this value and the ones set before", values))
            stop_rules.append(Rule.of_graph("the setting exceeds a cap", is_within))
        return {Kind.Stop: stop_rules, Kind.SetNodeAttr: set_rules}

    def backward_rules(self, states: GraphStates) -> Rules:
        filled = self.filled(states)
        is_read = (filled.float() @ self._reads) > 0
        return {
            Kind.RemoveNodeAttr: [
                Rule("the place has no value", filled[:, :, None]),
                Rule("a place that is set exists only with this value", ~is_read[:, :, None]),
            ]
        }

    def _exist(self, states: GraphStates) -> Tensor:
        """Return the places whose conditions hold, [B, N] bool."""
        value = states.node_attr[:, self._read, 0].long() % self._holds.shape[1]  # [B, K]
        fails = ~self._holds[torch.arange(len(self._read)), value]
        num_failing = torch.zeros(states.exists.shape, dtype=torch.int64).index_add_(1, self._owner, fails.long())
        return num_failing == 0

    def _within_caps(self, states: GraphStates) -> tuple[Tensor, Tensor]:
        """Return the values [B, N, V] of the settings within the caps that agree with a state, and whether one does."""
        agrees = self._agrees(states)
        if self.limited:
            agrees &= (self._costs <= self.caps_of(states, self.vocabulary.limits)[:, None]).all(-1)
        values = (agrees.float() @ cast(Tensor, self._completions)) > 0
        return values.unflatten(1, (-1, len(self.values))), agrees.any(1)

    def _agrees(self, states: GraphStates) -> Tensor:
        """Return which settings within the environment's caps agree with a state, [B, X] bool."""
        assert self._completions is not None
        positions = states.node_attr[:, :, 0]
        num_equal = self._one_hot(positions) @ self._completions.T  # [B, X]
        return num_equal == (positions != UNSET).sum(1, keepdim=True)

    def _positions(self, capped: CappedSettings) -> Tensor:
        """Return the settings within the caps as positions of values, [X, N]."""
        names = self.vocabulary.node_types
        rows = [[self._position[text_of(s[name])] if name in s else UNSET for name in names] for s in capped.settings]
        return torch.tensor(rows, dtype=torch.int8)

    def _one_hot(self, positions: Tensor) -> Tensor:
        """Return positions [B, N] as [B, N * V] float32; an unset place has zeros only."""
        return (positions[:, :, None] == torch.arange(len(self.values), dtype=torch.int8)).flatten(1).float()


class ChoicesContext(GraphBuildingEnvContext):
    """Context of choices, from the options under `env.choices`."""

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise UserError for invalid places, and for a cap without a cost function."""
        choices = config.env.choices
        read_places(choices.places)
        for name in ("max_parameters", "max_multiply_adds"):
            if choices[name] is not None and not choices.cost:
                raise UserError(f"env.choices.{name}: expected env.choices.cost=module:function with a cap, got none")

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> ChoicesEnv:
        choices = config.choices
        places = read_places(choices.places)
        return ChoicesEnv(places, CappedSettings.of(places, choices) if choices.cost else None)
