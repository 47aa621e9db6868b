"""Policies and conditioning for tests of the sampler."""

import torch

from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import GraphStates
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy


def opinionated(
    env: Environment, *, two_way: bool = False, dense: bool = True, sharpness: float = 4.0
) -> tuple[GraphBuildingEnvContext, Policy]:
    """Return an untrained network that is far from uniform, and its context."""
    policy_class = DenseTransformerPolicy if dense else GraphTransformerPolicy
    context = GraphBuildingEnvContext(env).with_layout(policy_class.layout)
    context = context.with_backward() if two_way else context
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = policy_class(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
        with torch.no_grad():
            for head in policy.heads.values():
                for parameter in head.parameters():
                    parameter.mul_(sharpness)
    return context, policy


def unconditional(num: int) -> Conditioning:
    return Conditioning(torch.zeros(num, 1), torch.ones(num))


def keys(env: Environment, states: GraphStates) -> list[str]:
    return [env.coloured_graph(states, i).canonical_key() for i in range(len(states))]
