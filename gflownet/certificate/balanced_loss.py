"""The loss of an objective for a tabular policy with exact flows: zero if the flows are its optimum.

Letters: S states, M forward actions of all states, B states of a batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from gflownet.certificate.exact import Flows, StateGraph, first_positions, legal_steps
from gflownet.certificate.result import LossAtFlows, PerturbedLoss, TrainedLoss
from gflownet.certificate.subject import Subject
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import ask
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.log_partition import LogPartition
from gflownet.objectives.state_flows import FlowObjective, StateFlowObjective
from gflownet.objectives.steps import StepReader
from gflownet.objectives.trajectory_balance import LearnedLogPartition
from gflownet.workers.process import Stream

_NUM_TRAJECTORIES = 128
_NUM_SINGLES = 16  # of these, with their own loss
_SHIFT = 1.0  # nats, of log Z; standard deviation of the noise on logits
_NO_CHANGE = 1e-3  # nats, of log P_F of trajectories: their states have no choice
_STATES = "states"  # field of a batch with the states themselves


class StatesLayout(DenseLayout):
    """The dense layout with the states themselves as a further field."""

    def encode(self, states: GraphStates) -> dict[str, Tensor]:
        """Return the dense fields and the states."""
        fields: dict[str, Any] = super().encode(states)
        fields[_STATES] = states
        return fields


@dataclass(frozen=True)
class Tables:
    """Outputs of a policy on an enumerated space; actions between the same two states have equal logits."""

    forward: Tensor  # [M] logit of each forward action
    backward: Tensor  # [M] log P_B of one backward action from the child to the parent of each forward action
    numbers: Tensor  # [S] scalar output


class TabularPolicy:
    """Answers from tables; its context shows the states (`StatesLayout`)."""

    def __init__(self, context: GraphBuildingEnvContext, graph: StateGraph, tables: Tables) -> None:
        self._context, self._graph, self._tables = context, graph, tables
        keys = graph.parent * len(graph) + graph.child
        first, _ = first_positions(keys)
        self._key = keys[first]
        self._forward, self._backward = tables.forward[first], tables.backward[first]

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the forward distributions and the scalars of a batch."""
        index, logits = self._located(batch, backward=False)
        return self._context.categorical(batch, logits), self._tables.numbers[index]

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return forward and backward distributions and the scalars of a batch."""
        forward, numbers = self(batch, conditioning)
        _, logits = self._located(batch, backward=True)
        return forward, self._context.backward_categorical(batch, logits), numbers

    def _located(self, batch: Batch, *, backward: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the positions of the states in the space, and one tensor of logits [B, R, C] per action type."""
        states, env = cast(GraphStates, batch[_STATES]), self._context.env
        index, values = self._graph.locate(env.identify(states)), self._backward if backward else self._forward
        kinds = self._context.backward_types if backward else self._context.action_types
        of_steps: list[Tensor] = []
        of_kind: list[Tensor] = []
        for steps in legal_steps(env, states, backward=backward, with_stop=True):
            before = index[steps.owner]
            after = before.clone()  # Stop stays
            after[steps.moves] = self._graph.locate(env.identify(steps.after[steps.moves]))
            parent, child = (after, before) if backward else (before, after)
            key = parent * len(self._graph) + child
            position = torch.searchsorted(self._key, key).clamp(max=len(self._key) - 1)
            of_steps.append(torch.where(self._key[position] == key, values[position], 0.0))  # no forward action: 0
            of_kind.append(steps.action.kind)
        logits, value, kind_of = [], torch.cat(of_steps), torch.cat(of_kind)
        for kind in kinds:  # the masks list the actions of a kind in the same order
            mask = batch[f"{kind.field_name}_mask"]
            empty = torch.zeros(mask.shape, dtype=values.dtype)
            logits.append(empty.index_put(mask.nonzero(as_tuple=True), value[kind_of == int(kind)]))
        return index, logits


@dataclass(frozen=True)
class BalancedFlows:
    """Flows that balance the rewards of an objective, and the backward policy they balance with."""

    flows: Flows
    log_undo: Tensor  # [M] log P_B of one backward action from the child to the parent of each forward action


