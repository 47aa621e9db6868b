"""Reference rules of the slot environments on networkx graphs without edges, each by its definition."""

import json
from collections.abc import Mapping, Sequence
from itertools import product

import networkx as nx

from gflownet.envs.choice_limits import ListedSettings, SummedCosts
from gflownet.envs.choice_places import Places, Setting
from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, NxGraph


class CellsOracle(GraphBuildingOracle):
    """Places that take one value each, in any order; terminal when all have a value."""

    def __init__(self, names: Sequence[str], attribute: str, values: Sequence) -> None:
        super().__init__(names, max_nodes=len(names), directed=True, node_attributes={attribute: values})
        self.attribute = attribute

    def initial(self) -> NxGraph:
        """Return all places, empty."""
        graph = nx.DiGraph()
        graph.add_nodes_from((node, {"type": name, "attributes": {}}) for node, name in enumerate(self.node_types))
        return graph

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        return action.action_type in (Kind.Stop, Kind.SetNodeAttr) and super().allows(graph, action)

    def is_state(self, graph: NxGraph) -> bool:
        return len(graph) == self.max_nodes

    def value(self, graph: NxGraph, place: int) -> object:
        """Return the value of a place, None if unset."""
        return graph.nodes[place]["attributes"].get(self.attribute)


class BitSequenceOracle(CellsOracle):
    """Places that are filled from left to right."""

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        """Return whether a forward action is legal: places are filled without gaps."""
        if action.action_type == Kind.SetNodeAttr:
            return super().allows(graph, action) and self.is_state(self.apply(graph, action))
        return super().allows(graph, action)

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether no place after an empty one has a value."""
        is_empty = [self.value(graph, place) is None for place in graph]
        return is_empty == sorted(is_empty)


class CatalogueOracle(BitSequenceOracle):
    """Digits from left to right: every state begins the code of a listed graph, codes being spread evenly."""

    def __init__(self, names: Sequence[str], *, num_graphs: int, branching: int) -> None:
        super().__init__(names, "branch", list(map(str, range(branching))))
        self.codes = []
        for index in range(num_graphs):
            code = index * branching ** len(names) // num_graphs
            self.codes.append([str(code // branching**place % branching) for place in reversed(range(len(names)))])

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        if action.action_type == Kind.Stop:
            return [self.value(graph, place) for place in graph] in self.codes
        return super().allows(graph, action)

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether the digits begin a code."""
        digits = [digit for place in graph if (digit := self.value(graph, place)) is not None]
        return super().is_state(graph) and any(code[: len(digits)] == digits for code in self.codes)


