"""Environments with one planted error each, in graphs of up to four nodes in two colours."""

from collections.abc import Callable

import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.certificate.result import Check
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import ActionBatch, ActionMasks, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates


class Graphs(GraphBuildingEnv):
    """The space without an error."""

    def __init__(self) -> None:
        super().__init__(["a", "b"], max_nodes=4)


class CountsThreeForSix(Graphs):
    def num_automorphisms(self, states: GraphStates) -> list[int]:
        return [3 if count == 6 else count for count in super().num_automorphisms(states)]


class HalvesTheLargestCount(Graphs):
    def num_automorphisms(self, states: GraphStates) -> list[int]:
        return [12 if count == 24 else count for count in super().num_automorphisms(states)]


class HidesAnEdgeRemoval(Graphs):
    """The first removable edge of the cycles of four nodes of colour a is not removable."""

    def backward_masks(self, states: GraphStates) -> ActionMasks:
        return _changed(super().backward_masks(states), states, num_edges=4, legal=False)


class AllowsABridgeRemoval(Graphs):
    """The first edge of the trees of four nodes of colour a is removable."""

    def backward_masks(self, states: GraphStates) -> ActionMasks:
        return _changed(super().backward_masks(states), states, num_edges=3, legal=True)


def _changed(masks: ActionMasks, states: GraphStates, *, num_edges: int, legal: bool) -> ActionMasks:
    """Return the masks with the first edge of some graphs of four nodes of colour a changed to legal or illegal."""
    kind = GraphActionType.RemoveEdge
    mask = masks.masks[kind].clone()
    changes = (states.node_type == 0).all(1) & (states.has_edge.flatten(1).sum(1) == 2 * num_edges)
    for graph in changes.nonzero().squeeze(1).tolist():
        edges = states.has_edge[graph].triu(1).flatten()
        mask[graph, (edges & (mask[graph, :, 0] != legal)).nonzero()[:1, 0], 0] = legal
    return ActionMasks({**masks.masks, kind: mask})


class SplitsStars(Graphs):
    """Codes of stars of four nodes depend on whether node 0 is the centre."""

    def identify(self, states: GraphStates) -> torch.Tensor:
        num_edges, degree = states.has_edge.flatten(1).sum(1), states.has_edge[:, 0].sum(-1)
        is_star = (states.num_nodes == 4) & (num_edges == 6) & (degree == 3)
        return torch.where(is_star, super().identify(states) ^ 12345, super().identify(states))


class HidesAnEdgeAddition(Graphs):
    """The first edge to add to the trees of four nodes of colour a is illegal."""

    def forward_masks(self, states: GraphStates) -> ActionMasks:
        masks = super().forward_masks(states)
        kind = GraphActionType.AddEdge
        mask = masks.masks[kind].clone()
        changes = (states.node_type == 0).all(1) & (states.has_edge.flatten(1).sum(1) == 6)
        for graph in changes.nonzero().squeeze(1).tolist():
            mask[graph, mask[graph].flatten(1).any(1).nonzero()[:1, 0]] = False
        return ActionMasks({**masks.masks, kind: mask})


class CannotRemoveEdges(Graphs):
    """Edges are added, but no backward action removes them."""

    def __init__(self) -> None:
        super().__init__()
        self.backward_types = (GraphActionType.RemoveNode,)


class RemovesAnotherNode(Graphs):
    """The inverse of adding a node removes the first node."""

    def reverse(self, states: GraphStates, actions: ActionBatch) -> ActionBatch:
        inverse = super().reverse(states, actions)
        is_third = (actions.kind == int(GraphActionType.AddNode)) & (states.num_nodes == 2)
        return ActionBatch(inverse.kind, torch.where(is_third, 0, inverse.row), inverse.column)


class ForgetsBridges(Graphs):
    """Adding an edge leaves the numbers of bridges as they were."""

    def apply(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        after = super().apply(states, actions)
        adds = actions.kind == int(GraphActionType.AddEdge)
        after.num_bridges[adds] = states.num_bridges[adds]
        return after


class MergesColours(Graphs):
    """Codes ignore the colours of three nodes."""

    def identify(self, states: GraphStates) -> torch.Tensor:
        merged = states.clone()
        merged.node_type[(states.num_nodes == 3)[:, None] & (states.node_type == 1)] = 0
        return super().identify(merged)


class ListsItsInitialStateLast(Graphs):
    def every_state(self) -> GraphStates:
        states = enumerate_states(Graphs()).states
        return GraphStates.cat([states[1:], states[:1]])


class ListsAnUnreachableState(Graphs):
    def every_state(self) -> GraphStates:
        states = enumerate_states(Graphs()).states
        without_edges = states[-1:].clone()
        without_edges.edge_type.fill_(-1)
        return GraphStates.cat([states, without_edges])


PLANTED: dict[Check, list[Callable[[], Environment]]] = {
    Check.AUTOMORPHISMS: [CountsThreeForSix, HalvesTheLargestCount],
    Check.HIDDEN: [HidesAnEdgeRemoval],
    Check.ALLOWED: [AllowsABridgeRemoval],
    Check.NO_REVERSE: [CannotRemoveEdges, RemovesAnotherNode],
    Check.ILLEGAL_STATE: [ForgetsBridges],
    Check.LIST: [ListsItsInitialStateLast, ListsAnUnreachableState],
    Check.CODES: [MergesColours, SplitsStars],
    Check.DISAGREE: [HidesAnEdgeAddition],
}
