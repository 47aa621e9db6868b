"""Choices in a user's own code: places with values, some of which exist only for some values of others.

An action sets any place that exists and has no value. A setting is complete when every place that exists is set, so
two settings that differ only in places that do not exist are one object. Nothing is interchangeable.

Letters: B states, N places, V values, K conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.choice_limits import ListedSettings, SummedCosts
from gflownet.envs.choice_places import Places, read_places, text_of
from gflownet.envs.config import EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import Attribute, GraphStates, LabelledGraphs


class ChoicesEnv(SlotEnv):
    """Settings of places, filled in any order; `limits` restricts them to a list, or by caps on their costs.

    `absent` is the value shown for a place that does not exist; None: terminal objects leave out such places and sort
    the others by name. `graphs` returns the graphs of positions [B, N] for a surrogate, by default of places.
    """

    def __init__(
        self,
        places: Places,
        limits: ListedSettings | SummedCosts | None = None,
        *,
        attribute: str = "value",
        absent: str | None = None,
        graphs: Callable[[Tensor], LabelledGraphs] | None = None,
    ) -> None:
        self.places, self.limits, self.absent, self._graphs = places, limits, absent, graphs
        names = tuple(place.name for place in places.places)
        super().__init__(names, Attribute(attribute, places.texts), (None, None) if limits is None else limits.caps)
        self._value_at = [{places.texts.index(text_of(v)): v for v in place.values} for place in places.places]
        # [N, V]
        self._allowed = torch.tensor([[p in values for p in range(len(places.texts))] for values in self._value_at])
        self._has_all_values = bool(self._allowed.all())
        conditions = [(n, *item) for n, place in enumerate(places.places) for item in place.only_if]
        self._owner = torch.tensor([owner for owner, _, _ in conditions], dtype=torch.int64)  # [K]
        self._read = torch.tensor([names.index(name) for _, name, _ in conditions], dtype=torch.int64)  # [K]
        # The last column stands for "unset", for which no condition holds.
        self._holds = torch.zeros(len(conditions), len(places.texts) + 1, dtype=torch.bool)
        for condition, (_, _, values) in enumerate(conditions):
            self._holds[condition, [places.texts.index(text_of(value)) for value in values]] = True
        self._reads = torch.zeros(len(names), len(names))  # [N, N], whether the first has a condition on the second
        self._reads[self._owner, self._read] = 1.0

    def sizes(self, states: GraphStates) -> Tensor:
        """Return the costs with a cap, [B, K]."""
        if self.limits is None:
            return super().sizes(states)
        return self.limits.sizes(states.node_attr[:, :, 0])[:, self.limited]

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the smallest costs within the caps."""
        return tuple(self.limits.least[axis] for axis in self.limited) if self.limits is not None else ()

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        return (
            super().labelled_graphs(states) if self._graphs is None else self._graphs(states.node_attr[:, :, 0].long())
        )

    def offered(self, place: int) -> tuple[Sequence[int], Sequence[Any]]:
        return [*self._value_at[place]], [*self._value_at[place].values()]

    def terminal(self, states: GraphStates, index: int) -> Assignment:
        positions = states.node_attr[index, :, 0].tolist()
        values = [value_at.get(p, self.absent) for value_at, p in zip(self._value_at, positions, strict=True)]
        named = {
            name: value for name, value in zip(self.vocabulary.node_types, values, strict=True) if value is not None
        }
        return Assignment.of(named) if self.absent is None else Assignment((*named,), (*named.values(),))

    def describe(self, candidate: Assignment) -> GraphDescription:
        values = {name: value for name, value in candidate.as_dict().items() if value != self.absent}
        unknown = [name for name in values if name not in self.places.by_name]
        if unknown:
            raise ValueError(f"expected places out of {', '.join(self.places.by_name)}, got {unknown[0]!r}")
        positions = [[self.places.position(place.name, values)] for place in self.places.places]
        return GraphDescription(range(len(positions)), positions)

    def forward_rules(self, states: GraphStates) -> Rules:
        filled = self.filled(states)
        set_rules = [Rule("the place has a value", ~filled[:, :, None])]
        if len(self._read):  # otherwise every place exists: few operations
            exists = self._exist(states)
            set_rules.append(Rule("the place does not exist with these values", exists[:, :, None]))
            text = "a place has a value and does not exist with the other values"
            stop_rules = [Rule.of_graph(text, (exists | ~filled).all(1))]
            stop_rules.append(Rule.of_graph("a place has no value", (filled | ~exists).all(1)))
        else:
            stop_rules = [Rule.of_graph("a place has no value", filled.all(1))]
        if not self._has_all_values:
            set_rules.append(Rule("the value is of another place", self._allowed[None]))
        if self.limits is not None:
            values, is_within = self.limits.fits(states.node_attr[:, :, 0], self.caps_of(states))
            set_rules.append(Rule("no setting within the caps has this value and the ones set before", values))
            stop_rules.append(Rule.of_graph("the setting exceeds a cap", is_within))
        return {Kind.Stop: stop_rules, Kind.SetNodeAttr: set_rules}

    def backward_rules(self, states: GraphStates) -> Rules:
        filled = self.filled(states)
        rules = [Rule("the place has no value", filled[:, :, None])]
        if len(self._read):
            is_read = (filled.float() @ self._reads) > 0
            rules.append(Rule("a place that is set exists only with this value", ~is_read[:, :, None]))
        return {Kind.RemoveNodeAttr: rules}

    def _exist(self, states: GraphStates) -> Tensor:
        """Return the places whose conditions hold, [B, N] bool."""
        value = states.node_attr[:, self._read, 0].long() % self._holds.shape[1]  # [B, K]
        fails = ~self._holds[torch.arange(len(self._read)), value]
        num_failing = torch.zeros(states.exists.shape, dtype=torch.int64).index_add_(1, self._owner, fails.long())
        return num_failing == 0


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
        return ChoicesEnv(places, ListedSettings.within(places, choices) if choices.cost else None)