class RecurrentStackOracle(CellsOracle):
    """Stacks of layers, chosen layer by layer."""

    def __init__(self, names: Sequence[str], values: Sequence, *, choices: Mapping[str, Sequence]) -> None:
        super().__init__(names, "choice", values)
        self.choices = choices

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        if action.action_type == Kind.SetNodeAttr:
            name = self.node_types[action.source or 0]
            fits = action.value in self.choices[name] and self.value(graph, action.source or 0) is None
            return fits and self.is_state(self.apply(graph, action))
        choices = self.choices_of(graph)
        return action.action_type == Kind.Stop and "cell[1]" in choices and self.is_complete(choices)

    def choices_of(self, graph: NxGraph) -> dict[str, object]:
        values = {str(self.node_types[place]): self.value(graph, place) for place in graph}
        return {name: value for name, value in values.items() if value is not None}

    def options_of(self, cell: object, place: str) -> set[str]:
        """Return the places that a layer of a cell has; those of all RHN layers as well."""
        if cell == "rhn":
            return {"projections" + place, "beta" + place, "rank", "ratio"}
        return {"residual" + place, "units" + place} & self.choices.keys() if cell in ("gru", "lstm") else set()

    def is_complete(self, choices: Mapping[str, object]) -> bool:
        """Return whether exactly the choices of a stack with these cells are set."""
        depth = sum(name.startswith("cell") for name in choices)
        required = {"width"} & self.choices.keys()
        for layer in range(1, depth + 1):
            required |= {f"cell[{layer}]"}
            required |= self.options_of(choices.get(f"cell[{layer}]"), f"[{layer}]")
        return choices.keys() == required

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether all layers before the last are complete and the last one has only choices of its cell."""
        choices = self.choices_of(graph)
        depth = sum(name.startswith("cell") for name in choices)
        if depth == 0:
            return choices.keys() <= {"width"}
        last = f"[{depth}]"
        before = {name: value for name, value in choices.items() if not name.endswith(last)}
        of_last = choices.keys() - before.keys()
        if "rhn" not in (value for name, value in before.items() if name.startswith("cell")):
            of_last |= before.keys() & {"rank", "ratio"}
            before = {name: value for name, value in before.items() if name not in ("rank", "ratio")}
        optional = self.options_of(choices.get("cell" + last), last)
        return self.is_complete(before) and "cell" + last in of_last and of_last - {"cell" + last} <= optional


class ChoicesOracle(CellsOracle):
    """Places with values: every state is a part of a complete setting, closed under the places of its conditions."""

    def __init__(
        self,
        names: Sequence[str],
        attribute: str,
        texts: Sequence,
        places: Places,
        *,
        limits: ListedSettings | SummedCosts | None,
    ) -> None:
        super().__init__(names, attribute, texts)
        self.places = places
        self.settings = [with_texts(setting) for setting in settings_within(places, limits)]
        self.conditions = {place.name: [name for name, _ in place.only_if] for place in places.places}

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        if action.action_type == Kind.SetNodeAttr:
            return self.value(graph, action.source or 0) is None and self.is_state(self.apply(graph, action))
        return action.action_type == Kind.Stop and self.chosen(graph) in self.settings

    def chosen(self, graph: NxGraph) -> dict[str, object]:
        """Return the values by place, without unset places."""
        values = {str(self.node_types[place]): self.value(graph, place) for place in graph}
        return {name: value for name, value in values.items() if value is not None}

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether the values are a part of a setting and contain the places on which they depend."""
        chosen = self.chosen(graph)
        is_closed = all(name in chosen for place in chosen for name in self.conditions[place])
        return is_closed and any(chosen.items() <= setting.items() for setting in self.settings)


def brute_force_settings(places: Places) -> list[Setting]:
    """Return the distinct settings among all products of values, each without the places that do not exist."""
    settings = []
    for values in product(*(place.values for place in places.places)):
        setting = dict(zip((place.name for place in places.places), values, strict=True))
        while any(absent := [name for name in setting if not places.by_name[name].exists(setting)]):
            setting = {name: value for name, value in setting.items() if name not in absent}
        if setting not in settings:
            settings.append(setting)
    return settings


def settings_within(places: Places, limits: ListedSettings | SummedCosts | None) -> Sequence[Setting]:
    """Return the settings that are listed, or whose sum of costs is within the caps, or all."""
    if isinstance(limits, ListedSettings):
        return limits.settings
    settings = brute_force_settings(places)
    if limits is None:
        return settings
    caps = [float("inf") if cap is None else cap for cap in limits.caps]
    choices = ([place.values.index(setting[place.name]) for place in places.places] for setting in settings)
    costs = map(limits.of, choices)
    return [s for s, cost in zip(settings, costs, strict=True) if cost[0] <= caps[0] and cost[1] <= caps[1]]


def with_texts(setting: Setting) -> dict[str, object]:
    """Return a setting with the texts of its values, as in actions."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in setting.items()}


class HypergridOracle(CellsOracle):
    """Coordinates that increase by one; an unset coordinate is 0, and every state is terminal."""

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        if action.action_type == Kind.SetNodeAttr:
            return action.value == graph.nodes[action.source]["attributes"].get(self.attribute, 0) + 1
        return action.action_type == Kind.Stop

    def apply(self, graph: NxGraph, action: GraphAction) -> NxGraph:
        """Return a copy of the graph after an action; removing a value lowers the coordinate by one."""
        after = super().apply(graph, action)
        if action.action_type == Kind.RemoveNodeAttr:
            lowered = graph.nodes[action.source]["attributes"][self.attribute] - 1
            if lowered > 0:
                after.nodes[action.source]["attributes"][self.attribute] = lowered
        return after
