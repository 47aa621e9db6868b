"""Every loss against the loops of tests/oracles/losses.py, and its gradient against their finite differences.

The policy is a table of float64 parameters; log Z, or what flows are offset by, depends on the conditioning, of which
there are two. What carries no gradient (targets, advantages, an estimated log Z) is held
fixed while the loops are differentiated.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from gflownet.mdp.trajectory import Origin
from gflownet.objectives.backward import BACKWARD_LOSSES
from gflownet.objectives.config import (
    REGRESSIONS,
    ActorCriticConfig,
    AlgoConfig,
    SoftQConfig,
    SubTrajectoryBalanceConfig,
    Weighting,
)
from tests.objectives.differences import (
    Case,
    assert_loss_and_gradient,
    bent,
    directions,
    gradient_along,
    move,
    set_up,
    slope,
)
from tests.oracles import losses

ACTOR_CRITIC = ActorCriticConfig(entropy=0.3, value_weight=0.7, clip=0.1)


def subtb(weighting: Weighting, decay: float) -> AlgoConfig:
    return AlgoConfig(method="subtb", subtb=SubTrajectoryBalanceConfig(decay=decay, weighting=weighting))


# name: (options, the loops)
CASES = {
    "tb": (AlgoConfig(method="tb"), losses.trajectory_balance),
    "vargrad": (AlgoConfig(method="vargrad"), losses.vargrad),
    "db": (AlgoConfig(method="db"), losses.detailed_balance),
    "fl_db": (AlgoConfig(method="fl_db"), partial(losses.detailed_balance, ahead=True)),
    "subtb_within": (subtb("within", 0.8), partial(losses.sub_trajectory_balance, decay=0.8, within=True)),
    "subtb_geometric": (subtb("geometric", 1.3), partial(losses.sub_trajectory_balance, decay=1.3, within=False)),
    "subtb_equal_within": (subtb("equal_within", 0.5), partial(losses.sub_trajectory_balance, decay=1.0, within=True)),
    "subtb_equal": (subtb("equal", 0.5), partial(losses.sub_trajectory_balance, decay=1.0, within=False)),
    "fl_subtb": (
        replace(subtb("within", 0.8), method="fl_subtb"),
        partial(losses.sub_trajectory_balance, decay=0.8, within=True, ahead=True),
    ),
    "modified_db": (AlgoConfig(method="modified_db"), losses.modified_detailed_balance),
    "soft_q": (AlgoConfig(method="soft_q"), losses.soft_q),
    "munchausen": (
        AlgoConfig(method="munchausen", soft_q=SoftQConfig(munchausen=0.3, lowest_log_policy=-1.0)),
        partial(losses.soft_q, alpha=0.3, lowest=-1.0),
    ),
    "relative_tb": (AlgoConfig(method="relative_tb"), losses.relative),
    "order_preserving": (AlgoConfig(method="order_preserving"), losses.order_preserving),
    "a2c": (
        AlgoConfig(method="a2c", actor_critic=ACTOR_CRITIC),
        partial(losses.actor_critic, options=ACTOR_CRITIC, clipped=False),
    ),
    "ppo": (
        AlgoConfig(method="ppo", actor_critic=ACTOR_CRITIC),
        partial(losses.actor_critic, options=ACTOR_CRITIC, clipped=True),
    ),
    "max_likelihood": (AlgoConfig(method="max_likelihood"), losses.max_likelihood),
}
WITHOUT_BACKWARD = ("a2c", "ppo")
PENALISED = ("tb", "vargrad", "db", "subtb_within", "modified_db", "soft_q", "relative_tb")


def loops_of(name: str, case: Case) -> Callable[..., float]:
    """The loops of a case; relative balance has a uniform prior."""
    if name != "relative_tb":
        return CASES[name][1]
    counts = case.context.env.forward_masks(case.batch.states).num_actions()
    log_prior = [(-counts[case.batch.trajectory == i].log()).tolist() for i in range(len(case.batch))]
    return partial(losses.relative, log_prior=log_prior)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_loops(name):
    config = CASES[name][0]
    if name not in WITHOUT_BACKWARD:
        config = replace(config, backward_policy="learned")
    case = bent(set_up(config))
    loops, frozen = loops_of(name, case), case.listen()
    if name == "ppo":
        case = replace(case, batch=case.objective.annotated(case.policy, case.batch))
        move(case.tables, next(directions(case.tables, 1)), 0.1)  # some ratios leave the interval
        frozen = [steps_with_numbers(a, b) for a, b in zip(case.listen(), frozen, strict=True)]
    assert_loss_and_gradient(case, lambda: loops(case.listen(), frozen, case.batch))


@pytest.mark.parametrize("regression", [name for name in REGRESSIONS if name != "squared"])
@pytest.mark.parametrize("name", PENALISED)
def test_every_penalty_has_the_gradient_of_its_loops(name, regression):
    case = bent(set_up(replace(CASES[name][0], regression=regression, backward_policy="learned")))
    loops, frozen = partial(loops_of(name, case), penalty=losses.PENALTIES[regression]), case.listen()
    assert_loss_and_gradient(case, lambda: loops(case.listen(), frozen, case.batch), num_directions=1)


def steps_with_numbers(now, before):
    """What ppo holds fixed: the probabilities of before, the values of now."""
    return [replace(b, number=a.number) for a, b in zip(now, before, strict=True)]


@pytest.mark.parametrize(
    ("name", "loops"),
    [
        ("maxent", losses.maximum_entropy_backward),
        ("tlm", partial(losses.backward_likelihood, origins=(Origin.SAMPLED,))),
        ("pessimistic", partial(losses.backward_likelihood, origins=(Origin.SAMPLED, Origin.REMEMBERED))),
    ],
)
def test_backward_policies_of_their_own_are_taught_by_their_own_loss_alone(name, loops):
    assert BACKWARD_LOSSES[name] is not None
    weight = {"maxent": 0.1}.get(name, 0.002)
    case = set_up(AlgoConfig(method="db", backward_policy=name))
    origin = case.batch.origin.clone()
    origin[1] = int(Origin.REMEMBERED)
    case = replace(case, batch=replace(case.batch, origin=origin))
    policy, batch, frozen = case.policy, case.batch, case.listen()
    loss = case.objective.loss(policy, batch)
    policy.zero_grad()
    loss.value.backward()
    own = weight * loops(frozen, frozen, batch)
    assert loss.metrics["backward_loss"] == pytest.approx(own, rel=1e-5)
    assert float(loss.value.detach()) == pytest.approx(own + losses.detailed_balance(frozen, frozen, batch), rel=1e-5)
    for direction in directions(case.tables, 2):
        only_backward = [
            part * (table is policy.backward_logits) for part, table in zip(direction, case.tables, strict=True)
        ]
        rise = slope(case.tables, lambda: loops(case.listen(), frozen, batch), only_backward)
        assert gradient_along(case.learned, only_backward) == pytest.approx(weight * rise, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("symmetry", ["none", "reward"])
@pytest.mark.parametrize("method", ["db", "subtb", "fl_db"])
def test_flows_start_at_the_rewards_of_the_states_that_a_first_batch_stopped_in(method, symmetry):
    case = set_up(AlgoConfig(method=method, symmetry=symmetry))
    objective, batch = case.objective, case.batch
    objective.prepare(case.policy, batch)
    reward = batch.log_reward + (batch.log_symmetry if symmetry == "reward" else 0)
    numbers = torch.tensor([float(steps[-1].number) for steps in case.listen()])
    ahead = batch.log_reward if method == "fl_db" else 0.0  # of which the network need not know
    (offset,) = objective.offset(batch.conditioning).detach().unique()
    assert float((numbers + offset + ahead).mean()) == pytest.approx(float(reward.mean()), abs=1e-5)
