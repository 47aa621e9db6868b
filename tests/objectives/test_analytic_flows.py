"""Flows computed class by class have no loss under any objective, scheme of symmetries or backward policy."""

import pytest
import torch

from gflownet.errors import UserError
from gflownet.objectives.config import AlgoConfig
from tests.objectives.balanced import COMBINATIONS, FLOW_OBJECTIVES, SCHEMES, random_prior, set_up, set_up_relative
from tests.objectives.spaces import make_space
from tests.oracles.tabular import Classes


@pytest.fixture(scope="module", params=["two_coloured_3", "from_one_node_4"])
def space(request) -> Classes:
    return make_space(request.param)


@pytest.mark.parametrize(("symmetry", "backward_policy"), COMBINATIONS)
@pytest.mark.parametrize("method", FLOW_OBJECTIVES)
def test_flows_that_balance_have_no_loss(space, method, symmetry, backward_policy):
    config = AlgoConfig(method=method, symmetry=symmetry, backward_policy=backward_policy)
    objective, policy, batch, _ = set_up(space, config)
    loss = objective.loss(policy, batch)
    assert loss.metrics["loss"] < 1e-9
    if backward_policy == "maxent":
        assert loss.metrics["backward_loss"] < 1e-9
    with torch.no_grad():  # negative control: one flow that is off
        policy.forward_logits.add_(0.3 * torch.randn(policy.forward_logits.shape, dtype=torch.float64))
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


@pytest.mark.parametrize("method", FLOW_OBJECTIVES)
@pytest.mark.parametrize(("symmetry", "wrong"), [("reward", "actions"), ("actions", "reward"), ("reward", "none")])
def test_flows_of_another_scheme_do_not_balance(method, symmetry, wrong):
    objective, policy, batch, _ = set_up(
        make_space("connected_5"), AlgoConfig(method=method, symmetry=symmetry), scheme_of_flows=wrong
    )
    assert objective.loss(policy, batch).metrics["loss"] > 1e-2


@pytest.mark.parametrize("symmetry", SCHEMES)
def test_flow_matching_has_no_loss_at_flows_that_balance(space, symmetry):
    """Whatever the backward policy that made them: flow matching asks for none."""
    config = AlgoConfig(method="fm", symmetry=symmetry)
    objective, policy, batch, _ = set_up(space, config)
    assert objective.loss(policy, batch).metrics["loss"] < 1e-9
    with torch.no_grad():
        policy.forward_logits.add_(0.3 * torch.randn(policy.forward_logits.shape, dtype=torch.float64))
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


@pytest.mark.parametrize(("symmetry", "backward_policy"), COMBINATIONS)
def test_modified_detailed_balance_has_no_loss_at_flows_that_balance(symmetry, backward_policy):
    space = make_space("from_one_node_4")
    config = AlgoConfig(method="modified_db", symmetry=symmetry, backward_policy=backward_policy)
    objective, policy, batch, _ = set_up(space, config)
    assert objective.loss(policy, batch).metrics["loss"] < 1e-9
    with torch.no_grad():
        policy.forward_logits.add_(0.3 * torch.randn(policy.forward_logits.shape, dtype=torch.float64))
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


def test_modified_detailed_balance_refuses_states_that_may_not_stop():
    space = make_space("connected_5")
    objective, policy, batch, _ = set_up(space, AlgoConfig(method="modified_db"))
    with pytest.raises(UserError, match="Stop is legal in every state"):
        objective.loss(policy, batch)


@pytest.mark.parametrize("method", ["tb", "db", "subtb", "soft_q", "munchausen", "fm", "fl_db"])
def test_the_learned_partition_is_that_of_the_flows(space, method):
    objective, policy, batch, flows = set_up(space, AlgoConfig(method=method))
    log_z = objective.log_partition(policy, batch.conditioning)
    if method == "fl_db" and 0 in space.may_stop:
        assert log_z is None
    else:
        assert log_z.tolist() == pytest.approx([flows.log_flow[0]] * len(batch), abs=1e-5)


@pytest.mark.parametrize("seed", [None, 2])
def test_relative_balance_tilts_the_prior_by_the_reward(space, seed):
    log_prior = None if seed is None else random_prior(space, seed=seed)
    objective, policy, batch = set_up_relative(space, log_prior=log_prior)
    assert float(objective.loss(policy, batch).value.detach()) < 1e-9
    other = batch.with_rewards(batch.log_reward + torch.randn(len(batch)))
    assert float(objective.loss(policy, other).value.detach()) > 1e-2


def test_flows_relative_to_one_prior_do_not_balance_another(space):
    (objective, _, _), (_, policy, batch) = (
        set_up_relative(space, log_prior=random_prior(space, seed=seed)) for seed in (2, 3)
    )
    assert float(objective.loss(policy, batch).value.detach()) > 1e-2
