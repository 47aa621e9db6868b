"""A graph transformer on torch_geometric: sum aggregation and attention over edges, and a virtual node.

Letters: B graphs, V nodes of the batch, D width, C conditioning.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gflownet.mdp.action import PAIR_TYPES, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.policy.config import ModelConfig
from gflownet.policy.layers import CompilableLayer, two_layers
from gflownet.policy.network import PolicyNetwork

_TO_VIRTUAL, _FROM_VIRTUAL = 0, 1  # edge types between a node and the virtual node


_Encoding = tuple[Tensor, Tensor]


class GraphTransformerPolicy(PolicyNetwork):
    """Message passing along edges in both directions; one head per action type.

    The virtual node starts from the conditioning and the features of the graph and is connected to every node.
    """

    layout = SparseLayout

    def __init__(self, context: GraphBuildingEnvContext, config: ModelConfig) -> None:
        super().__init__()
        width = config.num_emb
        if width % config.num_heads:
            raise ValueError(f"model.num_emb: expected a multiple of num_heads={config.num_heads}, got {width}")
        self.context = context
        self.directed = context.env.vocabulary.directed
        self.embed_node = nn.Linear(context.num_node_features, width)
        self.embed_edge = nn.Linear(context.num_edge_features, width)
        self.embed_graph = two_layers(context.num_cond_dim + context.num_graph_features, width, width)
        self.virtual_edge = nn.Parameter(torch.randn(2, width) * width**-0.5)
        self.layers = nn.ModuleList(
            _Layer(width, config.num_heads, is_compiled=config.compile) for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleDict()
        for kind in context.shown_types:
            num_inputs = width * (1 if kind == GraphActionType.Stop else 3 if kind in PAIR_TYPES else 2)
            num_inputs += self._num_row_features(kind)
            self.heads[kind.field_name] = two_layers(num_inputs, width, context.num_columns[kind])
        self.graph_head = two_layers(width, width, 1)

    def action_logits(self, kinds: Sequence[GraphActionType], batch: Batch, encoding: _Encoding) -> list[Tensor]:
        """Return [M, C] for each action type, one row per legal position."""
        return [self.heads[kind.field_name](self._row(kind, batch, *encoding)) for kind in kinds]

    def state_flow(self, encoding: _Encoding) -> Tensor:
        """Return one scalar per state, [B]."""
        return self.graph_head(encoding[1]).squeeze(1)

    def _num_row_features(self, kind: GraphActionType) -> int:
        if kind in PAIR_TYPES - {GraphActionType.AddEdge}:
            return self.context.num_edge_features - 2  # without the two flags of direction
        return self.context.num_pair_features if kind == GraphActionType.AddEdge else 0

    def encode(self, batch: Batch, conditioning: Tensor) -> _Encoding:
        """Return embeddings of nodes [V, D] and of graphs [B, D]."""
        num_nodes, graph = batch["x"].shape[0], batch["batch"]
        virtual = self.embed_graph(torch.cat([conditioning, batch["graph_attr"]], 1))
        h = torch.cat([self.embed_node(batch["x"]), virtual])
        node, hub = torch.arange(num_nodes, device=graph.device), graph + num_nodes
        edge_index = torch.cat([batch["edge_index"], torch.stack([node, hub]), torch.stack([hub, node])], 1)
        hub_edges = self.virtual_edge.repeat_interleave(num_nodes, 0)
        edges = torch.cat([self.embed_edge(batch["edge_attr"]), hub_edges])
        for layer in self.layers:
            h = layer(h, edge_index, edges)
        h = self.norm(h)
        return h[:num_nodes], h[num_nodes:]

    def _row(self, kind: GraphActionType, batch: Batch, nodes: Tensor, graphs: Tensor) -> Tensor:
        """Return the input of a head for every row of an action type."""
        index = batch[f"{kind.field_name}_index"]
        if kind == GraphActionType.Stop:
            return graphs[batch["batch"][index]]  # independent of the order of nodes
        if kind not in PAIR_TYPES:
            return torch.cat([nodes[index], graphs[batch["batch"][index]]], 1)
        source, target = nodes[index[0]], nodes[index[1]]
        if not self.directed:
            source, target = source + target, (source - target).abs()
        return torch.cat([source, target, graphs[batch["batch"][index[0]]], batch[f"{kind.field_name}_attr"]], 1)


class _Layer(CompilableLayer):
    """A residual layer: sum and attention over the same edges, then a feed-forward block."""

    def __init__(self, width: int, num_heads: int, *, is_compiled: bool) -> None:
        from torch_geometric.nn import GINEConv, TransformerConv  # takes two CPU seconds

        super().__init__(is_compiled=is_compiled)
        self.norm_messages, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.count = GINEConv(nn.Linear(width, width))
        self.attend = TransformerConv(width, width // num_heads, heads=num_heads, edge_dim=width)
        self.merge = nn.Linear(2 * width, width)
        self.feed = two_layers(width, 2 * width, width)

    def forward(self, h: Tensor, edge_index: Tensor, edges: Tensor) -> Tensor:
        z = self.norm_messages(h)
        messages = torch.cat([self.count(z, edge_index, edges), self.attend(z, edge_index, edges)], 1)
        h = h + self.merge(nn.functional.silu(messages))
        return h + self.feed(self.norm_feed(h))
