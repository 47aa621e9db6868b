"""What a policy sees and says: states as torch_geometric batches, actions as (type, row, column) indices, masks.

A batch holds, for every action type, only the rows on which some column is legal: `add_node_index` [M] or, on pairs,
`add_edge_index` [2, M] (nodes of the batch), `add_node_mask` [M, C], and `add_node_row` [M] (the environment's row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.states import Attribute, GraphStates

NUM_GRAPH_FEATURES = 2
NUM_PAIR_FEATURES = 5


class GraphBuildingEnvContext:
    """Encodes the states of an environment for a policy; it knows none of the rules, only the environment's masks.

    A new MDP with more to show than its vocabulary overrides `extra_node_features` and `num_extra_node_features`.
    """

    num_extra_node_features = 0

    def __init__(self, env: Environment, *, num_cond_dim: int = 1) -> None:
        self.env = env
        self.num_cond_dim = num_cond_dim
        self.action_types = env.forward_types
        vocabulary = env.vocabulary
        self.num_columns = {kind: vocabulary.num_columns(kind) for kind in self.action_types}
        attributes = sum(len(a.values) + 1 for a in vocabulary.node_attributes)
        self.num_node_features = len(vocabulary.node_types) + 1 + attributes + self.num_extra_node_features
        attributes = sum(len(a.values) + 1 for a in vocabulary.edge_attributes)
        self.num_edge_features = len(vocabulary.edge_types) + 2 + attributes + 1
        self.num_graph_features = NUM_GRAPH_FEATURES
        self.num_pair_features = NUM_PAIR_FEATURES

    @classmethod
    def from_config(
        cls, config: Any, *, input_sizes: Sequence[int], output_sizes: Sequence[int], num_cond_dim: int
    ) -> GraphBuildingEnvContext:
        """Return the context that `env.name=module:Class` asks for; a user's own MDP defines it.

        Args:
            config: the options under `env`.
            input_sizes: widths of the task's inputs.
            output_sizes: widths of the task's outputs.
            num_cond_dim: width of what a policy is conditioned on.
        """
        raise ValueError(f"env.name: expected a context with a from_config class method, {cls.__name__} has none")

    def extra_node_features(self, states: GraphStates) -> Tensor:
        """Return further features of every node, [B, N, num_extra_node_features] float32."""
        return torch.zeros(*states.node_type.shape, 0)

    def to_batch(self, states: GraphStates) -> Batch:
        """Return all states as one torch_geometric batch; an empty graph is shown as a single blank node."""
        blank = (states.num_nodes == 0)[:, None] & (torch.arange(self.env.vocabulary.max_nodes) == 0)
        graph, node = (states.exists | blank).nonzero(as_tuple=True)
        node_id = torch.full(states.node_type.shape, -1, dtype=torch.int64)
        node_id[graph, node] = torch.arange(len(graph))
        counts = states.num_nodes.clamp(min=1)
        fields = {
            "x": self._node_features(states)[graph, node],
            "batch": graph,
            "ptr": torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            "graph_attr": self._graph_features(states),
            **self._edges(states, node_id),
            **self._actions(states, node_id),
        }
        return Batch(**fields)

    def to_data(self, states: GraphStates, index: int) -> Data:
        """Return one state as torch_geometric `Data`: what `Batch.from_data_list` collates into `to_batch`'s batch."""
        batch: Any = self.to_batch(states[index : index + 1])
        return Data(**{key: batch[key] for key in batch.keys() if key not in ("batch", "ptr")})  # noqa: SIM118

    def masks(self, batch: Batch) -> list[Tensor]:
        """Return the masks of the batch's rows, one [M, C] per action type."""
        return [batch[f"{kind.field_name}_mask"] for kind in self.action_types]

    def row_graphs(self, batch: Batch) -> list[Tensor]:
        """Return the graph of every row, one [M] int64 per action type, ascending."""
        return [batch["batch"][self._anchor(batch, kind)] for kind in self.action_types]

    def to_indices(self, batch: Batch, actions: ActionBatch) -> Tensor:
        """Return the (type, row, column) of one legal action per graph, [B, 3] int64; rows count within a graph."""
        indices = torch.stack([torch.zeros_like(actions.kind), torch.zeros_like(actions.row), actions.column], 1)
        for position, (kind, graphs) in enumerate(zip(self.action_types, self.row_graphs(batch), strict=True)):
            chosen = actions.kind == kind
            wanted = chosen[graphs] & (batch[f"{kind.field_name}_row"] == actions.row[graphs])
            start = torch.searchsorted(graphs, torch.arange(len(actions)))
            at = wanted.nonzero().squeeze(1)
            indices[graphs[at], 1] = at - start[graphs[at]]
            indices[chosen, 0] = position
        return indices

    def from_indices(self, batch: Batch, indices: Tensor) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [B, 3].

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        kind, row = torch.zeros_like(indices[:, 0]), torch.zeros_like(indices[:, 0])
        for position, (action_type, graphs) in enumerate(zip(self.action_types, self.row_graphs(batch), strict=True)):
            chosen = (indices[:, 0] == position).nonzero().squeeze(1)
            start = torch.searchsorted(graphs, chosen)
            num_rows = torch.searchsorted(graphs, chosen, right=True) - start
            outside = chosen[(indices[chosen, 1] < 0) | (indices[chosen, 1] >= num_rows)]
            if len(outside):
                graph = int(outside[0])
                raise ValueError(f"graph {graph}: expected a row of {action_type.name}, got {int(indices[graph, 1])}")
            row[chosen] = batch[f"{action_type.field_name}_row"][start + indices[chosen, 1]]
            kind[chosen] = int(action_type)
        return ActionBatch(kind, row, indices[:, 2])

    def action_to_index(self, states: GraphStates, index: int, action: GraphAction) -> tuple[int, int, int]:
        """Return the (type, row, column) of an action in words, to be taken in state `index`.

        Raises:
            ValueError: the action is not of this environment, or illegal in this state (IllegalAction).
        """
        kind, row, column = self.env.encode(action)
        if kind == GraphActionType.AddNode and action.source is None and int(states.num_nodes[index]):
            raise IllegalAction(f"graph {index}: {action} is illegal: a source is needed once the graph has nodes")
        one = states[index : index + 1]
        actions = ActionBatch(*(torch.tensor([value]) for value in (kind, row, column)))
        self.env.step(one, actions)  # an illegal action has no index: say which rule it breaks
        return tuple(self.to_indices(self.to_batch(one), actions)[0].tolist())

    def index_to_action(self, states: GraphStates, index: int, action_index: tuple[int, int, int]) -> GraphAction:
        """Return the action in words behind a (type, row, column) index in state `index`."""
        one = states[index : index + 1]
        actions = self.from_indices(self.to_batch(one), torch.tensor([action_index]))
        return self.env.decode(one, 0, actions)

    def _anchor(self, batch: Batch, kind: GraphActionType) -> Tensor:
        index = batch[f"{kind.field_name}_index"]
        return index[0] if kind in PAIR_TYPES else index

    def _node_features(self, states: GraphStates) -> Tensor:
        types = _one_hot(states.node_type, len(self.env.vocabulary.node_types))
        values = _attributes(states.node_attr, self.env.vocabulary.node_attributes)
        return torch.cat([types, *values, self.extra_node_features(states)], -1)

    def _graph_features(self, states: GraphStates) -> Tensor:
        n = self.env.vocabulary.max_nodes
        num_edges = states.has_edge.flatten(1).sum(1)
        return torch.stack([states.num_nodes / n, num_edges / (2 * n)], 1)

    def _edge_features(self, states: GraphStates, graph: Tensor, source: Tensor, target: Tensor) -> Tensor:
        vocabulary = self.env.vocabulary
        edge_type = states.edge_type[graph, source, target].long()
        types = torch.nn.functional.one_hot(edge_type.clamp(min=0), len(vocabulary.edge_types)).float()
        values = _attributes(states.edge_attr[graph, source, target], vocabulary.edge_attributes)
        order = states.edge_order[graph, source, target].float()[:, None] / vocabulary.max_nodes
        return torch.cat([types, *values, order], -1)

    def _edges(self, states: GraphStates, node_id: Tensor) -> dict[str, Tensor]:
        """Return every edge in both directions, one after the other, with a flag for the direction."""
        upper = states.has_edge if self.env.vocabulary.directed else states.has_edge.triu(1)
        graph, source, target = upper.nonzero(as_tuple=True)
        features = self._edge_features(states, graph, source, target)
        ends = torch.stack([node_id[graph, source], node_id[graph, target]])
        edge_index = torch.stack([ends, ends.flip(0)], -1).reshape(2, -1)
        along = torch.ones(len(features), 1)
        backwards = 1 - along if self.env.vocabulary.directed else along
        there = torch.cat([features, along, 1 - along], 1)
        back = torch.cat([features, backwards, 1 - backwards], 1)
        return {"edge_index": edge_index, "edge_attr": torch.stack([there, back], 1).reshape(-1, there.shape[1])}

    def _actions(self, states: GraphStates, node_id: Tensor) -> dict[str, Tensor]:
        n, masks, fields = self.env.vocabulary.max_nodes, self.env.forward_masks(states), {}
        for kind, mask in masks.masks.items():
            graph, row = mask.any(-1).nonzero(as_tuple=True)
            name = kind.field_name
            fields[f"{name}_mask"], fields[f"{name}_row"] = mask[graph, row], row
            if kind in PAIR_TYPES:
                fields[f"{name}_index"] = torch.stack([node_id[graph, row // n], node_id[graph, row % n]])
            else:
                fields[f"{name}_index"] = node_id[graph, row]
            if kind == GraphActionType.SetEdgeAttr:
                fields[f"{name}_attr"] = self._edge_features(states, graph, row // n, row % n)
            elif kind == GraphActionType.AddEdge:
                fields[f"{name}_attr"] = _pair_features(states)[graph, row // n, row % n]
        return fields


def _pair_features(states: GraphStates) -> Tensor:
    """Return how two nodes stand to each other, [B, N, N, NUM_PAIR_FEATURES]: what node embeddings alone cannot tell.

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
    """Return types [...] as [..., num_types + 1]; the last slot is "nothing there"."""
    return torch.nn.functional.one_hot(types.long() % (num_types + 1), num_types + 1).float()


def _attributes(values: Tensor, attributes: tuple[Attribute, ...]) -> list[Tensor]:
    """Return every attribute [..., A] as one-hot with a slot for "unset"."""
    return [_one_hot(values[..., a], len(attribute.values)) for a, attribute in enumerate(attributes)]
