"""Training on spaces that can be enumerated, and how far the sampler is from its target: exactly, by push-forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.metrics.correlation import spearman
from gflownet.metrics.exact import (
    StateGraph,
    enumerate_backward,
    forward_scores,
    jensen_shannon,
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
_CHUNK = 20_000  # actions told apart at once


@dataclass(frozen=True)
class Setting:
    """How one policy is trained."""

    algo: AlgoConfig
    num_steps: int
    num_trajectories: int = 64  # sampled per step
    num_updates: int = 2  # of the policy per step
    num_remembered: int = 16  # earlier batches that the last update sees beside the new one; the first sees none
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


class EnumeratedSpace:
    """A space whose states and rewards are all known."""

    def __init__(self, env: Environment, graph: StateGraph, log_reward: Tensor) -> None:
        self.env, self.graph, self.log_reward = env, graph, log_reward

    def rewards_of(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of states, looked up by identity, [B]."""
        return self.log_reward[self.graph.locate(self.env.identify(states))]

    def renamed(self, batch: TrajectoryBatch) -> TrajectoryBatch:
        """Return isomorphic trajectories through the enumerated representatives of their states.

        Nothing that depends on a graph and not on the numbers of its nodes changes: no probability, no reward. But what
        thousands of trajectories pass through is now each class of states once, so that one update may see them all.
        """
        env, graph = self.env, self.graph
        state = graph.locate(env.identify(batch.states))
        step, successor = batch.successors()
        taken = self._forward.locate(env.identify_actions(batch.states, batch.actions))
        undone = self._backward.locate(env.identify_actions(batch.states[successor], batch.backward[step]))
        undo = self._backward.actions[undone]
        parts = [old.index_put((step,), new) for old, new in zip(batch.backward.parts, undo.parts, strict=True)]
        return replace(
            batch, states=graph.states[state], actions=self._forward.actions[taken], backward=ActionBatch(*parts)
        )

    @cached_property
    def _forward(self) -> KnownActions:
        return KnownActions.of(self.env, self.graph.states, self.graph.parent, self.graph.action)

    @cached_property
    def _backward(self) -> KnownActions:
        found = enumerate_backward(self.env, self.graph)
        return KnownActions.of(self.env, self.graph.states, found.child, found.action)


@dataclass(frozen=True)
class KnownActions:
    """One action of each class of them, in the representative of its state; K in all."""

    code: Tensor  # [K] ascending
    actions: ActionBatch  # K actions

    @staticmethod
    def of(env: Environment, states: GraphStates, owner: Tensor, actions: ActionBatch) -> KnownActions:
        """Return those of all labelled actions, the owner being the state that each is taken in."""
        parts = torch.arange(len(owner)).split(_CHUNK)
        codes = torch.cat([env.identify_actions(states[owner[part]], actions[part]) for part in parts])
        ordered, position = codes.sort()
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        return KnownActions(ordered[first], actions[position[first]])

    def locate(self, codes: Tensor) -> Tensor:
        """Return which of the K actions each code is of, [A]."""
        found = torch.searchsorted(self.code, codes)
        assert torch.equal(self.code[found.clamp(max=len(self.code) - 1)], codes), "every action was enumerated"
        return found


def train(
    space: EnumeratedSpace,
    setting: Setting,
    *,
    seed: int,
    report_every: int = 0,
    report: Callable[[Learned], None] = lambda learned: None,
) -> Learned:
    """Train a policy from its own samples and return how far it is from its target.

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
    remembered: list[TrajectoryBatch] = []
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
        for _ in range(setting.num_updates):
            num_drawn = math.ceil(setting.num_remembered * step / setting.num_steps)
            drawn = torch.randint(max(len(remembered), 1), (num_drawn,), generator=generator).tolist()
            seen = TrajectoryBatch.cat([batch, *(remembered[i] for i in drawn if remembered)])
            optimizer.zero_grad()
            objective.loss(updated, seen).value.backward()
            clip_gradients(list(policy.parameters()), setting.optimizer)
            optimizer.step()
        again = replace(batch, origin=torch.full_like(batch.origin, int(Origin.REMEMBERED)))
        remembered = [*remembered[-_NUM_REMEMBERED + 1 :], again]
        schedule.step()
        if report_every and (step + 1) % report_every == 0:
            seconds = time.process_time() - start
            report(measure(space, context, policy, objective, num_trajectories=(step + 1) * num, seconds=seconds))
            start = time.process_time() - seconds  # measuring is nobody's training time
    seconds = time.process_time() - start
    return measure(space, context, policy, objective, num_trajectories=setting.num_steps * num, seconds=seconds)


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
def measure(
    space: EnumeratedSpace,
    context: GraphBuildingEnvContext,
    policy: Policy,
    objective: Objective,
    *,
    num_trajectories: int,
    seconds: float,
) -> Learned:
    """Return the distances between the exact terminating distribution of the policy and the target."""
    graph, log_reward = space.graph, space.log_reward

    log_prob = policy_log_prob(graph, forward_scores(context, policy, torch.zeros(1)))
    found = terminating_distribution(graph, log_prob)
    target = target_distribution(graph, log_reward)
    log_z = float(log_reward[graph.terminal].double().logsumexp(0))
    learned_log_z = objective.log_partition(policy, torch.zeros(1, 1))
    return Learned(
        total_variation=total_variation(found, target),
        jensen_shannon=jensen_shannon(found, target),
        log_z_error=float("nan") if learned_log_z is None else abs(float(learned_log_z) - log_z),
        spearman=float(spearman(found[graph.terminal].numpy(), target[graph.terminal].numpy())),
        num_trajectories=num_trajectories,
        seconds=seconds,
    )
