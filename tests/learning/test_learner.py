"""Learner: optimiser steps, clipping, memory, state dict."""

from __future__ import annotations

import copy
import io
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.data.source import Rollout
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import (
    Learner,
    LearnerOptions,
    TrajectoryMemory,
    fit,
    formed,
    make_optimizer,
    make_schedule,
    merge_isomorphic,
    sampled_rollouts,
)
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.mdp.environment import Environment
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.training.optimisers import MuonWithAdam
from tests.contracts.environments import ENVIRONMENTS, operation_graphs
from tests.data.policies import opinionated, unconditional
from tests.search.terminal_states import ENVIRONMENT_NAMES
from tests.toy_policies import UniformPolicy

SGD = OptimizerConfig(opt="sgd", learning_rate=1.0, momentum=0.0, schedule="constant")
ENV = GraphBuildingEnv(["a", "b"], max_nodes=3)


class Recorded(TrajectoryBalance):
    """Trajectory balance that keeps the batches it was given."""

    def __init__(self, *args):
        super().__init__(*args)
        self.batches: list[TrajectoryBatch] = []

    def loss(self, policy, trajectories):
        self.batches.append(trajectories)
        return super().loss(policy, trajectories)


def make_learner(*, opt: OptimizerConfig = SGD, num_steps: int = 4, **options) -> Learner:
    context, policy = opinionated(ENV)
    objective = Recorded(context, AlgoConfig())
    return Learner(policy, objective, context, config=opt, options=LearnerOptions(num_steps=num_steps, **options))


def rollouts_of(learner: Learner, *, num: int = 8, seed: int = 0):
    def log_reward(states, conditioning: Conditioning) -> torch.Tensor:
        return -states.num_nodes.float()

    context, _ = opinionated(ENV)
    return sampled_rollouts(
        context,
        learner.sampling,
        log_reward=log_reward,
        conditioning=lambda generator: unconditional(num),
        generator=torch.Generator().manual_seed(seed),
    )


def batches_of(learner: Learner) -> list[TrajectoryBatch]:
    assert isinstance(learner.objective, Recorded)
    return learner.objective.batches


