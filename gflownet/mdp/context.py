"""What a policy sees and says: states as batches of tensors, actions as (type, row, column) indices."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.layout import Batch, BatchLayout, masks_of
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import Attribute, GraphStates
from gflownet.plugins import Configurable

if TYPE_CHECKING:
    from torch_geometric.data import Data

NUM_GRAPH_FEATURES = 2
NUM_PAIR_FEATURES = 5


class GraphBuildingEnvContext(Configurable):
    """Encodes the states of an environment for a policy; it knows none of the rules, only the environment's masks.

    A new MDP with more to show than its vocabulary overrides `extra_node_features` and `num_extra_node_features`.
    """

    num_extra_node_features = 0

    def __init__(self, env: Environment, *, num_cond_dim: int = 1) -> None:
        self.env = env
        self.num_cond_dim = num_cond_dim
        self.action_types = env.forward_types
        self.backward_types: tuple[GraphActionType, ...] = ()  # those of a learned backward policy
        vocabulary = env.vocabulary
        kinds = (*env.forward_types, *env.backward_types)
        self.num_columns = {kind: vocabulary.num_columns(kind) for kind in kinds}
        attributes = sum(len(a.values) + 1 for a in vocabulary.node_attributes)
        self.num_node_features = len(vocabulary.node_types) + 1 + attributes + self.num_extra_node_features
        attributes = sum(len(a.values) + 1 for a in vocabulary.edge_attributes)
        self.num_edge_features = len(vocabulary.edge_types) + 2 + attributes + 1
        self.num_graph_features = NUM_GRAPH_FEATURES
        self.num_pair_features = NUM_PAIR_FEATURES
        self.layout: BatchLayout = SparseLayout(self)

    @classmethod
    def from_config(
        cls, config: Any, *, input_sizes: Sequence[int], output_sizes: Sequence[int], num_cond_dim: int
    ) -> GraphBuildingEnvContext:
        """Return the context that `env.name=module:Class` asks for; a user's own MDP defines it.

        Args:
            config: the options under `env`; `config.options` are those of the class's own `Config`.
            input_sizes: widths of the task's inputs.
            output_sizes: widths of the task's outputs.
            num_cond_dim: width of what a policy is conditioned on.
        """
        raise ValueError(f"env.name: expected a context with a from_config class method, {cls.__name__} has none")

    def extra_node_features(self, states: GraphStates) -> Tensor:
        """Return further features of every node, [B, N, num_extra_node_features] float32."""
        return torch.zeros(*states.node_type.shape, 0)

    def with_layout(self, layout: type[BatchLayout]) -> GraphBuildingEnvContext:
        """Return the same context with batches laid out as a policy wants them (`Policy.layout`)."""
        twin = copy.copy(self)
        twin.layout = layout(twin)
        return twin

    def with_backward(self) -> GraphBuildingEnvContext:
        """Return the same context with batches that show backward actions, too: what a learned P_B needs."""
        twin = self.with_layout(type(self.layout))
        twin.backward_types = self.env.backward_types
        return twin

    @property
    def shown_types(self) -> tuple[GraphActionType, ...]:
        """Return the action types whose rows a batch shows."""
        return (*self.action_types, *self.backward_types)

    def shown_masks(self, states: GraphStates) -> dict[GraphActionType, Tensor]:
        """Return the masks of those types, each [B, R, C]."""
        masks = dict(self.env.forward_masks(states).masks)
        if self.backward_types:
            masks |= self.env.backward_masks(states).masks
        return masks

    def to_batch(self, states: GraphStates) -> Batch:
        """Return all states as one batch, in this context's layout."""
        return self.layout.encode(states)

    def to_data(self, states: GraphStates, index: int) -> Data:
        """Return one state as torch_geometric `Data`: what `Batch.from_data_list` collates into a sparse batch."""
        from torch_geometric.data import Data

        batch: Any = SparseLayout(self).encode(states[index : index + 1])
        return Data(**{key: batch[key] for key in batch.keys() if key not in ("batch", "ptr")})  # noqa: SIM118

    def masks(self, batch: Batch) -> list[Tensor]:
        """Return the masks of the batch's rows, one per action type: [M, C], of a dense batch [B, R, C]."""
        return masks_of(batch, self.action_types)

    def categorical(self, batch: Batch, logits: Sequence[Tensor]) -> GraphActionCategorical:
        """Return the distributions over forward actions that logits of all rows mean, one tensor per action type."""
        return self.layout.categorical(batch, logits, self.action_types)

    def backward_categorical(self, batch: Batch, logits: Sequence[Tensor]) -> GraphActionCategorical:
        """Return the distributions over backward actions; initial states have nothing to undo, and none.

        Raises:
            ValueError: the batches of this context do not show them.
        """
        if not self.backward_types:
            raise ValueError("backward distributions: expected a context that shows backward actions (with_backward)")
        return self.layout.categorical(batch, logits, self.backward_types)

    def to_indices(
        self, batch: Batch, actions: ActionBatch, *, graphs: Tensor | None = None, backward: bool = False
    ) -> Tensor:
        """Return the (type, row, column) of legal actions, [A, 3] int64; rows count within a graph.

        Args:
            batch: what `to_batch` returned.
            actions: A of them.
            graphs: which graph of the batch each action is for, [A]; one for each, in order, if not given.
            backward: whether they are backward actions.
        """
        kinds = self.backward_types if backward else self.action_types
        return self.layout.to_indices(batch, actions, graphs, kinds)

    def from_indices(
        self, batch: Batch, indices: Tensor, *, graphs: Tensor | None = None, backward: bool = False
    ) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [A, 3]; the rest as in `to_indices`.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        kinds = self.backward_types if backward else self.action_types
        return self.layout.from_indices(batch, indices, graphs, kinds)

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

    def node_features(self, states: GraphStates) -> Tensor:
        """Return the features of every node, [B, N, num_node_features] float32."""
        types = _one_hot(states.node_type, len(self.env.vocabulary.node_types))
        values = _attributes(states.node_attr, self.env.vocabulary.node_attributes)
        return torch.cat([types, *values, self.extra_node_features(states)], -1)

    def graph_features(self, states: GraphStates) -> Tensor:
        """Return the features of every graph, [B, num_graph_features]: how full it is."""
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
        """Return how two nodes stand to each other, [B, N, N, num_pair_features]: what their embeddings cannot tell.

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
