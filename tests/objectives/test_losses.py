"""Loss and gradient of every objective against the reference losses of tests/oracles/losses.py.

The policy is a table of float64 parameters; log Z or the offset of the flows depends on one of two conditionings.
Terms without a gradient (targets, advantages, an estimated log Z) are held fixed in the finite differences.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from gflownet.errors import UserError
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.config import REGRESSIONS, AlgoConfig, SubTrajectoryBalanceConfig, TrajectoryBalanceConfig
from gflownet.objectives.steps import BACKWARD_LOSSES
from tests.fast_cases import slow_except
from tests.objectives.balanced import prior_policy, random_prior
from tests.objectives.differences import (
    Case,
    assert_loss_and_gradient,
    directions,
    gradient_along,
    move,
    set_up,
    slope,
    with_random_offset,
)
from tests.objectives.spaces import make_space
from tests.oracles import losses
from tests.oracles.equivalent_actions import equivalent_actions_of, read_class_steps


def subtb(decay: float) -> AlgoConfig:
    return AlgoConfig(method="subtb", subtb=SubTrajectoryBalanceConfig(decay=decay))


# name: (config, reference loss)
CASES = {
    "tb": (AlgoConfig(method="tb"), losses.trajectory_balance),
    "vargrad": (AlgoConfig(method="vargrad"), losses.vargrad),
    "db": (AlgoConfig(method="db"), losses.detailed_balance),
    "fl_db": (AlgoConfig(method="fl_db"), partial(losses.detailed_balance, forward_looking=True)),
    "subtb": (subtb(0.8), partial(losses.sub_trajectory_balance, decay=0.8)),
    "subtb_growing": (subtb(1.3), partial(losses.sub_trajectory_balance, decay=1.3)),
    "fl_subtb": (
        replace(subtb(0.8), method="fl_subtb"),
        partial(losses.sub_trajectory_balance, decay=0.8, forward_looking=True),
    ),
    "modified_db": (AlgoConfig(method="modified_db"), losses.modified_detailed_balance),
    "soft_q": (AlgoConfig(method="soft_q"), losses.soft_q),
    "munchausen": (AlgoConfig(method="munchausen"), partial(losses.soft_q, alpha=0.15, lowest=-25.0)),
    "relative_tb": (AlgoConfig(method="relative_tb"), losses.relative),
    "order_preserving": (AlgoConfig(method="order_preserving"), losses.order_preserving),
    "a2c": (AlgoConfig(method="a2c"), partial(losses.actor_critic, clipped=False)),
    "ppo": (AlgoConfig(method="ppo"), partial(losses.actor_critic, clipped=True)),
    "max_likelihood": (AlgoConfig(method="max_likelihood"), losses.max_likelihood),
}
WITHOUT_BACKWARD = ("a2c", "ppo")
CLASS_COUNTING = ("tb", "vargrad", "db", "subtb", "soft_q", "order_preserving")
COMPARING = ("vargrad", "order_preserving")  # losses over several trajectories with the same conditioning
PENALISED = ("tb", "vargrad", "db", "subtb", "modified_db", "soft_q", "relative_tb", "fl_db", "munchausen")


def reference_loss(name: str, case: Case) -> Callable[..., float]:
    """Return the reference loss of a case; relative balance has a uniform prior."""
    if name != "relative_tb":
        return CASES[name][1]
    counts = case.context.env.forward_masks(case.batch.states).num_actions()
    log_prior = [(-counts[case.batch.trajectory == i].log()).tolist() for i in range(len(case.batch))]
    return partial(losses.relative, log_prior=log_prior)


@pytest.mark.parametrize("name", CASES)
def test_objective_loss_and_gradient_match_oracle(name):
    config = CASES[name][0]
    if name not in WITHOUT_BACKWARD:
        config = replace(config, backward_policy="learned")
    case = with_random_offset(set_up(config))
    oracle, frozen = reference_loss(name, case), case.read_steps()
    if name == "ppo":
        case = replace(case, batch=case.objective.annotated(case.policy, case.batch))
        move(case.tables, next(directions(case.tables, 1)), 0.1)  # some ratios leave the clipping interval
        frozen = [with_state_outputs(a, b) for a, b in zip(case.read_steps(), frozen, strict=True)]
    assert_loss_and_gradient(case, lambda: oracle(case.read_steps(), frozen, case.batch))


@pytest.mark.parametrize(
    ("name", "regression"),
    [
        *(("tb", name) for name in REGRESSIONS if name not in ("squared", "linex")),
        *(pytest.param(name, "linex", marks=[pytest.mark.slow] * (name != "subtb")) for name in PENALISED),
    ],
)
def test_regression_loss_and_gradient_match_oracle(name, regression):
    case = with_random_offset(set_up(replace(CASES[name][0], regression=regression, backward_policy="learned")))
    oracle, frozen = partial(reference_loss(name, case), penalty=losses.PENALTIES[regression]), case.read_steps()
    assert_loss_and_gradient(case, lambda: oracle(case.read_steps(), frozen, case.batch))


def with_state_outputs(current, frozen):
    """Return the frozen steps with the current values: ppo holds only the old probabilities fixed."""
    return [replace(b, state_output=a.state_output) for a, b in zip(current, frozen, strict=True)]


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("maxent", losses.maximum_entropy_backward),
        ("tlm", partial(losses.backward_likelihood, origins=(Origin.SAMPLED,))),
        pytest.param(
            "pessimistic",
            partial(losses.backward_likelihood, origins=(Origin.SAMPLED, Origin.REMEMBERED)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_backward_policy_gradient_comes_only_from_its_own_loss(name, oracle):
    assert BACKWARD_LOSSES[name] is not None
    weight = {"maxent": 0.1}.get(name, 0.002)
    case = set_up(AlgoConfig(method="db", backward_policy=name))
    origin = case.batch.origin.clone()
    origin[1] = int(Origin.REMEMBERED)
    case = replace(case, batch=replace(case.batch, origin=origin))
    policy, batch, frozen = case.policy, case.batch, case.read_steps()
    loss = case.objective.loss(policy, batch)
    policy.zero_grad()
    loss.value.backward()
    backward_loss = weight * oracle(frozen, frozen, batch)
    assert loss.metrics["backward_loss"] == pytest.approx(backward_loss, rel=1e-5)
    expected = backward_loss + losses.detailed_balance(frozen, frozen, batch)
    assert float(loss.value.detach()) == pytest.approx(expected, rel=1e-5)
    for direction in directions(case.tables, 2):
        only_backward = [
            component * (table is policy.backward_logits)
            for component, table in zip(direction, case.tables, strict=True)
        ]
        expected = slope(case.tables, lambda: oracle(case.read_steps(), frozen, batch), only_backward)
        assert gradient_along(case.learned, only_backward) == pytest.approx(weight * expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("symmetry", ["reward", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["db", "subtb", pytest.param("fl_db", marks=pytest.mark.slow)])
def test_prepare_sets_flow_offset_to_mean_reward_of_first_batch(method, symmetry):
    case = set_up(AlgoConfig(method=method, symmetry=symmetry))
    objective, batch = case.objective, case.batch
    objective.prepare(case.policy, batch)
    reward = batch.log_reward + (batch.log_symmetry if symmetry == "reward" else 0)
    outputs = torch.tensor([float(steps[-1].state_output) for steps in case.read_steps()])
    state_log_reward = batch.log_reward if method == "fl_db" else 0.0  # which the flow network leaves out
    (offset,) = objective.offset(batch.conditioning).detach().unique()
    assert float((outputs + offset + state_log_reward).mean()) == pytest.approx(float(reward.mean()), abs=1e-5)


def test_prepare_sets_log_z_to_estimate_from_first_batch():
    """Z = E[R P_B / P_F], estimated per conditioning."""
    case = set_up(AlgoConfig(method="tb", backward_policy="learned"))
    case.objective.prepare(case.policy, case.batch)
    weights: dict[float, list[float]] = {}
    ratios = losses.log_ratios(case.read_steps(), case.batch)
    for conditioning, ratio in zip(case.batch.conditioning.flatten().tolist(), ratios, strict=True):
        weights.setdefault(conditioning, []).append(math.exp(-ratio))
    expected = [math.log(sum(values) / len(values)) for values in weights.values()]
    assert len(expected) == 2
    log_z = case.objective.log_z(case.batch.conditioning).tolist()
    assert log_z == pytest.approx([sum(expected) / 2] * len(case.batch), abs=1e-4)


def test_log_z_starts_at_zero_and_its_base_has_a_separate_learning_rate():
    case = set_up(AlgoConfig(method="tb", tb=TrajectoryBalanceConfig(Z_learning_rate=0.03)))
    objective = case.objective
    assert objective.log_z(case.batch.conditioning).tolist() == [0.0] * len(case.batch)
    base, network = objective.parameter_groups()
    assert base["lr"] == 0.03
    assert base["params"] == [objective.log_z.base]
    assert "lr" not in network
    assert base["weight_decay"] == network["weight_decay"] == 0.0
    assert {id(p) for p in network["params"]} == {id(p) for p in objective.log_z.shape.parameters()}


@pytest.mark.parametrize("name", slow_except(["subtb", "tb"], CLASS_COUNTING))
@pytest.mark.parametrize("backward_policy", ["learned", pytest.param("uniform", marks=pytest.mark.slow)])
def test_class_counting_loss_and_gradient_match_oracle(name, backward_policy):
    config, oracle = CASES[name]
    case = with_random_offset(set_up(replace(config, symmetry="actions", backward_policy=backward_policy)))
    equivalents = equivalent_actions_of(case.context.env, case.batch)
    assert max(len(same.forward) for same in equivalents) > 1
    assert max(len(same.backward) for same in equivalents) > 1
    unscaled = replace(case.batch, log_symmetry=0 * case.batch.log_symmetry)
    read_steps = partial(
        read_class_steps,
        *(case.context, case.policy, case.batch, case.offset),
        equivalents=equivalents,
        learned=backward_policy == "learned",
    )
    frozen = read_steps()
    assert_loss_and_gradient(case, lambda: oracle(read_steps(), frozen, unscaled))


def with_conditionings(batch: TrajectoryBatch, conditionings: list[float]) -> TrajectoryBatch:
    return replace(batch, conditioning=torch.tensor(conditionings)[:, None])


@pytest.mark.parametrize("method", COMPARING)
def test_comparing_objective_rejects_batch_without_shared_conditioning(method):
    case = set_up(AlgoConfig(method=method))
    message = f"algo.method={method}: expected trajectories with equal conditioning, .*; without cond.limit.metric, set"
    with pytest.raises(UserError, match=message):
        case.objective.loss(case.policy, with_conditionings(case.batch, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))


@pytest.mark.parametrize("method", COMPARING)
def test_comparing_objective_ignores_trajectory_with_unique_conditioning(method):
    """The other trajectories are compared without it; a batch of one trajectory has zero loss."""
    case = set_up(AlgoConfig(method=method))
    shared = with_conditionings(case.batch.split(2)[0], [1.0, 1.0, 1.0])
    mixed = case.objective.loss(case.policy, with_conditionings(case.batch, [1.0, 1.0, 1.0, 3.0, 4.0, 5.0]))
    share = 3 / 6 if method == "vargrad" else 1.0  # of trajectories or of pairs
    shared_loss = case.objective.loss(case.policy, shared).metrics["loss"]
    assert mixed.metrics["loss"] == pytest.approx(share * shared_loss, rel=1e-6)
    assert shared_loss > 1e-2
    single = with_conditionings(case.batch.split(6)[0], [1.0])
    assert case.objective.loss(case.policy, single).metrics["loss"] == 0.0


def test_relative_balance_with_prior_loss_and_gradient_match_oracle():
    space = make_space("from_one_node_4")
    prior = prior_policy(space, random_prior(space, seed=4))
    case = with_random_offset(set_up(AlgoConfig(method="relative_tb"), prior=prior))
    log_prior = [[step.log_forward for step in steps] for steps in losses.read_steps(case.context, prior, case.batch)]
    oracle = partial(losses.relative, log_prior=log_prior)
    assert_loss_and_gradient(case, lambda: oracle(case.read_steps(), (), case.batch))
    assert all(table.grad is None for table in prior.parameters())  # the prior is not trained
    before = case.objective.log_partition(case.policy, case.batch.conditioning)
    case.objective.prepare(case.policy, case.batch)
    assert not before.equal(case.objective.log_partition(case.policy, case.batch.conditioning))