def parameters_of(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


def step_of(learner: Learner) -> torch.Tensor:
    """Return how far one training step moves the policy."""
    before = parameters_of(learner).clone()
    learner.learn(next(rollouts_of(learner)))
    return parameters_of(learner) - before


def test_learner_gradient_clipping():
    free = step_of(make_learner(opt=replace(SGD, clip_grad_param=1e9)))
    assert float(free.norm()) > 0.1
    by_norm = step_of(make_learner(opt=replace(SGD, clip_grad_param=0.05)))
    assert float(by_norm.norm()) == pytest.approx(0.05, rel=1e-3)
    assert torch.allclose(by_norm / by_norm.norm(), free / free.norm(), atol=1e-3)


def test_learner_num_updates():
    learner, steps = make_learner(num_updates=3), []
    learner.optimizer.register_step_post_hook(lambda *_: steps.append(learner.num_steps_done))
    assert [one.number for one in fit(learner, rollouts_of(learner), num_steps=2)] == [1, 2]
    assert steps == [0] * 3 + [1] * 3
    assert learner.num_steps_done == 2


def test_learner_remembered_batches_grow_linearly():
    learner = make_learner(opt=replace(SGD, learning_rate=1e-4), num_steps=8, num_updates=2, num_remembered=8)
    for _ in fit(learner, rollouts_of(learner), num_steps=8):
        pass
    batches = batches_of(learner)
    assert [len(batch) for batch in batches] == [8 * (1 + step) for step in range(8) for _ in range(2)]
    last, second_last = batches[-1], batches[-2]
    assert set(last.origin[:8].tolist()) == {int(Origin.SAMPLED)}
    assert set(last.origin[8:].tolist()) == {int(Origin.REMEMBERED)}
    ends = [batch.terminal.node_type[8:].flatten().tolist() for batch in (last, second_last)]
    assert ends[0] != ends[1]


def test_learner_remembered_batches_constant_growth():
    learner = make_learner(num_steps=3, num_remembered=2, remembered_growth="constant")
    for _ in fit(learner, rollouts_of(learner), num_steps=3):
        pass
    assert [len(batch) for batch in batches_of(learner)] == [8, 24, 24]


def test_learner_remembers_fresh_trajectories_only():
    learner = make_learner(num_steps=1, num_remembered=1)
    rollout = next(rollouts_of(learner))
    learner.learn(replace(rollout, num_fresh=3))
    (kept,) = learner.memory.sample(1, generator=torch.Generator())
    assert len(kept.trajectories) == 3
    assert torch.equal(kept.trajectories.log_reward, rollout.trajectories.log_reward[:3])


def test_memory_evicts_oldest_batch():
    learner = make_learner(num_steps=4, num_remembered=1, memory_capacity=2)
    batches = list(itertools.islice(rollouts_of(learner), 3))
    for rollout in batches:
        learner.learn(rollout)
    assert len(learner.memory) == 2
    drawn = learner.memory.sample(30, generator=torch.Generator().manual_seed(0))
    ends = {str(batch.trajectories.terminal.node_type.tolist()) for batch in drawn}
    assert ends == {str(rollout.trajectories.terminal.node_type.tolist()) for rollout in batches[1:]}


@pytest.mark.parametrize("merge_isomorphic", [False, True])
def test_learner_state_dict_continues_exactly(merge_isomorphic):
    """Four steps, a restart from a file, and three more, against seven without the restart."""
    opt = OptimizerConfig(opt="adam", schedule="linear", warmup=2)
    options = {"num_steps": 7, "num_updates": 2, "num_remembered": 3, "merge_isomorphic": merge_isomorphic}
    first, rest = (make_learner(opt=opt, **options, sampling_tau=0.5) for _ in range(2))
    for _ in fit(first, rollouts_of(first), num_steps=4):
        pass
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    rest.load_state_dict(torch.load(file, weights_only=True))
    for learner in (rest, first):
        for _ in fit(learner, rollouts_of(learner, seed=1), num_steps=7, first_step=5):
            pass
    assert torch.equal(parameters_of(rest), parameters_of(first))
    averages = [torch.cat([p.flatten() for p in each.sampling_policy.parameters()]) for each in (rest, first)]
    assert torch.equal(*averages)


def test_learner_sampling_policy_is_moving_average():
    learner = make_learner(sampling_tau=0.9)
    before = [p.detach().clone() for p in learner.sampling_policy.parameters()]
    learner.learn(next(rollouts_of(learner)))
    pairs = zip(before, learner.sampling_policy.parameters(), learner.policy.parameters(), strict=True)
    for old, average, current in pairs:
        assert torch.allclose(average, 0.9 * old + 0.1 * current, atol=1e-6)


def test_learner_replays_are_extra_updates():
    learner = make_learner()
    fresh, replayed = itertools.islice(rollouts_of(learner, num=4), 2)
    learner.learn(replace(fresh, replays=[replayed.trajectories, replayed.trajectories.part(0, 2)]))
    assert [len(batch) for batch in batches_of(learner)] == [4, 4, 2]


def test_learner_merging_and_memory_without_effect():
    """A first step has nothing to remember, and merged states give the same gradient up to rounding."""
    plain, merging = step_of(make_learner()), step_of(make_learner(merge_isomorphic=True, num_remembered=4))
    assert torch.allclose(plain, merging, atol=1e-4 * float(plain.abs().max()))


class Broken(TrajectoryBalance):
    """A loss without a number from the third batch on."""

    num_losses = 0

    def loss(self, policy, trajectories):
        self.num_losses += 1
        found = super().loss(policy, trajectories)
        return Loss(found.value * torch.nan, found.metrics) if self.num_losses > 2 else found


def test_fit_infinite_loss_raises_with_step():
    context, policy = opinionated(ENV)
    learner = Learner(policy, Broken(context, AlgoConfig()), context, config=SGD, options=LearnerOptions(num_steps=5))
    steps = fit(learner, rollouts_of(learner), num_steps=5)
    assert [next(steps).number, next(steps).number] == [1, 2]
    with pytest.raises(FloatingPointError, match="step 3: expected a finite loss, got nan"):
        next(steps)


class WideGradient(TrajectoryBalance):
    """A finite loss with an infinite gradient."""

    def loss(self, policy, trajectories):
        found = super().loss(policy, trajectories)
        return Loss((found.value * 0).sqrt(), found.metrics)


@pytest.mark.parametrize(
    ("objective", "message"), [(Broken, "a finite loss, got nan"), (WideGradient, "a finite norm")]
)
def test_learner_skipped_step_changes_nothing(objective, message):
    context, policy = opinionated(ENV)
    options = LearnerOptions(num_steps=5, sampling_tau=0.5, num_remembered=1, num_updates=2)
    config = OptimizerConfig()
    broken, errors = objective(context, AlgoConfig()), []
    broken.num_losses = 2
    learner = Learner(policy, broken, context, config=config, options=options)
    for average in learner.sampling_policy.parameters():
        average.data += 1
    rollout = next(rollouts_of(learner))
    learner.on_skip = lambda error, batch: errors.append((str(error), len(batch)))
    before = copy.deepcopy(learner.state_dict())
    assert learner.learn(rollout) == {"skipped": 1.0}
    assert [number for _, number in errors] == [len(rollout.trajectories)] * 2
    assert all(message in text for text, _ in errors)
    after = learner.state_dict()
    assert (before.pop("schedule")["last_epoch"], after.pop("schedule")["last_epoch"]) == (0, 1)
    rates = [[group.pop("lr") for group in state["optimizer"]["param_groups"]] for state in (before, after)]
    assert rates[0] != rates[1]
    assert_close(after, before, rtol=0, atol=0)


def test_fit_skipped_auxiliary_step_goes_on():
    class Auxiliary:
        def learn(self, policy, objective, trajectories, *, is_first):
            raise FloatingPointError("teacher: nan")

    learner, errors = make_learner(), []
    learner.on_skip = lambda error, batch: errors.append(str(error))
    (step,) = fit(learner, rollouts_of(learner), num_steps=1, auxiliary=Auxiliary())
    assert errors == ["teacher: nan"]
    assert "loss" in step.metrics


def test_fit_requests_rollouts_lazily():
    learner = make_learner(num_steps=9)
    asked = []

    def counted():
        for rollout in rollouts_of(learner):
            asked.append(rollout)
            yield rollout

    steps = fit(learner, counted(), num_steps=9)
    next(steps)
    next(steps)
    steps.close()
    assert len(asked) == 2
    assert sum(1 for _ in fit(learner, counted(), num_steps=9, first_step=8)) == 2
    assert len(asked) == 4


def test_fit_order_of_objective_and_auxiliary_networks():
    learner, events = make_learner(), []
    learner.objective.prepare = lambda policy, trajectories: events.append("prepare")

    class Auxiliary:
        def learn(self, policy, objective, trajectories, *, is_first):
            events.append(f"auxiliary {is_first} {learner.num_steps_done}")
            return {"extra": 1.0}

    steps = list(fit(learner, rollouts_of(learner), num_steps=2, auxiliary=Auxiliary()))
    assert events == ["prepare", "auxiliary True 0", "auxiliary False 1"]
    assert all(one.metrics["extra"] == 1.0 and "loss" in one.metrics for one in steps)
    assert isinstance(steps[0].rollout, Rollout)


SCHEDULES = ("halving", "linear", "cosine", "constant")
CONFIG = OptimizerConfig(opt="muon", learning_rate=0.02, weight_decay=0.1, lr_decay=3)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(3, 32), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 1))


