"""A transformer over the dense arrays of small graphs, with attention between all nodes.

Letters: B graphs, n nodes of the largest graph of a batch, D width, H heads, C columns of an action type, K codes,
F facets of a node or pair, each with its own range of codes in one table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from gflownet.mdp.action import PAIR_TYPES, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.policy.config import ModelConfig
from gflownet.policy.layers import AttentionLayer, two_layers
from gflownet.policy.network import PolicyNetwork

_Encoding = tuple[Tensor, Tensor, Tensor]
_CODE_WIDTH = 16  # width of the vector of a code in the logits of pairs
_NEVER = -1e9  # attention bias of an absent node; finite, so that no row is NaN


class DenseTransformerPolicy(PolicyNetwork):
    """Every node attends to every node of its graph and to one virtual node, which carries the conditioning.

    The relation of two nodes (edges, their attributes, reachability, paths of length two) is a code. Each code has a
    learned bias per head and layer (Graphormer, Ying et al. 2021, eq. 6), and in the logits of actions on pairs a bias
    that depends on the whole graph. The cost grows with n^2; docs/benchmarks.md compares it with message passing.

    Raises:
        ValueError: the width is not a multiple of the number of heads, or the context is not in the dense layout.
    """

    layout = DenseLayout

    def __init__(self, context: GraphBuildingEnvContext, config: ModelConfig) -> None:
        super().__init__()
        width, heads, layers = config.num_emb, config.num_heads, config.num_layers
        if width % heads:
            raise ValueError(f"model.num_emb: expected a multiple of num_heads={heads}, got {width}")
        if not isinstance(context.layout, DenseLayout):
            raise ValueError("context: expected the dense layout, context.with_layout(DenseTransformerPolicy.layout)")
        self.context = context
        self.node_codes, self.pair_codes = NodeCodes(context), PairCodes(context)
        self.embed_node = nn.EmbeddingBag(self.node_codes.num_codes, width, mode="sum")
        self.embed_extra = (
            nn.Linear(context.num_extra_node_features, width) if context.num_extra_node_features else None
        )
        self.embed_graph = two_layers(context.num_cond_dim + context.num_graph_features, width, width)
        self.bias = nn.EmbeddingBag(self.pair_codes.num_codes, layers * heads, mode="sum")
        self.layers = nn.ModuleList(AttentionLayer(width, heads, is_compiled=config.compile) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleDict({kind.field_name: self._head(kind, width) for kind in context.shown_types})
        self.graph_head = two_layers(width, width, 1)
        for table in (self.embed_node, self.bias):
            nn.init.normal_(table.weight, std=0.5)

    def encode(self, batch: Batch, conditioning: Tensor) -> _Encoding:
        """Return embeddings of nodes [B, n, D] and graphs [B, D], and the codes of pairs [B, n, n, F]."""
        pairs = self.pair_codes(batch)
        tokens = self._tokens(batch, conditioning)
        for layer, bias in zip(self.layers, self._biases(batch, pairs), strict=True):
            tokens = layer(tokens, bias)
        tokens = self.norm(tokens)
        return tokens[:, :-1], tokens[:, -1], pairs

    def action_logits(self, kinds: Sequence[GraphActionType], batch: Batch, encoding: _Encoding) -> list[Tensor]:
        """Return [B, R, C] for each action type."""
        return [self.heads[kind.field_name](*encoding) for kind in kinds]

    def state_flow(self, encoding: _Encoding) -> Tensor:
        """Return one scalar per state, [B]."""
        return self.graph_head(encoding[1]).squeeze(1)

    def _head(self, kind: GraphActionType, width: int) -> nn.Module:
        num_columns = self.context.num_columns[kind]
        if kind == GraphActionType.Stop:
            return _GraphHead(width)
        if kind not in PAIR_TYPES:
            return _NodeHead(width, num_columns)
        directed = self.context.env.vocabulary.directed
        return _PairHead(width, num_columns, self.pair_codes.num_codes, symmetric=not directed)

    def _tokens(self, batch: Batch, conditioning: Tensor) -> Tensor:
        """Return the input embeddings of the nodes and, last, of the virtual node, [B, n + 1, D]."""
        codes = self.node_codes(batch)
        nodes = self.embed_node(codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
        if self.embed_extra is not None:
            nodes = nodes + self.embed_extra(batch["extra"])
        max_nodes = self.context.env.vocabulary.max_nodes
        num_edges = (batch["edge_type"] >= 0).flatten(1).sum(1)
        filled = torch.stack([batch["num_nodes_of"] / max_nodes, num_edges / (2 * max_nodes)], 1)
        virtual = self.embed_graph(torch.cat([conditioning, filled], 1))
        return torch.cat([nodes, virtual[:, None]], 1)

    def _biases(self, batch: Batch, pairs: Tensor) -> Tensor:
        """Return the bias of the attention scores of each layer, [layers, B, H, n + 1, n + 1]."""
        flat = self.bias(pairs.flatten(0, 2)).view(*pairs.shape[:3], len(self.layers), -1)
        absent = nn.functional.pad(batch["node_type"] < 0, (0, 1))
        bias = nn.functional.pad(flat.permute(3, 0, 4, 1, 2), (0, 1, 0, 1))
        return bias.masked_fill_(absent[:, None, None, :], _NEVER)


class _GraphHead(nn.Module):
    """Logits of an action on the whole graph, [B, 1, 1]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = two_layers(width, width, 1)

    def forward(self, nodes: Tensor, graphs: Tensor, pairs: Tensor) -> Tensor:
        """Return the logits from the graph embedding alone, independent of the order of nodes."""
        return self.score(graphs)[:, None]


