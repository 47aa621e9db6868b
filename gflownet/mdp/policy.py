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

# A policy, or whatever answers for it: a worker's proxy, a policy on another device.
PolicyFunction = Callable[[Batch, Tensor], tuple[GraphActionCategorical, Tensor]]


class Policy(nn.Module, Configurable, ABC):
    """Maps B encoded states and what they are conditioned on to a distribution over their legal actions."""

    layout: ClassVar[type[BatchLayout]] = SparseLayout  # how it reads a batch: the context's `with_layout` takes it

    @abstractmethod
    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the distributions and one number per state, [B], for objectives that learn state flows.

        Args:
            batch: what `GraphBuildingEnvContext.to_batch` returns.
            conditioning: [B, C] float32.
        """


class TwoWayPolicy(Policy):
    """A policy that can say, from one evaluation, where a state leads and where it came from."""

    @abstractmethod
    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the forward and the backward distributions (context.with_backward) and numbers, from one evaluation.

        Raises:
            ValueError: the context shows no backward actions.
        """
