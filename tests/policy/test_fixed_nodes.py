"""Networks that read what lies where: no two states look alike to them."""

from typing import Any

import pytest
import torch

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.metrics.exact import enumerate_states
from gflownet.policy.config import POLICIES, ModelConfig
from tests.contracts.environments import ENVIRONMENTS


@pytest.mark.parametrize("model", ["mlp", "sequence_transformer"])
@pytest.mark.parametrize("name", ["hypergrid", "bit_sequence", "cells"])
def test_no_two_states_get_the_same_number(name, model):
    env = ENVIRONMENTS[name]()
    policy_class: Any = POLICIES.load(model)
    context = GraphBuildingEnvContext(env).with_layout(policy_class.layout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = policy_class(context, ModelConfig(name=model, num_layers=2, num_emb=32)).double()
    states = enumerate_states(env).states
    with torch.no_grad():
        _, numbers = policy(context.to_batch(states), torch.zeros(len(states), 1, dtype=torch.float64))
    gaps = numbers.sort().values.diff()
    assert float(gaps.min()) > 1e-9  # rounding leaves less