@torch.no_grad()
def loss_at_flows(
    subject: Subject,
    reader: StepReader,
    graph: StateGraph,
    balanced: BalancedFlows,
    log_reward: Tensor,
    conditioning: Conditioning,
) -> LossAtFlows | None:
    """Return the loss of a copy of the objective; None if parameters or a prior network have no known optimum.

    Args:
        subject: the objective.
        reader: of the objective.
        graph: the enumerated space.
        balanced: the flows.
        log_reward: [S] log R of the terminal states.
        conditioning: a single one.
    """
    if not _is_known(subject.objective):
        return None
    context = subject.context.with_layout(StatesLayout)
    if reader.learns_backward:
        context = context.with_backward()
    objective = _copied(subject.objective, context)
    tables = _tables(subject, reader, graph, balanced, log_reward)
    policy: Any = TabularPolicy(context, graph, tables)
    samples = subject.samples(conditioning, _NUM_TRAJECTORIES)
    batches = _trajectories(subject, graph, log_reward, conditioning, samples)
    batch = batches[_INTO_RANDOM]
    log_z, negative = balanced.flows.log_z, None
    if isinstance(objective, LearnedLogPartition):
        objective.log_z.base.fill_(-log_z)
        negative = _loss(objective, policy, batch)
        objective.log_z.base.fill_(log_z)
    losses = {name: abs(_loss(objective, policy, each)) for name, each in batches.items()}
    for index in range(min(len(batch), _NUM_SINGLES)):
        losses[f"{_INTO_RANDOM}, number {index}"] = abs(_loss(objective, policy, batch.part(index, index + 1)))
    where = max(losses, key=lambda name: math.inf if math.isnan(losses[name]) else losses[name])
    reported = objective.log_partition(policy, conditioning.encoding, conditioning.limit)
    perturbed = _perturbed_losses(subject, objective, graph, tables, batch)
    return LossAtFlows(
        loss=losses[where],
        where=where,
        loss_at_negative_log_z=negative,
        reported_log_z=None if reported is None else float(reported),
        num_trajectories=sum(map(len, batches.values())),
        elsewhere=min(perturbed, key=lambda each: (each.has_gradient, each.loss), default=None),
    )


@torch.no_grad()
def trained_loss(
    subject: Subject, graph: StateGraph, log_reward: Tensor, conditioning: Conditioning
) -> TrainedLoss | None:
    """Return the loss of the trained network on an enumerated space, see `loss_at_flows`."""
    samples = {"sampled": subject.sampled(conditioning, _NUM_TRAJECTORIES, random_action_prob=0.0)}
    return largest_loss(subject, list(_trajectories(subject, graph, log_reward, conditioning, samples).values()))


@torch.no_grad()
def largest_loss(subject: Subject, batches: Sequence[TrajectoryBatch]) -> TrainedLoss | None:
    """Return the largest loss of the trained network on a batch; None for an objective that aims at something else."""
    objective = subject.objective
    if not objective.samples_reward or objective.imitates or objective.is_on_policy:
        return None
    loss = max(_loss(objective, subject.trained, _in_single_precision(batch)) for batch in batches)
    num_steps = sum(len(batch.trajectory) for batch in batches) / sum(map(len, batches))
    return TrainedLoss(loss, num_steps) if math.isfinite(loss) else None


def _in_single_precision(batch: TrajectoryBatch) -> TrajectoryBatch:
    """Return the batch with the rewards that training reads."""
    of_states = batch.optional_state_log_reward
    batch = batch if of_states is None else batch.with_state_rewards(of_states.float())
    return batch.with_rewards(batch.log_reward.float())


def _perturbed_losses(
    subject: Subject, objective: Objective, graph: StateGraph, tables: Tables, batch: TrajectoryBatch
) -> list[PerturbedLoss]:
    """Return the losses with noise on the logits, with both signs, and with log Z too large and too small."""
    context: Any = objective.context
    exact: Any = TabularPolicy(context, graph, tables)
    policy: Any
    losses = []
    if isinstance(objective, LearnedLogPartition):
        for shift in (_SHIFT, -_SHIFT):
            objective.log_z.base.add_(shift)
            losses.append(PerturbedLoss(_loss(objective, exact, batch), True, f"log Z {shift:+g}"))
            objective.log_z.base.sub_(shift)
    noise = _SHIFT * torch.randn(
        len(tables.forward), generator=subject.generator(Stream.OPTIMUM, 1), dtype=torch.float64
    )
    for sign in (1, -1):
        logits = (tables.forward + sign * noise).requires_grad_()
        with torch.enable_grad():
            policy = TabularPolicy(context, graph, replace(tables, forward=logits))
        change = _log_forward(objective, policy, batch) - _log_forward(objective, exact, batch)
        if float(change.max() - change.min()) < _NO_CHANGE:
            continue
        with torch.enable_grad():
            loss = objective.loss(policy, batch)
        losses.append(PerturbedLoss(_value(loss), _has_gradient(loss, logits), "noise on the logits of the policy"))
        if isinstance(objective, LearnedLogPartition):
            losses.append(PerturbedLoss(_loss_at_best_log_z(objective, policy, batch), True, "noise on the logits"))
    return losses


