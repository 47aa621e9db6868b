"""Options of the policy network, and the built-in networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.options import AT_LEAST_ONE, option
from gflownet.plugins import BuiltIn, ExtensionPoint

POLICIES = ExtensionPoint(
    "model.name",
    contract="gflownet.mdp.policy:Policy",
    options_key="model.options",
    group="gflownet.policies",
    built_in={
        "dense_transformer": BuiltIn(
            "gflownet.policy.dense_transformer:DenseTransformerPolicy", "attention between all nodes"
        ),
        "graph_transformer": BuiltIn(
            "gflownet.policy.graph_transformer:GraphTransformerPolicy", "message passing over edges"
        ),
        "mlp": BuiltIn("gflownet.policy.mlp:MLPPolicy", "fixed number of nodes: a multilayer perceptron"),
        "sequence_transformer": BuiltIn(
            "gflownet.policy.sequence_transformer:SequenceTransformerPolicy",
            "fixed number of nodes: attention between places",
        ),
    },
)


@dataclass
class ModelConfig:
    """The policy network: maps a state to the logits of its actions."""

    name: str = option("dense_transformer", POLICIES.help("network"))
    options: Any = option({}, "options of your own network, model.options.NAME=VALUE")
    num_layers: int = option(3, "number of layers", AT_LEAST_ONE)
    num_emb: int = option(64, "width of the embedding of a node", AT_LEAST_ONE)
    compile: bool = option(False, "compile the layers with torch.compile; takes minutes, pays off on CUDA")
    num_heads: int = option(2, "attention heads per layer; divides num_emb", AT_LEAST_ONE)


def check_model(config: ModelConfig) -> None:
    """Raise UserError for an embedding that the heads do not divide."""
    if config.num_emb % config.num_heads:
        raise UserError(
            f"model.num_emb: expected a multiple of model.num_heads={config.num_heads}, got {config.num_emb}"
        )
