"""Options of the policy network."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.options import AT_LEAST_ONE, option


@dataclass
class ModelConfig:
    """The network that reads a state and gives the logits of its actions."""

    name: str = option(
        "dense_transformer",
        "the network: dense_transformer (attention between all nodes), graph_transformer (message passing "
        "over edges), where the number of nodes is fixed mlp or sequence_transformer (attention between places), "
        "or module:Class of your own",
    )
    num_layers: int = option(3, "number of transformer layers", AT_LEAST_ONE)
    num_emb: int = option(64, "width of a node's embedding", AT_LEAST_ONE)
    compile: bool = option(False, "compile the layers with torch.compile: worth its minutes on CUDA")
    num_heads: int = option(2, "attention heads of a layer; divides num_emb", AT_LEAST_ONE)


POLICIES = {
    "dense_transformer": "gflownet.policy.dense_transformer:DenseTransformerPolicy",
    "graph_transformer": "gflownet.policy.graph_transformer:GraphTransformerPolicy",
    "mlp": "gflownet.policy.mlp:MLPPolicy",
    "sequence_transformer": "gflownet.policy.sequence_transformer:SequenceTransformerPolicy",
}
