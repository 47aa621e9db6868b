"""Features of states for a policy: nodes, edges, pairs and graphs as float tensors, and masks of the legal actions."""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import Attribute, GraphStates

NUM_GRAPH_FEATURES = 2
NUM_PAIR_FEATURES = 5


class StateFeatures:
    """Features of an environment's states. Base of the context, and the input of its layouts.

    A new MDP whose vocabulary lacks an input of the policy overrides `extra_node_features` and
    `num_extra_node_features`.
    """

    num_extra_node_features = 0

    def __init__(self, env: Environment, *, num_cond_dim: int = 1) -> None:
        self.env = env
        self.num_cond_dim = num_cond_dim
        self.action_types = env.forward_types
        self.backward_types: tuple[GraphActionType, ...] = ()  # set for a learned backward policy
        vocabulary = env.vocabulary
        self.num_columns = {kind: vocabulary.num_columns(kind) for kind in (*env.forward_types, *env.backward_types)}
        sizes = [len(a.values) + 1 for a in vocabulary.node_attributes]
        self.num_node_features = len(vocabulary.node_types) + 1 + sum(sizes) + self.num_extra_node_features
        sizes = [len(a.values) + 1 for a in vocabulary.edge_attributes]
        self.num_edge_features = len(vocabulary.edge_types) + 2 + sum(sizes) + 1
        self.num_graph_features = NUM_GRAPH_FEATURES
        self.num_pair_features = NUM_PAIR_FEATURES

    @property
    def shown_types(self) -> tuple[GraphActionType, ...]:
        """Return the action types that batches contain."""
        return (*self.action_types, *self.backward_types)

    def shown_masks(self, states: GraphStates) -> dict[GraphActionType, Tensor]:
        """Return the masks of those types, each [B, R, C]."""
        masks = dict(self.env.forward_masks(states).masks)
        if self.backward_types:
            masks |= self.env.backward_masks(states).masks
        return masks

    def extra_node_features(self, states: GraphStates) -> Tensor:
        """Return further features of every node, [B, N, num_extra_node_features] float32."""
        return torch.zeros(*states.node_type.shape, 0)

    def node_features(self, states: GraphStates) -> Tensor:
        """Return the features of every node, [B, N, num_node_features] float32."""
        types = _one_hot(states.node_type, len(self.env.vocabulary.node_types))
        values = _attributes(states.node_attr, self.env.vocabulary.node_attributes)
        return torch.cat([types, *values, self.extra_node_features(states)], -1)

    def graph_features(self, states: GraphStates) -> Tensor:
        """Return the numbers of nodes and edges of every graph relative to N, [B, num_graph_features]."""
        n = self.env.vocabulary.max_nodes
        num_edges = states.has_edge.flatten(1).sum(1)
        return torch.stack([states.num_nodes / n, num_edges / (2 * n)], 1)

    def edge_features(self, states: GraphStates, graph: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return the features of M edges, [M, num_edge_features - 2], without the two flags of direction."""
        vocabulary = self.env.vocabulary
        edge_type = states.edge_type[graph, source, target].long()
        types = torch.nn.functional.one_hot(edge_type.clamp(min=0), len(vocabulary.edge_types)).float()
        values = _attributes(states.edge_attr[graph, source, target], vocabulary.edge_attributes)
        order = states.edge_order[graph, source, target].float()[:, None] / vocabulary.max_nodes
        return torch.cat([types, *values, order], -1)

    def pair_features(self, states: GraphStates) -> Tensor:
        """Return structural features of every pair of nodes, [B, N, N, num_pair_features].

        Reachability, and the numbers of paths of length two along, against and through common neighbours, per N.
        """
        edge = states.has_edge.float()
        back = edge.transpose(1, 2)
        n = edge.shape[-1]
        two_steps = edge @ edge
        return torch.stack(
            [states.reach.float(), two_steps / n, two_steps.transpose(1, 2) / n, edge @ back / n, back @ edge / n], -1
        )


def _one_hot(types: Tensor, num_types: int) -> Tensor:
    """Return types [...] as [..., num_types + 1]; the last slot stands for "absent"."""
    return torch.nn.functional.one_hot(types.long() % (num_types + 1), num_types + 1).float()


def _attributes(values: Tensor, attributes: tuple[Attribute, ...]) -> list[Tensor]:
    """Return every attribute [..., A] as one-hot with a slot for "unset"."""
    return [_one_hot(values[..., a], len(attribute.values)) for a, attribute in enumerate(attributes)]
