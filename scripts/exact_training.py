"""Training on spaces that can be enumerated, and how far the sampler is from its target: exactly, by push-forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from enumerated import EnumeratedSpace

from gflownet.data.replay import draw
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy, TwoWayPolicy
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.metrics.correlation import spearman
from gflownet.metrics.exact import (
    backward_scores,
    forward_scores,
    jensen_shannon,
    policy_log_backward,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OBJECTIVES, AlgoConfig, OptimizerConfig
from gflownet.objectives.optimiser import clip_gradients, make_optimizer
from gflownet.plugins import load_class
from gflownet.policy.config import POLICIES, ModelConfig
from gflownet.policy.on_device import PolicyOnDevice

_NUM_REMEMBERED = 1_000  # batches
_HELD = 4  # steps for which trajectories are drawn back through the same P_B


@dataclass(frozen=True)
class Setting:
    """How one policy is trained."""

    algo: AlgoConfig
    num_steps: int
    num_trajectories: int = 64  # sampled per step
    num_updates: int = 2  # of the policy per step
    num_remembered: int = 16  # earlier batches that the last update sees beside the new one; the first sees none
    num_drawn_back: int = 0  # the same of trajectories drawn afresh through P_B into objects found before, by reward
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(opt="muon", learning_rate=1e-2))
    random_action_prob: float = 0.1
    model: ModelConfig = field(default_factory=lambda: ModelConfig(num_layers=3, num_emb=64))
    precision: str = "float32"  # of the updates; trajectories are sampled and distances measured in float32


@dataclass(frozen=True)
class Learned:
    """How far a trained policy is from its target."""

    total_variation: float
    jensen_shannon: float
    log_z_error: float  # NaN of objectives that learn none
    spearman: float
    num_trajectories: int
    seconds: float  # of CPU time


@dataclass(frozen=True)
class Trained:
    """A policy after training, how it is shown states, and what it was trained by."""

    context: GraphBuildingEnvContext
    policy: Policy
    objective: Objective
    num_trajectories: int
    seconds: float  # of CPU time


class _Memory:
    """What updates see beside the new trajectories, ever more of it."""

    def __init__(
        self,
        space: EnumeratedSpace,
        context: GraphBuildingEnvContext,
        policy: Policy,
        setting: Setting,
        generator: torch.Generator,
    ) -> None:
        self._space, self._setting, self._generator = space, setting, generator
        self._remembered: list[TrajectoryBatch] = []
        self._known, self._log_backward = torch.zeros(0, dtype=torch.int64), None
        asks = setting.num_drawn_back and setting.algo.backward_policy != "uniform"
        self._score = backward_scores(context, cast(TwoWayPolicy, policy), torch.zeros(1)) if asks else None

    def learn(self, batch: TrajectoryBatch, step: int) -> None:
        """Take note of what a step found, and from time to time of P_B, if trajectories are to be drawn back."""
        if not self._setting.num_drawn_back:
            return
        space = self._space
        self._known = torch.cat([self._known, space.graph.locate(space.env.identify(batch.terminal))]).unique()
        if self._score is not None and step % _HELD == 0:
            self._log_backward = policy_log_backward(space.graph, space.backward, self._score)

    def beside(self, batch: TrajectoryBatch, step: int) -> TrajectoryBatch:
        """Return the new trajectories and what one update sees beside them."""
        setting, remembered = self._setting, self._remembered
        num_drawn = math.ceil(setting.num_remembered * step / setting.num_steps)
        drawn = torch.randint(max(len(remembered), 1), (num_drawn,), generator=self._generator).tolist()
        seen = [batch, *(remembered[i] for i in drawn if remembered)]
        if num_back := len(batch) * math.ceil(setting.num_drawn_back * step / setting.num_steps):
            reward = self._space.log_reward[self._known].exp()  # errors count by what is to be sampled
            terminal = self._known[draw(reward, num_back, self._generator)]
            seen.append(self._space.drawn_back(terminal, self._log_backward, generator=self._generator))
        return TrajectoryBatch.cat(seen)

    def keep(self, batch: TrajectoryBatch) -> None:
        """Remember the trajectories of a step."""
        again = replace(batch, origin=torch.full_like(batch.origin, int(Origin.REMEMBERED)))
        self._remembered = [*self._remembered[-_NUM_REMEMBERED + 1 :], again]


def train(
    space: EnumeratedSpace,
    setting: Setting,
    *,
    seed: int,
    report_every: int = 0,
    report: Callable[[Learned], None] = lambda learned: None,
) -> Learned:
    """Train a policy as `learn` does and return how far it is from its target."""
    return measure(space, learn(space, setting, seed=seed, report_every=report_every, report=report))


def learn(
    space: EnumeratedSpace,
    setting: Setting,
    *,
    seed: int,
    report_every: int = 0,
    report: Callable[[Learned], None] = lambda learned: None,
) -> Trained:
    """Return a policy trained from its own samples.

    Args:
        space: where.
        setting: how.
        seed: of the network and of the samples.
        report_every: steps between two reports; 0 reports nothing.
        report: is told how far the policy is.
    """
    generator = torch.Generator().manual_seed(seed + 1_000)
    context, policy, objective = learners(space.env, setting, seed=seed)
    updated = PolicyOnDevice(policy, device=torch.device("cpu"), precision=setting.precision)
    groups = [{"params": list(policy.parameters())}, *objective.parameter_groups()]
    optimizer = make_optimizer(groups, setting.optimizer)
    # A constant rate, then down to zero over the last two thirds.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 1.5 * (1 - step / setting.num_steps)))
    num = setting.num_trajectories
    conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
    memory = _Memory(space, context, policy, setting, generator)
    start = time.process_time()
    for step in range(setting.num_steps):
        batch = sample_forward(
            context,
            policy,
            conditioning=conditioning,
            generator=generator,
            random_action_prob=setting.random_action_prob,
        )
        batch = batch.with_rewards(space.rewards_of(batch.terminal))
        batch = space.renamed(batch)
        if step == 0:
            objective.prepare(policy, batch)
        memory.learn(batch, step)
        for _ in range(setting.num_updates):
            optimizer.zero_grad()
            objective.loss(updated, memory.beside(batch, step)).value.backward()
            clip_gradients(list(policy.parameters()), setting.optimizer)
            optimizer.step()
        memory.keep(batch)
        schedule.step()
        if report_every and (step + 1) % report_every == 0:
            seconds = time.process_time() - start
            report(measure(space, Trained(context, policy, objective, (step + 1) * num, seconds)))
            start = time.process_time() - seconds  # measuring is nobody's training time
    seconds = time.process_time() - start
    return Trained(context, policy, objective, setting.num_steps * num, seconds)


def learners(env: Environment, setting: Setting, *, seed: int) -> tuple[GraphBuildingEnvContext, Policy, Objective]:
    """Return what is trained: a policy, how it is shown states, and an objective."""
    torch.manual_seed(seed)
    policy_class: Any = load_class("model.name", setting.model.name, POLICIES, contract=Policy)
    context = GraphBuildingEnvContext(env).with_layout(policy_class.layout)
    if setting.algo.backward_policy != "uniform":
        context = context.with_backward()
    policy = policy_class(context, setting.model)
    objective_class: Any = load_class("algo.method", setting.algo.method, OBJECTIVES, contract=Objective)
    return context, policy, objective_class(context, setting.algo)


@torch.no_grad()
def measure(space: EnumeratedSpace, trained: Trained) -> Learned:
    """Return the distances between the exact terminating distribution of the policy and the target."""
    graph, log_reward = space.graph, space.log_reward

    log_prob = policy_log_prob(graph, forward_scores(trained.context, trained.policy, torch.zeros(1)))
    found = terminating_distribution(graph, log_prob)
    target = target_distribution(graph, log_reward)
    log_z = float(log_reward[graph.terminal].double().logsumexp(0))
    learned_log_z = trained.objective.log_partition(trained.policy, torch.zeros(1, 1))
    return Learned(
        total_variation=total_variation(found, target),
        jensen_shannon=jensen_shannon(found, target),
        log_z_error=float("nan") if learned_log_z is None else abs(float(learned_log_z) - log_z),
        spearman=float(spearman(found[graph.terminal].numpy(), target[graph.terminal].numpy())),
        num_trajectories=trained.num_trajectories,
        seconds=trained.seconds,
    )