class _NodeHead(nn.Module):
    """Logits of actions on nodes, [B, n, C]: a network of the node and the graph."""

    def __init__(self, width: int, num_columns: int) -> None:
        super().__init__()
        self.of_node, self.of_graph = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, num_columns)

    def forward(self, nodes: Tensor, graphs: Tensor, pairs: Tensor) -> Tensor:
        """Return the logits."""
        return self.score(nn.functional.silu(self.of_node(nodes) + self.of_graph(graphs)[:, None]))


class _PairHead(nn.Module):
    """Logits of actions on pairs, [B, n * n, C]: a product of the two nodes plus a bias of their codes."""

    def __init__(self, width: int, num_columns: int, num_codes: int, *, symmetric: bool) -> None:
        super().__init__()
        self.num_columns, self.symmetric = num_columns, symmetric
        self.source, self.target = nn.Linear(width, num_columns * width), nn.Linear(width, width)
        self.meaning = nn.Linear(width, num_columns * _CODE_WIDTH)
        self.code = nn.Parameter(torch.randn(_CODE_WIDTH, num_codes) * _CODE_WIDTH**-0.5)

    def forward(self, nodes: Tensor, graphs: Tensor, pairs: Tensor) -> Tensor:
        """Return the logits; those of undirected pairs do not depend on the order of the two nodes."""
        source = self.source(nodes).unflatten(2, (self.num_columns, -1)).transpose(1, 2)  # [B, C, n, D]
        scores = source @ self.target(nodes)[:, None].transpose(2, 3) / math.sqrt(source.shape[3])
        if self.symmetric:
            scores = scores + scores.transpose(2, 3)
        meanings = self.meaning(graphs).unflatten(1, (self.num_columns, -1)) @ self.code  # [B, C, K]
        codes = pairs.flatten(1)[:, None].expand(-1, self.num_columns, -1)
        bias = meanings.gather(2, codes).unflatten(2, pairs.shape[1:]).sum(-1)  # [B, C, n, n]
        return (scores + bias).flatten(2).transpose(1, 2)


_MOST_PATHS = 2  # larger counts of paths of length two have the same code