def take_steps(net: nn.Module, optimizers: list, schedules: list, num: int) -> None:
    for _ in range(num):
        net.zero_grad()
        (net(torch.arange(3)) - 1).square().sum().backward()
        for one in (*optimizers, *schedules):
            one.step()


def test_muon_with_adam_matches_separate_torch_optimisers():
    net, reference = network(), network()
    optimizer = make_optimizer([{"params": list(net.parameters())}], CONFIG)
    assert isinstance(optimizer, MuonWithAdam)
    take_steps(net, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 5)
    matrix = reference.get_parameter("1.weight")
    other_parameters = [p for p in reference.parameters() if p is not matrix]
    expected = [
        torch.optim.Muon([matrix], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(other_parameters, lr=0.02, weight_decay=0.1),
    ]
    take_steps(reference, expected, [make_schedule(one, CONFIG, num_steps=9) for one in expected], 5)
    before = network()
    for (name, value), other, start in zip(
        net.named_parameters(), reference.parameters(), before.parameters(), strict=True
    ):
        assert torch.allclose(value, other, atol=1e-6), name
        assert not torch.allclose(value, start, atol=1e-3), name


def test_optimizer_uses_learning_rate_of_parameter_group():
    net, other = network(), nn.Parameter(torch.ones(()))
    optimizer = make_optimizer([{"params": list(net.parameters())}, {"params": [other], "lr": 0.5}], CONFIG)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02, 0.5}
    other.grad = torch.ones(())
    optimizer.step()
    assert float(other.detach()) < 0.6


