"""The contract of a policy network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.plugins import Configurable

# A policy, a worker's proxy of one, or a policy on another device.
PolicyFunction = Callable[[Batch, Tensor], tuple[GraphActionCategorical, Tensor]]


class Policy(nn.Module, Configurable, ABC):
    """Maps B encoded states and their conditioning to distributions over their legal actions."""

    layout: ClassVar[type[BatchLayout]] = SparseLayout  # of its batches, for `with_layout` of the context

    @abstractmethod
    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the distributions and one scalar per state, [B], for objectives that learn state flows.

        Args:
            batch: result of `GraphBuildingEnvContext.to_batch`.
            conditioning: [B, C] float32.
        """


class TwoWayPolicy(Policy):
    """A policy with forward and backward distributions from one evaluation."""

    @abstractmethod
    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the forward and the backward distributions and the scalars of `forward`.

        Raises:
            ValueError: the context was made without `with_backward`.
        """
