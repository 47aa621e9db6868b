"""The exact optimum of an objective: the flows at which its loss is zero, and the distribution they sample.

A distance of the optimum from the target is an error of the environment or the objective; more training cannot
remove it. Letters: S states, M forward and K backward actions of all states, X terminal states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.balanced_loss import BalancedFlows, loss_at_flows
from gflownet.certificate.exact import (
    StateGraph,
    analytic_flows,
    forward_scores,
    legal_steps,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.result import Optimum, SymmetryTermError
from gflownet.certificate.subject import Subject, repeated
from gflownet.certificate.transitions import shown_state
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.steps import StepReader
from gflownet.workers.process import Stream

_CHUNK = 2_000  # terminal states with trajectories at once
_POLICY_CHUNK = 512  # states per call of the policy
_ROUNDING, _RELATIVE_ROUNDING = 1e-3, 1e-6  # nats, error of a log-symmetry and of a log-reward in single precision


def exact_optimum(
    subject: Subject, graph: StateGraph, conditioning: Conditioning, log_reward: Tensor
) -> tuple[Optimum | None, SymmetryTermError | None]:
    """Return the exact optimum under one conditioning and the wrong symmetry terms; None where there is none.

    Args:
        subject: the policy, for a learned P_B, and the objective.
        graph: the enumerated space.
        conditioning: a single one.
        log_reward: [S] log R of the terminal states, without prior; anything elsewhere.

    Raises:
        ValueError: backward actions lead to states that no forward action reaches.
    """
    reader = subject.reader
    if not subject.objective.samples_reward or reader is None:
        return None, None
    target, symmetry_term, prior = log_reward.clone(), None, subject.prior
    if prior is not None:
        log_prior = policy_log_prob(graph, forward_scores(subject.context, prior, conditioning.encoding[0]))
        target += terminating_distribution(graph, log_prior).log()
        stopping = log_reward.clone()
        stopping[graph.terminal] += log_prior[graph.stops]
        flows, undo = analytic_flows(graph, stopping, log_prior), torch.zeros_like(log_prior)
    else:
        scaled, symmetry_term = _scaled_rewards(subject, reader, graph, conditioning, log_reward)
        backward = _backward_flows(subject, reader, graph, conditioning)
        flows, undo = analytic_flows(graph, scaled, backward.per_forward), backward.each
    probability = terminating_distribution(graph, flows.log_forward)
    loss = loss_at_flows(subject, reader, graph, BalancedFlows(flows, undo), log_reward, conditioning)
    optimum = Optimum(
        probability=probability,
        total_variation=total_variation(probability, target_distribution(graph, target)),
        log_z=flows.log_z,
        loss=loss,
    )
    return optimum, symmetry_term


def wrong_symmetry_terms(
    subject: Subject, reader: StepReader, trajectories: TrajectoryBatch
) -> SymmetryTermError | None:
    """Return the terminal states with a wrong scale of the reward: |Aut(x)| / |Aut(s0)| is right, or 1 without scaling.

    Args:
        subject: the environment, whose automorphism counts `check_rules` compares with an independent method.
        reader: of the objective.
        trajectories: with log-rewards.
    """
    env, terminal = subject.context.env, trajectories.terminal
    term = (reader.log_reward(trajectories).double() - trajectories.log_reward.double()).cpu()
    counts = torch.tensor(env.num_automorphisms(terminal), dtype=torch.float64)
    expected = counts.log() - math.log(env.num_initial_automorphisms)
    if not reader.scales_rewards:
        expected = torch.zeros_like(expected)
    # Rewards are stored in single precision.
    tolerance = _ROUNDING + _RELATIVE_ROUNDING * trajectories.log_reward.double().abs().cpu()
    wrong = ((term - expected).abs() > tolerance).nonzero().squeeze(1)
    if not len(wrong):
        return None
    index = int(wrong[0])
    example = (
        f"{float(term[index]):+.3f} instead of {float(expected[index]):+.3f} on the log-reward of "
        f"[{shown_state(env, terminal, index)}], |Aut| = {counts[index]:.0f}"
    )
    return SymmetryTermError(len(wrong), example)


def _scaled_rewards(
    subject: Subject, reader: StepReader, graph: StateGraph, conditioning: Conditioning, log_reward: Tensor
) -> tuple[Tensor, SymmetryTermError | None]:
    """Return the log-rewards [S] on the right side of the objective's balance, read from trajectories."""
    scaled, error = log_reward.clone(), None
    for part in graph.terminal.split(_CHUNK):
        batch = subject.trajectories(graph.states[part], log_reward[part], conditioning, Stream.OPTIMUM)
        scaled[part] = reader.log_reward(batch).double().cpu()
        error = error or wrong_symmetry_terms(subject, reader, batch)
    return scaled, error


@dataclass(frozen=True)
class _BackwardFlows:
    """P_B of the objective, averaged over the actions between the same two states."""

    per_forward: Tensor  # [M] log of the share of the flow of the child that comes through each forward action
    each: Tensor  # [M] log P_B of one backward action from the child to the parent


def _backward_flows(
    subject: Subject, reader: StepReader, graph: StateGraph, conditioning: Conditioning
) -> _BackwardFlows:
    """Return P_B of the objective.

    Equivalent forward actions get equal shares, which changes no distribution over states. Where classes are counted,
    the forward actions between two classes share the probability of the parent class.
    """
    if not (reader.learns_backward or reader.counts_classes):
        uniform = -graph.num_backward[graph.child].double().log()
        return _BackwardFlows(uniform, uniform)
    child, parent = _backward_actions(subject, graph)
    pairs, owner, num_backward = (parent * len(graph) + child).unique(return_inverse=True, return_counts=True)
    if reader.learns_backward:
        each = _learned_log_backward(subject, graph, conditioning).exp()
        total = torch.zeros(len(pairs), dtype=torch.float64).index_add(0, owner, each)
    else:
        child_of = pairs % len(graph)
        total = 1.0 / child_of.bincount(minlength=len(graph))[child_of].double()
    _, position, num_forward = (graph.parent * len(graph) + graph.child).unique(return_inverse=True, return_counts=True)
    key = graph.parent * len(graph) + graph.child
    index = torch.searchsorted(pairs, key).clamp(max=len(pairs) - 1)
    has_backward = pairs[index] == key  # Stop has no backward action
    mean = torch.where(has_backward, (total / num_backward)[index], 1.0).log()
    share = torch.where(has_backward, total[index] / num_forward[position], 1.0).log()
    return _BackwardFlows(share if reader.counts_classes else mean, mean)


def _backward_actions(subject: Subject, graph: StateGraph) -> tuple[Tensor, Tensor]:
    """Return child and parent of each of the K backward actions, children ascending."""
    children, parents = [], []
    for steps in legal_steps(subject.context.env, graph.states, backward=True):
        children.append(steps.owner)
        parents.append(graph.locate(subject.context.env.identify(steps.after)))
    return torch.cat(children), torch.cat(parents)


@torch.no_grad()
def _learned_log_backward(subject: Subject, graph: StateGraph, conditioning: Conditioning) -> Tensor:
    """Return log P_B of the K backward actions by the policy, [K] float64, in the order of `_backward_actions`."""
    values = []
    for first in range(0, len(graph), _POLICY_CHUNK):
        states = graph.states[first : first + _POLICY_CHUNK]
        encoding = repeated(conditioning, len(states)).encoding
        owner, log_prob = subject.policy.both(subject.context.to_batch(states), encoding)[1].log_probs()
        values.append(log_prob.double().cpu()[owner.cpu().argsort(stable=True)])
    return torch.cat(values)