def _has_gradient(loss: Loss, logits: Tensor) -> bool:
    if not loss.value.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(loss.value, logits, allow_unused=True)
    return gradient is not None and bool((gradient != 0).any())


def _loss_at_best_log_z(objective: LearnedLogPartition, policy: Any, batch: TrajectoryBatch) -> float:
    """Return the loss at the minimum, over log Z, of a parabola through three of its values.

    It is 0 for the square of a mean over trajectories, at flows that are not balanced.
    """
    base = objective.log_z.base
    before, values = base.clone(), []
    for shift in (-_SHIFT, 0.0, _SHIFT):
        base.copy_(before + shift)
        values.append(_loss(objective, policy, batch))
    curvature = values[0] - 2 * values[1] + values[2]
    if curvature > 0:
        base.copy_(before + _SHIFT * (values[0] - values[2]) / (2 * curvature))
        values.append(_loss(objective, policy, batch))
    base.copy_(before)
    return min(values)


def _log_forward(objective: Objective, policy: Any, batch: TrajectoryBatch) -> Tensor:
    distributions = ask(objective.context, policy, batch.states, batch.conditioning[batch.trajectory])
    log_prob = distributions.log_prob(batch.actions).double()
    return torch.zeros(len(batch), dtype=torch.float64).index_add(0, batch.trajectory, log_prob)


def _is_known(objective: Objective) -> bool:
    """Return whether all parameters of an objective belong to its log Z."""
    of_log_z = {id(p) for m in objective.modules() if isinstance(m, LogPartition) for p in m.parameters()}
    return all(id(parameter) in of_log_z for parameter in objective.parameters())


def _copied(objective: Objective, context: GraphBuildingEnvContext) -> Objective:
    """Return a copy with another context and with log Z or the offset of the flows at 0."""
    copied = copy.deepcopy(objective, {id(objective.context): context}).cpu()
    for module in copied.modules():
        if isinstance(module, LogPartition):
            for parameter in module.parameters():
                parameter.zero_()
    return copied


def _tables(
    subject: Subject, reader: StepReader, graph: StateGraph, balanced: BalancedFlows, log_reward: Tensor
) -> Tables:
    """Return the outputs of a network at the flows, as the objective reads them."""
    objective, flows = subject.objective, balanced.flows
    numbers, logits = flows.log_flow.clone(), flows.log_forward
    if reader.scales_flows:
        counts = torch.tensor(subject.context.env.num_automorphisms(graph.states), dtype=torch.float64).log()
        numbers -= counts - counts[0]
    if isinstance(objective, StateFlowObjective) and objective.looks_forward:
        numbers[graph.terminal] -= log_reward[graph.terminal]
    if isinstance(objective, FlowObjective):
        # Objectives that read the flow from the logits use their logsumexp, times an entropy weight.
        logits = logits + flows.log_flow[graph.parent] / getattr(objective, "entropy_weight", 1.0)
    return Tables(logits, balanced.log_undo.double(), numbers)


_INTO_RANDOM = "into random terminal states"


def _trajectories(
    subject: Subject,
    graph: StateGraph,
    log_reward: Tensor,
    conditioning: Conditioning,
    samples: Mapping[str, TrajectoryBatch],
) -> dict[str, TrajectoryBatch]:
    """Return trajectories into random terminal states, and samples of the policy, with all rewards, by name."""
    env = subject.context.env
    indices = torch.randperm(len(graph.terminal), generator=subject.generator(Stream.OPTIMUM))[:_NUM_TRAJECTORIES]
    ends = graph.terminal[indices]
    batches = {_INTO_RANDOM: subject.trajectories(graph.states[ends], log_reward[ends], conditioning, Stream.OPTIMUM)}
    batches |= samples
    for name, batch in batches.items():
        batches[name] = batch.with_rewards(log_reward[graph.locate(env.identify(batch.terminal))])
        if subject.objective.needs_state_rewards:
            may_stop = env.forward_masks(batch.states).masks[GraphActionType.Stop].flatten(1).any(1)
            of_state = log_reward[graph.locate(env.identify(batch.states))]
            batches[name] = batches[name].with_state_rewards(torch.where(may_stop, of_state, 0.0))
    return batches


def _loss(objective: Objective, policy: Any, batch: TrajectoryBatch) -> float:
    """Return the objective's loss without the loss of a backward policy."""
    return _value(objective.loss(policy, batch))


def _value(loss: Loss) -> float:
    return float(loss.metrics.get("loss", loss.value))
