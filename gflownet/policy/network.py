"""The form shared by the built-in policy networks: an encoder of states, then heads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import TwoWayPolicy


class PolicyNetwork(TwoWayPolicy):
    """Encodes states once and derives forward logits, backward logits and the state flow from the encoding.

    A subclass sets `self.context` and defines `encode`, `action_logits` and `state_flow`.
    """

    context: GraphBuildingEnvContext

    @abstractmethod
    def encode(self, batch: Batch, conditioning: Tensor) -> Any:
        """Return the encoding of B states under their conditioning [B, C]."""

    @abstractmethod
    def action_logits(self, kinds: Sequence[GraphActionType], batch: Batch, encoding: Any) -> list[Tensor]:
        """Return the logits of each action type: [B, R, C] in a dense batch, [M, C] in a sparse one."""

    @abstractmethod
    def state_flow(self, encoding: Any) -> Tensor:
        """Return one scalar per state, [B], for objectives with state flows."""

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the distributions over legal forward actions and one scalar per state, [B]."""
        encoding = self.encode(batch, conditioning)
        return self._forward_distributions(batch, encoding), self.state_flow(encoding)

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the forward and backward distributions and one scalar per state, [B], from one evaluation."""
        encoding, kinds = self.encode(batch, conditioning), self.context.backward_types
        backward = self.context.backward_categorical(batch, self.action_logits(kinds, batch, encoding))
        return self._forward_distributions(batch, encoding), backward, self.state_flow(encoding)

    def _forward_distributions(self, batch: Batch, encoding: Any) -> GraphActionCategorical:
        logits = self.action_logits(self.context.action_types, batch, encoding)
        return self.context.categorical(batch, logits)
