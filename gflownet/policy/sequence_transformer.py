"""A transformer over named places, such as the words of a sequence, each a token.

Letters: B states, N places, D width, C columns of an action type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.policy.config import ModelConfig
from gflownet.policy.layers import AttentionLayer, PlaceCodes, check_fixed_nodes
from gflownet.policy.network import PolicyNetwork

_Encoding = tuple[Tensor, Tensor]


class SequenceTransformerPolicy(PolicyNetwork):
    """Attention between all places and one extra token for the conditioning; places have positional embeddings.

    Raises:
        UserError: the environment adds nodes or edges.
        ValueError: the width is not a multiple of the number of heads.
    """

    layout = DenseLayout

    def __init__(self, context: GraphBuildingEnvContext, config: ModelConfig) -> None:
        super().__init__()
        check_fixed_nodes(context, name="sequence_transformer", places_only=True)
        width = config.num_emb
        if width % config.num_heads:
            raise ValueError(f"model.num_emb: expected a multiple of num_heads={config.num_heads}, got {width}")
        self.context, self.codes = context, PlaceCodes(context)
        # A code identifies a value at a place, so the table contains the positional embeddings.
        self.embed = nn.Embedding(self.codes.num_codes, width)
        self.condition = nn.Linear(context.num_cond_dim, width)
        layers = (AttentionLayer(width, config.num_heads, is_compiled=config.compile) for _ in range(config.num_layers))
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.heads = nn.ModuleDict(
            {kind.field_name: nn.Linear(width, context.num_columns[kind]) for kind in context.shown_types}
        )
        self.number = nn.Linear(width, 1)

    def encode(self, batch: Batch, conditioning: Tensor) -> _Encoding:
        """Return embeddings of places [B, N, D] and of the whole state [B, D]."""
        places = self.embed(self.codes(batch))
        tokens = torch.cat([places, self.condition(conditioning)[:, None]], 1)
        embeddings = self.norm(self.layers(tokens))
        num_nodes, num_attributes = batch["node_attr"].shape[1:]
        nodes = embeddings[:, :-1].unflatten(1, (num_nodes, num_attributes)).sum(2)
        return nodes, embeddings[:, -1]

    def action_logits(self, kinds: Sequence[GraphActionType], batch: Batch, encoding: _Encoding) -> list[Tensor]:
        """Return [B, R, C] for each action type: Stop from the whole state, others from each place."""
        nodes, state = encoding
        sources = [state[:, None] if kind == GraphActionType.Stop else nodes for kind in kinds]
        return [self.heads[kind.field_name](source) for kind, source in zip(kinds, sources, strict=True)]

    def state_flow(self, encoding: _Encoding) -> Tensor:
        """Return one scalar per state, [B]."""
        return self.number(encoding[1]).squeeze(1)
