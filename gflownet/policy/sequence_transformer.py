"""A transformer over named places, such as the words of a sequence, each a token.

Letters: B states, N places, D width, C columns of an action type.
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
from gflownet.policy.attention import AttentionLayer
from gflownet.policy.config import ModelConfig
from gflownet.policy.fixed_nodes import PlaceCodes, check_fixed_nodes

_Read = tuple[Tensor, Tensor]


class SequenceTransformerPolicy(TwoWayPolicy):
    """Attention between all places and one more token, which carries the conditioning; a place is known by its number.

    Raises:
        UserError: the environment's states have nodes or edges to add.
        ValueError: the width is no multiple of the number of heads.
    """

    layout = DenseLayout

    def __init__(self, context: GraphBuildingEnvContext, config: ModelConfig) -> None:
        super().__init__()
        check_fixed_nodes(context, name="sequence_transformer", places_only=True)
        width = config.num_emb
        if width % config.num_heads:
            raise ValueError(f"model.num_emb: expected a multiple of num_heads={config.num_heads}, got {width}")
        self.context, self.codes = context, PlaceCodes(context)
        # A code is a value at a place, so that the table holds the places' embeddings, too.
        self.embed = nn.Embedding(self.codes.num_codes, width)
        self.condition = nn.Linear(context.num_cond_dim, width)
        layers = (AttentionLayer(width, config.num_heads, is_compiled=config.compile) for _ in range(config.num_layers))
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.heads = nn.ModuleDict(
            {kind.field_name: nn.Linear(width, context.num_columns[kind]) for kind in context.shown_types}
        )
        self.number = nn.Linear(width, 1)

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the distributions over legal actions and one number per state, [B]."""
        read = self._read(batch, conditioning)
        forward = self.context.categorical(batch, self._logits(self.context.action_types, read))
        return forward, self.number(read[1]).squeeze(1)

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return the forward and the backward distributions and one number per state, from one evaluation."""
        read = self._read(batch, conditioning)
        forward = self.context.categorical(batch, self._logits(self.context.action_types, read))
        backward = self.context.backward_categorical(batch, self._logits(self.context.backward_types, read))
        return forward, backward, self.number(read[1]).squeeze(1)

    def _read(self, batch: Batch, conditioning: Tensor) -> _Read:
        """Return embeddings of places [B, N, D] and of the whole state [B, D]."""
        places = self.embed(self.codes(batch))
        tokens = torch.cat([places, self.condition(conditioning)[:, None]], 1)
        read = self.norm(self.layers(tokens))
        num_nodes, num_attributes = batch["node_attr"].shape[1:]
        nodes = read[:, :-1].unflatten(1, (num_nodes, num_attributes)).sum(2)
        return nodes, read[:, -1]

    def _logits(self, kinds: Sequence[GraphActionType], read: _Read) -> list[Tensor]:
        """Return [B, R, C] of every action type: of Stop from the whole state, of others place by place."""
        nodes, whole = read
        sources = [whole[:, None] if kind == GraphActionType.Stop else nodes for kind in kinds]
        return [self.heads[kind.field_name](source) for kind, source in zip(kinds, sources, strict=True)]