class NodeCodes:
    """Codes of a node: its type, its attributes, and its in- and out-degree per edge type."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.num_edge_types, self.directed = len(vocabulary.edge_types), vocabulary.directed
        self.has_attributes = bool(vocabulary.node_attributes)
        sizes = [len(vocabulary.node_types) + 1, *(len(a.values) + 1 for a in vocabulary.node_attributes)]
        sizes += [vocabulary.max_nodes + 1] * (self.num_edge_types * (2 if self.directed else 1))
        self.num_codes = sum(sizes)
        # Types and values start at -1, "absent".
        first = [-1] * (1 + len(vocabulary.node_attributes))
        self._starts = _starts(sizes, first=[*first, *[0] * (len(sizes) - len(first))])

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of each node, [B, n, F] int64."""
        edge_type = batch["edge_type"]
        parts = [batch["node_type"][..., None], *([batch["node_attr"]] if self.has_attributes else [])]
        for kind in range(self.num_edge_types):
            edge = edge_type == kind
            degrees = [edge.sum(1), edge.sum(2)] if self.directed else [edge.sum(1)]
            parts += [degree[..., None] for degree in degrees]
        return torch.cat(parts, -1) + _on(edge_type.device, self._starts)


class PairCodes:
    """Codes of a pair: edges, reachability, number of paths of length two, attributes and ranks of the edges."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        vocabulary = context.env.vocabulary
        self.directed, self.num_kinds = vocabulary.directed, len(vocabulary.edge_types) + 1
        self.has_attributes, self.has_ranks = bool(vocabulary.edge_attributes), vocabulary.ranked
        directions = 2 if self.directed else 1
        paths = (_MOST_PATHS + 1) ** (3 if self.directed else 1)
        self.num_joints = (2 * self.num_kinds) ** directions * paths
        sizes = [self.num_joints]
        sizes += [len(a.values) + 1 for a in vocabulary.edge_attributes] * directions if self.has_attributes else []
        sizes += [vocabulary.max_nodes] * directions if self.has_ranks else []
        self.num_codes = sum(sizes)
        num_values = len(vocabulary.edge_attributes) * directions
        first = [0, *[-1] * num_values, *[0] * (len(sizes) - 1 - num_values)]
        self._starts = _starts(sizes, first=first)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the codes of each pair, [B, n, n, F] int64."""
        parts = [self._joints(batch)[..., None]]
        for is_present, name in ((self.has_attributes, "edge_attr"), (self.has_ranks, "edge_order")):
            if is_present:
                value = batch[name] if name == "edge_attr" else batch[name][..., None]
                parts += [value, value.transpose(1, 2)] if self.directed else [value]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) + _on(parts[0].device, self._starts)

    def _joints(self, batch: Batch) -> Tensor:
        """Return one joint code of edges, reachability and paths of length two, [B, n, n] int64."""
        edge_type, reach = batch["edge_type"], batch["reach"]
        edge = (edge_type >= 0).float()
        kind = (edge_type + 1) + self.num_kinds * reach.to(torch.int16)  # too large for int8
        if not self.directed:
            return kind + 2 * self.num_kinds * (edge @ edge).clamp_(max=_MOST_PATHS).long()
        n = edge.shape[-1]
        both = torch.cat([edge, edge.transpose(1, 2)], 1)
        # Blocks: along (A A), to common successors (A A'), from common predecessors (A' A).
        paths = (both @ both.transpose(1, 2)).clamp_(max=_MOST_PATHS)
        code = paths[:, :n, n:] + 3 * paths[:, :n, :n] + 9 * paths[:, n:, n:]
        size = 2 * self.num_kinds
        return (kind + size * kind.transpose(1, 2).long()) + size * size * code.long()


def _starts(sizes: Sequence[int], *, first: Sequence[int]) -> tuple[int, ...]:
    """Return the offset of each facet that maps its smallest value to the first code of its range."""
    return tuple(sum(sizes[:i]) - low for i, low in enumerate(first))


@lru_cache(maxsize=64)
def _on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)