def test_muon_with_adam_restored_state_continues_bit_for_bit():
    uninterrupted, resumed = network(), network()
    optimizer = make_optimizer([{"params": list(uninterrupted.parameters())}], CONFIG)
    take_steps(uninterrupted, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 6)
    first = make_optimizer([{"params": list(resumed.parameters())}], CONFIG)
    schedule = make_schedule(first, CONFIG, num_steps=9)
    take_steps(resumed, [first], [schedule], 3)
    saved = copy.deepcopy((first.state_dict(), schedule.state_dict()))
    second = make_optimizer([{"params": list(resumed.parameters())}], CONFIG)
    schedule = make_schedule(second, CONFIG, num_steps=9)
    second.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    take_steps(resumed, [second], [schedule], 3)
    for value, other in zip(uninterrupted.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(value, other)


def rates(num_steps: int, **options) -> list[float]:
    """Return the learning rate of every step; a second group has a tenth of it."""
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))]},
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule, first_rates = make_schedule(optimizer, OptimizerConfig(**options), num_steps=num_steps), []
    for _ in range(num_steps):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(0.1 * first)
        first_rates.append(first)
        optimizer.step()
        schedule.step()
    return first_rates


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1, 1, 1]),
        ({"schedule": "halving", "lr_decay": 2}, [1, 0.5**0.5, 0.5, 0.5**1.5, 0.25, 0.25 * 0.5**0.5]),
        ({"schedule": "linear"}, [1, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine"}, [1, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
        ({"schedule": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 2}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ],
)
def test_schedule_factors_match_expected(options, expected):
    assert rates(6, **options) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_factor_stays_in_bounds_after_last_step(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(optimizer, OptimizerConfig(schedule=name, lr_decay=5), num_steps=3)
    for _ in range(9):
        assert 0 <= optimizer.param_groups[0]["lr"] <= 1
        optimizer.step()
        schedule.step()


def trajectories_of(env: Environment, *, num: int) -> TrajectoryBatch:
    """Return trajectories sampled forward by a uniform policy, and backward from where those ended."""
    context, _ = opinionated(env, dense=False)
    generator, conditioning = torch.Generator().manual_seed(0), unconditional(num)
    forward = sample_forward(context, UniformPolicy(context), conditioning=conditioning, generator=generator)
    backward = sample_backward(context, forward.terminal, conditioning=conditioning, generator=generator)
    return TrajectoryBatch.cat([forward, backward]).with_rewards(torch.linspace(-1, 1, 2 * num))


def merged(env: Environment, batch: TrajectoryBatch) -> TrajectoryBatch:
    return merge_isomorphic(env, batch, env.canonical_forms(batch.states))


def num_distinct(batch: TrajectoryBatch) -> int:
    return len(distinct(batch.states, torch.zeros(len(batch.states), 1))[0])


def test_merging_and_memory_keep_limits():
    env = operation_graphs(max_parameters=420)
    context, _ = opinionated(env, dense=False)
    limit = torch.arange(60, 420, 6)[:, None]
    told = Conditioning(torch.zeros(len(limit), 1), torch.ones(len(limit)), limit)
    batch = sample_forward(
        context, UniformPolicy(context), conditioning=told, generator=torch.Generator().manual_seed(0)
    )
    batch = batch.with_rewards(torch.zeros(len(limit)))
    after = merged(env, batch)
    assert torch.equal(after.states.limit, batch.states.limit)
    assert bool(env.forward_masks(after.states).contains(after.actions).all())
    stored, memory = (TrajectoryMemory(env, capacity=2, merges=True) for _ in range(2))
    stored.add(formed(env, batch, merges=True))
    memory.load_state_dict(stored.state_dict())
    (restored,) = memory.sample(1, generator=torch.Generator())
    assert torch.equal(restored.trajectories.terminal.limit, limit)
    assert torch.equal(restored.trajectories.states.limit, limit[restored.trajectories.trajectory])


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_merge_isomorphic_actions_are_legal(name):
    env = ENVIRONMENTS[name]()
    before = trajectories_of(env, num=10)
    after = merged(env, before)
    code = env.identify(before.states)
    assert torch.equal(env.identify(after.states), code)
    assert num_distinct(after) == len(code.unique())
    assert bool(env.forward_masks(after.states).contains(after.actions).all())
    step, successor = before.successors()
    reached = env.identify(env.apply(after.states[step], after.actions[step]))
    assert torch.equal(reached, code[successor])
    assert bool(env.backward_masks(after.states[successor]).contains(after.backward[step]).all())
    left = env.identify(env.apply(after.states[successor], after.backward[step]))
    assert torch.equal(left, code[step])


@pytest.mark.parametrize("directed", [False, True])
def test_merge_isomorphic_actions_are_isomorphic(directed):
    """The isomorphism class of (state, action) is unchanged."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=5, directed=directed)
    before = trajectories_of(env, num=100)
    after = merged(env, before)
    codes = env.identify_actions(before.states, before.actions)
    assert torch.equal(env.identify_actions(after.states, after.actions), codes)
    step, successor = before.successors()
    undone = env.identify_actions(before.states[successor], before.backward[step])
    assert torch.equal(env.identify_actions(after.states[successor], after.backward[step]), undone)
    assert num_distinct(after) == len(env.identify(before.states).unique()) < num_distinct(before)


@pytest.mark.parametrize("backward_policy", ["uniform", "learned"])
def test_merge_isomorphic_keeps_loss(backward_policy):
    env = GraphBuildingEnv(["a", "b"], max_nodes=5)
    context, policy = opinionated(env, two_way=backward_policy == "learned")
    objective = TrajectoryBalance(context, AlgoConfig(backward_policy=backward_policy))
    before = trajectories_of(env, num=50)
    expected = objective.loss(policy, before).value.item()
    assert objective.loss(policy, merged(env, before)).value.item() == pytest.approx(expected, rel=1e-4)


def test_merge_isomorphic_skips_hard_states():
    env = GraphBuildingEnv(["a"], max_nodes=6)
    before = trajectories_of(env, num=20)
    forms = env.canonical_forms(before.states)
    unknown = replace(forms, num_automorphisms=torch.zeros_like(forms.num_automorphisms))
    after = merge_isomorphic(env, before, unknown)
    assert bool(after.states.equals(before.states).all())
    assert all(torch.equal(a, b) for a, b in zip(after.actions.parts, before.actions.parts, strict=True))


def test_merge_isomorphic_stop_and_first_node():
    actions = ActionBatch(
        torch.tensor([int(GraphActionType.Stop), int(GraphActionType.AddNode)]), torch.zeros(2).long(), torch.zeros(2)
    )
    names = torch.tensor([[2, 1, 0], [0, 1, 2]])
    assert actions.renamed(names, directed=False).row.tolist() == [0, 0]


def test_merge_isomorphic_undirected_pair_order():
    kind = torch.full((2,), int(GraphActionType.AddEdge))
    actions = ActionBatch(kind, torch.tensor([1, 1]), torch.zeros(2))  # nodes 0 and 1 of 3
    names = torch.tensor([[2, 1, 0], [1, 2, 0]])
    assert actions.renamed(names, directed=False).row.tolist() == [1 * 3 + 2, 1 * 3 + 2]
    assert actions.renamed(names, directed=True).row.tolist() == [2 * 3 + 1, 1 * 3 + 2]
