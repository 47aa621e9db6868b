"""A multilayer perceptron over states with a fixed set of nodes.

Letters: B states, D width, C conditioning features, A logits of all action types.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.policy.config import ModelConfig
from gflownet.policy.layers import CompilableLayer, PlaceCodes, check_fixed_nodes, rows_and_columns
from gflownet.policy.network import PolicyNetwork

_Encoding = tuple[Tensor, Sequence[Tensor]]


class MLPPolicy(PolicyNetwork):
    """`model.num_layers` hidden layers of width `model.num_emb` over the values at all places.

    Raises:
        UserError: the number of nodes is not fixed.
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

    def encode(self, batch: Batch, conditioning: Tensor) -> _Encoding:
        """Return the last hidden layer, [B, D], and the logits of each shown action type, [B, R, C]."""
        hidden = self.hidden(self.embed(self.codes(batch)) + self.condition(conditioning))
        return hidden, split_logits(self.context, self.logits(hidden), self.context.shown_types)

    def action_logits(self, kinds: Sequence[GraphActionType], batch: Batch, encoding: _Encoding) -> list[Tensor]:
        """Return [B, R, C] for each action type."""
        logits = dict(zip(self.context.shown_types, encoding[1], strict=True))
        return [logits[kind] for kind in kinds]

    def state_flow(self, encoding: _Encoding) -> Tensor:
        """Return one scalar per state, [B]."""
        return self.number(encoding[0]).squeeze(1)


class _HiddenLayers(CompilableLayer):
    """[B, D] -> [B, D]: the nonlinearity of the first layer and all later layers."""

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
    """Split logits [B, A] of all action types into one tensor [B, R, C] per type."""
    shapes = rows_and_columns(context, kinds)
    parts = logits.split_with_sizes([rows * columns for rows, columns in shapes], 1)  # not wrapped in Python
    return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
