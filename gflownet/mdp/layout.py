"""Batches of encoded states, and the contract of the sparse and the dense layout."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.features import StateFeatures
from gflownet.mdp.states import GraphStates

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


class BatchLayout(ABC):
    """Encodes states as a batch and maps an environment's actions to (type, row, column) indices and back."""

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
    def part(self, batch: Batch, start: int, stop: int) -> Batch:
        """Return graphs `start` to `stop` - 1 as a batch with arrays of the same width."""

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
        return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    copied: Any = copy.copy(batch)
    return copied.to(device)
