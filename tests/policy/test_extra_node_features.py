"""Extra node features of a context change the logits, or the policy rejects the context."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.errors import UserError
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import GraphStates
from gflownet.policy.config import POLICIES, ModelConfig
from tests.contracts.environments import ENVIRONMENTS

NUM_NODES = (1, 2, 3)


class MarkedContext(GraphBuildingEnvContext):
    """A context with feature `value` at node 1 and `padding` at rows without a node."""

    num_extra_node_features = 2

    def __init__(self, env: Any, *, value: float = 0.0, padding: float = 0.0) -> None:
        super().__init__(env, num_cond_dim=1)
        self.value, self.padding = value, padding

    def extra_node_features(self, states: GraphStates) -> Tensor:
        features = torch.zeros(*states.exists.shape, 2)
        features[:, 1, 1] = self.value
        return features.masked_fill(~states.exists[..., None], self.padding)


def make_policy(name: str, context: GraphBuildingEnvContext) -> tuple[GraphBuildingEnvContext, Any]:
    policy_class: Any = POLICIES.load(name)
    context = context.with_layout(policy_class.layout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return context, policy_class(context, ModelConfig(name=name, num_layers=1, num_emb=16, num_heads=2))


def log_probs(name: str, **features: float) -> list[Tensor]:
    """Return the log-probabilities of all actions on chains of one, two and three nodes."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True)
    states = []
    for num_nodes in NUM_NODES:
        state = env.initial_states(1)
        for source in (None, 0, 1)[:num_nodes]:
            state = env.step(state, env.encode_batch([GraphAction(GraphActionType.AddNode, source, value="a")]))
        states.append(state)
    context, policy = make_policy(name, MarkedContext(env, **features))
    with torch.no_grad():
        categorical, _ = policy(context.to_batch(GraphStates.cat(states)), torch.zeros(len(NUM_NODES), 1))
    graphs, values = categorical.log_probs()
    return [values[graphs == graph] for graph in range(len(NUM_NODES))]


@pytest.mark.parametrize("name", ["dense_transformer", "graph_transformer"])
def test_extra_node_features_change_logits_of_existing_nodes(name):
    plain = log_probs(name)
    for features, expected in (({"value": 1.0}, [False, True, True]), ({"padding": 1.0}, [False, False, False])):
        shifted = log_probs(name, **features)
        is_changed = [not torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, shifted, strict=True)]
        assert is_changed == expected, features


@pytest.mark.parametrize("name", ["mlp", "sequence_transformer"])
def test_fixed_node_policy_rejects_extra_node_features(name):
    with pytest.raises(UserError, match=f"model.name={name}: expected a context without extra node features, got 2"):
        make_policy(name, MarkedContext(ENVIRONMENTS["hypergrid"]()))
