"""Learner: optimiser steps, clipping, memory, state dict."""

from __future__ import annotations

import copy
import io
import itertools
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner, LearnerOptions
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from tests.learning.policies import opinionated, unconditional
from tests.sampled_rollouts import sampled_rollouts

SGD = OptimizerConfig(opt="sgd", learning_rate=1.0, schedule="constant")
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


def train(learner: Learner, num_steps: int, *, seed: int = 0) -> None:
    for rollout in itertools.islice(rollouts_of(learner, seed=seed), num_steps):
        learner.learn(rollout)


def batches_of(learner: Learner) -> list[TrajectoryBatch]:
    assert isinstance(learner.objective, Recorded)
    return learner.objective.batches


def parameters_of(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


def step_of(learner: Learner) -> torch.Tensor:
    """Return how far one training step moves the policy, with a wrong log Z."""
    learner.objective.prepare = lambda policy, trajectories: None
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
    train(learner, 2)
    assert steps == [0] * 3 + [1] * 3
    assert learner.num_steps_done == 2


def test_learner_remembered_batches_grow_linearly():
    learner = make_learner(opt=replace(SGD, learning_rate=1e-4), num_steps=8, num_updates=2, num_remembered=8)
    train(learner, 8)
    batches = batches_of(learner)
    assert [len(batch) for batch in batches] == [8 * (1 + step) for step in range(8) for _ in range(2)]
    last, second_last = batches[-1], batches[-2]
    assert set(last.origin[:8].tolist()) == {int(Origin.SAMPLED)}
    assert set(last.origin[8:].tolist()) == {int(Origin.REMEMBERED)}
    ends = [batch.terminal.node_type[8:].flatten().tolist() for batch in (last, second_last)]
    assert ends[0] != ends[1]


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


@pytest.mark.parametrize("merge_isomorphic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_learner_state_dict_continues_exactly(merge_isomorphic):
    """Four steps, a restart from a file, and three more, against seven without the restart."""
    opt = OptimizerConfig(opt="adam", schedule="linear", warmup=2)
    options = {"num_steps": 7, "num_updates": 2, "num_remembered": 3, "merge_isomorphic": merge_isomorphic}
    first, rest = (make_learner(opt=opt, **options, sampling_tau=0.5) for _ in range(2))
    train(first, 4)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    rest.load_state_dict(torch.load(file, weights_only=True))
    for learner in (rest, first):
        train(learner, 3, seed=1)
    assert torch.equal(parameters_of(rest), parameters_of(first))
    averages = [torch.cat([p.flatten() for p in each.sampling_policy.parameters()]) for each in (rest, first)]
    assert torch.equal(*averages)


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
    broken.num_losses, broken.prepare = 2, lambda policy, trajectories: None
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


def test_learner_skipped_auxiliary_step_goes_on():
    class Auxiliary:
        def learn(self, policy, objective, trajectories, *, is_first):
            raise FloatingPointError("teacher: nan")

    learner, errors = make_learner(), []
    learner.on_skip = lambda error, batch: errors.append(str(error))
    metrics = learner.learn(next(rollouts_of(learner)), Auxiliary().learn)
    assert errors == ["teacher: nan"]
    assert "loss" in metrics


def test_learner_order_of_objective_and_auxiliary_networks():
    learner, events = make_learner(), []
    learner.objective.prepare = lambda policy, trajectories: events.append("prepare")

    class Auxiliary:
        def learn(self, policy, objective, trajectories, *, is_first):
            events.append(f"auxiliary {is_first} {learner.num_steps_done}")
            return {"extra": 1.0}

    steps = [learner.learn(rollout, Auxiliary().learn) for rollout in itertools.islice(rollouts_of(learner), 2)]
    assert events == ["prepare", "auxiliary True 0", "auxiliary False 1"]
    assert all(metrics["extra"] == 1.0 and "loss" in metrics for metrics in steps)
