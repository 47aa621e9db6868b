"""Building blocks of the policy networks: attention, codes of node pairs, and networks for a fixed set of nodes."""

from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import MOST_VALUES, GraphVocabulary
from gflownet.policy.config import POLICIES, ModelConfig
from gflownet.policy.dense_transformer import PairCodes
from gflownet.policy.layers import AttentionLayer
from tests.contracts.environments import ENVIRONMENTS


@pytest.mark.parametrize("is_biased", [False, True])
def test_attention_layer_in_bfloat16_is_close_to_float64(is_biased):
    """bfloat16 attention on a CPU uses another code path."""
    torch.manual_seed(0)
    layer = AttentionLayer(16, 2, is_compiled=False).double()
    with torch.no_grad():
        layer.project.weight.mul_(6)  # attention weights far from uniform
    tokens, bias = torch.randn(5, 7, 16).double(), 3 * torch.randn(5, 2, 7, 7).double() if is_biased else None
    exact = layer(tokens, bias)
    rough = layer.bfloat16()(tokens.bfloat16(), None if bias is None else bias.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert float(((rough - exact).norm() / exact.norm()).detach()) < 0.01


def pair_codes(*, num_edge_types: int, directed: bool) -> tuple[PairCodes, torch.Tensor]:
    """Return the codes of one pair for every edge type, reachable and not, [2 * (types + 1)]."""
    context = GraphBuildingEnvContext(ENVIRONMENTS["undirected"]())
    names = tuple(map(str, range(num_edge_types)))
    context.env.vocabulary = GraphVocabulary(("a",), max_nodes=2, directed=directed, edge_types=names)
    kinds = torch.arange(-1, num_edge_types, dtype=torch.int8).repeat(2)
    edge_type = torch.full((len(kinds), 2, 2), -1, dtype=torch.int8)
    edge_type[:, 0, 1] = kinds
    reach = torch.zeros_like(edge_type, dtype=torch.bool)
    reach[num_edge_types + 1 :] = True
    table = PairCodes(context)
    return table, table({"edge_type": edge_type, "reach": reach})[:, 0, 1, 0]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("num_edge_types", [1, 2, MOST_VALUES // 2, MOST_VALUES])
def test_pair_codes_are_distinct_and_inside_the_table(num_edge_types, directed):
    table, codes = pair_codes(num_edge_types=num_edge_types, directed=directed)
    assert len(codes.unique()) == len(codes)
    assert int(codes.min()) >= 0
    assert int(codes.max()) < table.num_codes


@pytest.mark.parametrize("model", ["mlp", "sequence_transformer"])
@pytest.mark.parametrize("name", ["hypergrid", "bit_sequence", "cells"])
def test_fixed_node_policy_output_differs_between_states(name, model):
    env = ENVIRONMENTS[name]()
    policy_class: Any = POLICIES.load(model)
    context = GraphBuildingEnvContext(env).with_layout(policy_class.layout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = policy_class(context, ModelConfig(name=model, num_layers=2, num_emb=32)).double()
    states = enumerate_states(env).states
    with torch.no_grad():
        _, outputs = policy(context.to_batch(states), torch.zeros(len(states), 1, dtype=torch.float64))
    gaps = outputs.sort().values.diff()
    assert float(gaps.min()) > 1e-9  # above rounding errors
