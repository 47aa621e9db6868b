"""The rules of the environments of named places on networkx graphs without edges, each by its definition."""

from collections.abc import Mapping, Sequence

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, Twin


class CellsOracle(GraphBuildingOracle):
    """Places that take one value each, in any order; finished when all have one."""

    def __init__(self, names: Sequence[str], attribute: str, values: Sequence) -> None:
        super().__init__(names, max_nodes=len(names), directed=True, node_attributes={attribute: values})
        self.attribute = attribute

    def initial(self) -> Twin:
        """Return all places, empty."""
        graph = nx.DiGraph()
        graph.add_nodes_from((node, {"type": name, "attributes": {}}) for node, name in enumerate(self.node_types))
        return graph

    def allows(self, graph: Twin, action: GraphAction) -> bool:
        """Return whether a forward action is legal."""
        return action.action_type in (Kind.Stop, Kind.SetNodeAttr) and super().allows(graph, action)

    def is_state(self, graph: Twin) -> bool:
        """Return whether some trajectory leads through the graph."""
        return len(graph) == self.max_nodes

    def value(self, graph: Twin, place: int) -> object:
        """Return what a place has, None if nothing."""
        return graph.nodes[place]["attributes"].get(self.attribute)


class BitSequenceOracle(CellsOracle):
    """Places that are filled from left to right."""

    def allows(self, graph: Twin, action: GraphAction) -> bool:
        """Return whether a forward action is legal: one at a place fills it and leaves no gap before it."""
        if action.action_type == Kind.SetNodeAttr:
            return super().allows(graph, action) and self.is_state(self.apply(graph, action))
        return super().allows(graph, action)

    def is_state(self, graph: Twin) -> bool:
        """Return whether nothing is written behind a gap."""
        is_empty = [self.value(graph, place) is None for place in graph]
        return is_empty == sorted(is_empty)


class RecurrentStackOracle(CellsOracle):
    """Stacks of layers: a state is one that some order of choices, layer after layer, leads to."""

    def __init__(
        self, names: Sequence[str], values: Sequence, *, choices: Mapping[str, Sequence], min_depth: int
    ) -> None:
        super().__init__(names, "choice", values)
        self.choices, self.min_depth = choices, min_depth

    def allows(self, graph: Twin, action: GraphAction) -> bool:
        """Return whether a forward action is legal."""
        if action.action_type == Kind.SetNodeAttr:
            name = self.node_types[action.source or 0]
            fits = action.value in self.choices[name] and self.value(graph, action.source or 0) is None
            return fits and self.is_state(self.apply(graph, action))
        return action.action_type == Kind.Stop and self.is_whole(self.chosen(graph), self.min_depth)

    def chosen(self, graph: Twin) -> dict[str, object]:
        """Return what was chosen, by place."""
        found = {str(self.node_types[place]): self.value(graph, place) for place in graph}
        return {name: value for name, value in found.items() if value is not None}

    def is_whole(self, chosen: Mapping[str, object], min_depth: int) -> bool:
        """Return whether these choices are all those that a stack of these cells has."""
        depth = sum(name.startswith("cell") for name in chosen)
        wanted = {"width"} & self.choices.keys()
        for layer in range(1, depth + 1):
            wanted |= {f"cell[{layer}]"}
            if chosen.get(f"cell[{layer}]") == "rhn":
                wanted |= {f"projections[{layer}]", f"beta[{layer}]", "rank", "ratio"}
        return depth >= min_depth and chosen.keys() == wanted

    def is_state(self, graph: Twin) -> bool:
        """Return whether all but what the last layer brought is whole, and no more is there than that layer brings."""
        chosen = self.chosen(graph)
        depth = sum(name.startswith("cell") for name in chosen)
        if depth == 0:
            return chosen.keys() <= {"width"}
        last = f"[{depth}]"
        before = {name: value for name, value in chosen.items() if not name.endswith(last)}
        brought = chosen.keys() - before.keys()
        if "rhn" not in (value for name, value in before.items() if name.startswith("cell")):
            brought |= before.keys() & {"rank", "ratio"}
            before = {name: value for name, value in before.items() if name not in ("rank", "ratio")}
        is_rhn = chosen.get("cell" + last) == "rhn"
        may_bring = {"projections" + last, "beta" + last, "rank", "ratio"} if is_rhn else set()
        return self.is_whole(before, 0) and "cell" + last in brought and brought - {"cell" + last} <= may_bring


class HypergridOracle(CellsOracle):
    """Coordinates that go up by one; without a value a coordinate is 0, and every place of the grid may be the last."""

    def allows(self, graph: Twin, action: GraphAction) -> bool:
        """Return whether a forward action is legal."""
        if action.action_type == Kind.SetNodeAttr:
            return action.value == graph.nodes[action.source]["attributes"].get(self.attribute, 0) + 1
        return action.action_type == Kind.Stop

    def apply(self, graph: Twin, action: GraphAction) -> Twin:
        """Return a copy of the graph after an action: a coordinate that is lowered goes down by one."""
        after = super().apply(graph, action)
        if action.action_type == Kind.RemoveNodeAttr:
            lowered = graph.nodes[action.source]["attributes"][self.attribute] - 1
            if lowered > 0:
                after.nodes[action.source]["attributes"][self.attribute] = lowered
        return after
