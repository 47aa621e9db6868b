"""Every objective has zero loss at the exact flows, for every symmetry scheme and backward policy."""

import pytest

from gflownet.errors import UserError
from gflownet.objectives.config import AlgoConfig
from tests.objectives.balanced import COMBINATIONS, FLOW_OBJECTIVES, perturb, set_up
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
