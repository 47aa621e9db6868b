"""Encoding of states for a policy: features, masks, batches, and the contract of the sparse and the dense layout."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import Attribute, GraphStates

NUM_GRAPH_FEATURES = 2
NUM_PAIR_FEATURES = 5

Kinds = Sequence[GraphActionType]


class Batch(Protocol):
    """Named tensors of a batch of states: a dict in the dense layout, a torch_geometric `Batch` in the sparse one."""

    def __getitem__(self, key: str, /) -> Any:
        """Return the tensor with this name."""
        ...

    def __contains__(self, key: str, /) -> bool:
        """Return whether there is a tensor with this name."""
        ...

    def keys(self) -> Iterable[str]:
        """Return all names."""
        ...


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


class BatchLayout(ABC):
    """Encodes states as a batch and maps an environment's actions to (type, row, column) indices and back."""

    runs_on_device = False  # whether states on a GPU are encoded there without waiting for it

    def __init__(self, context: StateFeatures) -> None:
        self.context = context

    @abstractmethod
    def encode(self, states: GraphStates) -> Batch:
        """Return the states as a batch for the policy."""

    @abstractmethod
    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions over legal actions for logits of every row, one tensor per action type."""

    @abstractmethod
    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions on `graphs` [A] (None: one per graph), [A, 3] int64."""

    @abstractmethod
    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None, kinds: Kinds) -> ActionBatch:
        """Return the environment's actions at (type, row, column) indices [A, 3] of `graphs` [A]."""

    @abstractmethod
    def merge(self, batches: Sequence[Batch]) -> Batch:
        """Return the graphs of all batches as one batch."""

    @abstractmethod
    def split(
        self, categorical: GraphActionCategorical, batches: Sequence[Batch], kinds: Kinds
    ) -> list[GraphActionCategorical]:
        """Return each batch's distributions over actions of these types, from the merged ones."""


def masks_of(batch: Batch, kinds: Kinds) -> list[Tensor]:
    """Return the masks of the batch's rows, one per action type."""
    return [batch[f"{kind.field_name}_mask"] for kind in kinds]


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return a copy of the batch with its tensors on a device; `Batch.to` of torch_geometric moves the batch itself."""
    if isinstance(batch, dict):
        return {key: sent(value, device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    copied: Any = copy.copy(batch)
    return copied.to(device)


def _one_hot(types: Tensor, num_types: int) -> Tensor:
    """Return types [...] as [..., num_types + 1]; the last slot stands for "absent"."""
    return torch.nn.functional.one_hot(types.long() % (num_types + 1), num_types + 1).float()


def _attributes(values: Tensor, attributes: tuple[Attribute, ...]) -> list[Tensor]:
    """Return every attribute [..., A] as one-hot with a slot for "unset"."""
    return [_one_hot(values[..., a], len(attribute.values)) for a, attribute in enumerate(attributes)]
