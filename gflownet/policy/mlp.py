"""A multilayer perceptron over states with a fixed set of nodes.

Letters: B states, D width, C conditioning features, A logits of all action types.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import TwoWayPolicy
from gflownet.policy.compiled import CompilableLayer
from gflownet.policy.config import ModelConfig
from gflownet.policy.fixed_nodes import PlaceCodes, check_fixed_nodes, rows_and_columns


class MLPPolicy(TwoWayPolicy):
    """`model.num_layers` hidden layers of width `model.num_emb` over what lies where, one logit per place and value.

    Raises:
        UserError: the environment's states have no fixed set of nodes.
    """

    layout = DenseLayout

    def __init__(self, context: GraphBuildingEnvContext, config: ModelConfig) -> None:
        super().__init__()
        check_fixed_nodes(context, name="mlp", places_only=False)
        self.context, width = context, config.num_emb
        self.codes = PlaceCodes(context)
        # The first layer of one-hot features: a sum of rows of its weights.
        self.embed = nn.EmbeddingBag(self.codes.num_codes, width, mode="sum")
        nn.init.normal_(self.embed.weight, std=self.codes.num_places**-0.5)
        self.condition = nn.Linear(context.num_cond_dim, width)
        self.hidden = _HiddenLayers(config.num_layers - 1, width, is_compiled=config.compile)
        sizes = [rows * columns for rows, columns in rows_and_columns(context, context.shown_types)]
        self.logits = nn.Linear(width, sum(sizes))
        self.number = nn.Linear(width, 1)

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the distributions over legal actions and one number per state, [B]."""
        read = self._read(batch, conditioning)
        forward = self.context.categorical(batch, self._logits(read)[: len(self.context.action_types)])
        return forward, self.number(read).squeeze(1)

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the forward and the backward distributions and one number per state, from one evaluation."""
        read = self._read(batch, conditioning)
        logits, num_forward = self._logits(read), len(self.context.action_types)
        backward = self.context.backward_categorical(batch, logits[num_forward:])
        return self.context.categorical(batch, logits[:num_forward]), backward, self.number(read).squeeze(1)

    def _read(self, batch: Batch, conditioning: Tensor) -> Tensor:
        """Return what the hidden layers make of the states, [B, D]."""
        return self.hidden(self.embed(self.codes(batch)) + self.condition(conditioning))

    def _logits(self, read: Tensor) -> Sequence[Tensor]:
        """Return [B, R, C] of every action type that is shown."""
        return split_logits(self.context, self.logits(read), self.context.shown_types)


class _HiddenLayers(CompilableLayer):
    """[B, D] -> [B, D]: what comes after the first layer, from the nonlinearity of that to the last."""

    def __init__(self, num_layers: int, width: int, *, is_compiled: bool) -> None:
        super().__init__(is_compiled=is_compiled)
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations of the last layer."""
        for layer in self.linear:
            x = layer(x.relu())
        return x.relu()


def split_logits(
    context: GraphBuildingEnvContext, logits: Tensor, kinds: Sequence[GraphActionType]
) -> Sequence[Tensor]:
    """Return logits [B, A] of all types side by side as one tensor [B, R, C] per type."""
    shapes = rows_and_columns(context, kinds)
    parts = torch.split(logits, [rows * columns for rows, columns in shapes], 1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]
