"""Every objective has zero loss at the exact flows, for every symmetry scheme and backward policy."""

import pytest
import torch

from gflownet.errors import UserError
from gflownet.objectives.config import AlgoConfig
from tests.objectives.balanced import (
    COMBINATIONS,
    FLOW_OBJECTIVES,
    SCHEMES,
    perturb,
    random_prior,
    set_up,
    set_up_relative,
)
from tests.objectives.spaces import make_space
from tests.oracles.tabular import Classes


@pytest.fixture(scope="module", params=["from_one_node_4", pytest.param("two_coloured_3", marks=pytest.mark.slow)])
def space(request) -> Classes:
    return make_space(request.param)


# One objective with every scheme, every objective with two schemes.
CASES = [(method, *scheme) for method in FLOW_OBJECTIVES for scheme in COMBINATIONS]
OF_EVERY_OBJECTIVE = (("flows", "learned"), ("actions", "maxent"))
DIFFERENT = (("none", "uniform"), ("reward", "tlm"), OF_EVERY_OBJECTIVE[1])


@pytest.mark.parametrize(
    ("method", "symmetry", "backward_policy"),
    [
        case
        if (case[0] == "subtb" and case[1:] in DIFFERENT) or case[1:] == OF_EVERY_OBJECTIVE[0]
        else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_flow_objective_loss_is_zero_at_exact_flows(space, method, symmetry, backward_policy):
    config = AlgoConfig(method=method, symmetry=symmetry, backward_policy=backward_policy)
    objective, policy, batch, _ = set_up(space, config)
    loss = objective.loss(policy, batch)
    assert loss.metrics["loss"] < 1e-9
    if backward_policy == "maxent":
        assert loss.metrics["backward_loss"] < 1e-9
    perturb(policy)
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


@pytest.mark.parametrize("symmetry", SCHEMES)
def test_flow_matching_loss_is_zero_at_exact_flows(space, symmetry):
    config = AlgoConfig(method="fm", symmetry=symmetry)
    objective, policy, batch, _ = set_up(space, config)
    assert objective.loss(policy, batch).metrics["loss"] < 1e-9
    perturb(policy)
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


@pytest.mark.parametrize(
    ("symmetry", "backward_policy"),
    [case if case in OF_EVERY_OBJECTIVE else pytest.param(*case, marks=pytest.mark.slow) for case in COMBINATIONS],
)
def test_modified_detailed_balance_loss_is_zero_at_exact_flows(symmetry, backward_policy):
    space = make_space("from_one_node_4")
    config = AlgoConfig(method="modified_db", symmetry=symmetry, backward_policy=backward_policy)
    objective, policy, batch, _ = set_up(space, config)
    assert objective.loss(policy, batch).metrics["loss"] < 1e-9
    perturb(policy)
    assert objective.loss(policy, batch).metrics["loss"] > 1e-4


def test_modified_detailed_balance_rejects_states_without_stop():
    space = make_space("connected_5")
    objective, policy, batch, _ = set_up(space, AlgoConfig(method="modified_db"))
    with pytest.raises(UserError, match="Stop is legal in every state"):
        objective.loss(policy, batch)


@pytest.mark.parametrize("method", ["tb", "db", "subtb", "soft_q", "munchausen", "fm", "fl_db"])
def test_log_partition_equals_log_flow_of_initial_state(space, method):
    objective, policy, batch, flows = set_up(space, AlgoConfig(method=method))
    log_z = objective.log_partition(policy, batch.conditioning)
    if method == "fl_db" and 0 in space.may_stop:
        assert log_z is None
    else:
        assert log_z.tolist() == pytest.approx([flows.log_flow[0]] * len(batch), abs=1e-5)


@pytest.mark.parametrize("seed", [None, 2])
def test_relative_balance_loss_is_zero_at_prior_times_reward(space, seed):
    log_prior = None if seed is None else random_prior(space, seed=seed)
    objective, policy, batch = set_up_relative(space, log_prior=log_prior)
    assert float(objective.loss(policy, batch).value.detach()) < 1e-9
    other_rewards = batch.with_rewards(batch.log_reward + torch.randn(len(batch)))
    assert float(objective.loss(policy, other_rewards).value.detach()) > 1e-2
