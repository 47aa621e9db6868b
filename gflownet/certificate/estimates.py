"""Estimates of a policy's distribution and of its distance to the target, for spaces too large to enumerate.

All of them are computed from log-probabilities of trajectories, forward under the policy and backward under the P_B
that the trajectories were sampled with. Letters: B trajectories, X terminal states, M trajectories into each of them,
K subsets of m terminal states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    jensen_shannon,
    l1_distance,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.result import EstimatedCertificate, ExactCertificate, SymmetryClass
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.statistics import Interval, bootstrap, pearson, spearman
from gflownet.learning.sampler import sample_backward
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch

NUM_ROLLOUTS = 10  # backward trajectories from each state with an estimated p(x)
_CHUNK = 256  # trajectories evaluated at once, to bound memory


@torch.no_grad()
def log_ratio(context: GraphBuildingEnvContext, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Tensor:
    """Return log P_F(tau) - log P_B(tau | x) of each trajectory, [B] float64, with log P_B from the batch."""
    parts = []
    for part in trajectories.split(math.ceil(len(trajectories) / _CHUNK)):
        output = ask(context, policy, part.states, part.conditioning[part.trajectory])
        log_forward = output.log_prob(part.actions).double().cpu()
        total = torch.zeros(len(part), dtype=torch.float64)
        parts.append(total.index_add(0, part.trajectory, log_forward - part.log_backward.double()))
    return torch.cat(parts)


@torch.no_grad()
def with_learned_backward(
    context: GraphBuildingEnvContext, policy: AnswersBothWays, trajectories: TrajectoryBatch
) -> TrajectoryBatch:
    """Return the trajectories with log P_B of the policy's own backward distributions instead of the uniform one.

    Args:
        context: made by `with_backward`.
        policy: the policy.
        trajectories: sampled forward, or backward by the same P_B.
    """
    parts = []
    for part in trajectories.split(math.ceil(len(trajectories) / _CHUNK)):
        output = ask_both(context, policy, part.states, part.conditioning[part.trajectory])
        step, successor = part.successors()
        log_backward = torch.zeros_like(part.log_backward)
        log_backward[step] = output.backward_log_prob(part.backward[step], states=successor).to(log_backward)
        parts.append(replace(part, log_backward=log_backward))
    return TrajectoryBatch.cat(parts)


def rolled_back(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    states: GraphStates,
    conditioning: Conditioning,
    *,
    num: int,
    generator: torch.Generator,
) -> TrajectoryBatch:
    """Return `num` trajectories into each terminal state [X] under its conditioning, with log P_B of the policy."""
    index = torch.arange(len(states)).repeat_interleave(num)
    learned = policy if context.backward_types else None
    batch = sample_backward(
        context, states[index], conditioning=conditioning[index], generator=generator, policy=learned
    )
    return batch if learned is None else with_learned_backward(context, cast(AnswersBothWays, policy), batch)


def terminating_log_prob(log_ratios: Tensor, log_symmetry: Tensor) -> Tensor:
    """Return log p(x) of terminal states, estimated from M trajectories sampled backward from each, [X].

    p(x) = |Aut(s0)| / |Aut(x)| E[P_F(tau) / P_B(tau | x)], tau ~ P_B: there are |Aut(s0)| / |Aut(x)| as many labelled
    trajectories forward to the forms of x as backward from one of them (orbit identity: n_forward(s, s') |Aut(s')| =
    n_backward(s', s) |Aut(s)|). The estimate of p(x) is unbiased, log p(x) is too low on average.

    Args:
        log_ratios: [X, M] log P_F(tau) - log P_B(tau | x).
        log_symmetry: [X] log |Aut(x)| - log |Aut(s0)| (`TrajectoryBatch.log_symmetry`).
    """
    return log_ratios.logsumexp(1) - math.log(log_ratios.shape[1]) - log_symmetry.double()


def effective_sample_size(log_ratios: Tensor) -> Tensor:
    """Return the effective number of the M trajectories in the estimate of p(x), [X]: (sum w)^2 / sum w^2 (Kong 1992).

    M if P_F and P_B balance; near 1 one trajectory dominates and the estimate is unreliable.
    """
    return (2 * log_ratios.logsumexp(1) - (2 * log_ratios).logsumexp(1)).exp()


def log_weights(log_ratios: Tensor, log_reward: Tensor, log_symmetry: Tensor) -> Tensor:
    """Return log w = log R(x) + log |Aut(x)| / |Aut(s0)| + log P_B(tau | x) - log P_F(tau), all arguments [B].

    E[w] = Z over trajectories of the policy, and w = Z on each of them if p(x) = R(x) / Z and P_B balances.
    """
    return log_reward.double() + log_symmetry.double() - log_ratios


def evidence_bound(log_weight: Tensor, *, seed: int) -> Interval:
    """Return E[log w]: over the policy's own trajectories at most log Z, ELBO = log Z - KL(P_F || R P_B / Z).

    Over trajectories sampled backward (P_B) from samples of the target it is at least log Z:
    EUBO = log Z + KL(R P_B / Z || P_F) (Blessing et al. 2024, Beyond ELBOs).
    """
    return bootstrap(np.mean, [_array(log_weight)], seed=seed)


def reweighted_upper_bound(log_reward: Tensor, log_prob: Tensor, log_weight: Tensor, *, seed: int) -> Interval:
    """Return the upper bound from samples of the policy, weighted by R(x) / p(x), if there are none of the target.

    It ignores states that the policy never samples, so it is too low on average.

    Args:
        log_reward: [B] of terminal states sampled by the policy.
        log_prob: [B] their log p(x) (`terminating_log_prob`).
        log_weight: [B, M] of M trajectories sampled backward (P_B) from each of them.
        seed: of the interval.
    """
    arrays = [_array(log_reward.double() - log_prob.double()), _array(log_weight.mean(1))]
    return bootstrap(_reweighted_mean, arrays, seed=seed)


def log_partition(log_weight: Tensor, *, seed: int) -> Interval:
    """Return log E[w] over the policy's own trajectories: log Z by importance sampling, too low on average."""
    return bootstrap(_log_mean, [_array(log_weight)], seed=seed)


def symmetry_slope(log_prob: Tensor, log_reward: Tensor, log_symmetry: Tensor, *, seed: int) -> Interval | None:
    """Return the least-squares slope of log p(x) - log R(x) against log |Aut(x)|; None if that is constant.

    0 if p(x) ~ R(x); -1 for a sampler without symmetry correction, p(x) ~ R(x) / |Aut(x)|.
    """
    if float(log_symmetry.min()) == float(log_symmetry.max()):
        return None
    excess = _array(log_prob.double() - log_reward.double())
    return bootstrap(_slope, [_array(log_symmetry), excess], seed=seed)


def flow_consistency(log_prob: Tensor, log_reward: Tensor, subsets: Tensor, *, seed: int) -> Interval:
    """Return the expected total variation between p and R, both restricted to a random subset, in [0, 1].

    Flow consistency in sub-graphs, E_S[TV(p restricted to S, R restricted to S)] (Silva et al. 2025, When do GFlowNets
    learn the right distribution?, definition 1); 0 iff p(x) ~ R(x). Noise in estimates of log p raises it. The
    interval assumes independent subsets.

    Args:
        log_prob: [X] log p(x), up to a constant.
        log_reward: [X] log R(x), up to a constant.
        subsets: [K, m] indices of the states in each subset.
        seed: of the interval.
    """
    distances = restricted_distances(log_prob.double()[subsets], log_reward.double()[subsets])
    return bootstrap(np.mean, [distances.numpy()], seed=seed)


def restricted_distances(log_prob: Tensor, log_reward: Tensor) -> Tensor:
    """Return the total variation between p and R within each subset, [K], of values [K, m]."""
    return (log_prob.softmax(1) - log_reward.softmax(1)).abs().sum(1) / 2


def disjoint_subsets(num_states: int, *, size: int, generator: torch.Generator) -> Tensor:
    """Return the maximum number of random disjoint subsets of `size` states, [X // m, m]."""
    num = num_states // size
    return torch.randperm(num_states, generator=generator)[: num * size].reshape(num, size)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


def _log_mean(log_weight: np.ndarray, axis: int) -> np.ndarray:
    return torch.from_numpy(log_weight).logsumexp(axis).numpy() - math.log(log_weight.shape[axis])


def _reweighted_mean(log_weight: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    return (torch.from_numpy(log_weight).softmax(axis).numpy() * values).sum(axis)


def _slope(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    x = x - x.mean(axis, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (x * y).sum(axis) / (x * x).sum(axis)


SUBSET_SIZE = 8  # maximum number of terminal states per subset of the flow consistency
_NUM_SUBSETS = 4  # at least, for an interval


def certify_exactly(
    graph: StateGraph, log_forward: Tensor, log_reward: Tensor, *, learned_log_z: float | None
) -> ExactCertificate:
    """Return the certificate of a policy on an enumerated space.

    Args:
        graph: all states.
        log_forward: [M] log P_F of every action (`policy_log_prob`).
        log_reward: [S] log R of the terminal states, uncorrected; other entries are ignored.
        learned_log_z: log Z learned by the objective.
    """
    probability = terminating_distribution(graph, log_forward)
    target = target_distribution(graph, log_reward)
    uncorrected = target_distribution(graph, log_reward.double() - graph.num_automorphisms.log())
    ends = graph.terminal
    log_z = float(log_reward.double()[ends].logsumexp(0))
    deviation = probability[ends].log() - log_reward.double()[ends] + log_z
    counts = graph.num_automorphisms
    return ExactCertificate(
        num_states=len(graph),
        num_terminal=len(ends),
        total_variation=total_variation(probability, target),
        l1=l1_distance(probability, target),
        jensen_shannon=jensen_shannon(probability, target),
        spearman=float(spearman(probability[ends].numpy(), log_reward.double()[ends].numpy())),
        log_z=log_z,
        learned_log_z=learned_log_z,
        tv_uncorrected=total_variation(probability, uncorrected),
        tv_of_symmetries=total_variation(target, uncorrected),
        classes=symmetry_classes(counts[ends] / counts[0], deviation),
    )


def symmetry_classes(automorphisms: Tensor, deviation: Tensor) -> tuple[SymmetryClass, ...]:
    """Return the mean deviation of the terminal states with each automorphism count.

    Args:
        automorphisms: [X] |Aut(x)| / |Aut(s0)|.
        deviation: [X] log p(x) - log R(x) / Z.
    """
    counts, owner, num = automorphisms.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(counts), dtype=torch.float64).index_add(0, owner, deviation.double()) / num
    rows = zip(counts.tolist(), num.tolist(), mean.tolist(), strict=True)
    return tuple(SymmetryClass(*row) for row in rows)


@dataclass(frozen=True)
class CheckedStates:
    """X distinct terminal states and M backward trajectories from each of them."""

    log_reward: Tensor  # [X]
    log_symmetry: Tensor  # [X] log |Aut(x)| - log |Aut(s0)|
    log_ratio: Tensor  # [X, M] log P_F(tau) - log P_B(tau | x)
    sampled: Tensor  # [B] int64, index of the terminal state of each sample of the policy


def certify_by_estimates(
    samples: TrajectoryBatch, log_ratio: Tensor, checked: CheckedStates, *, learned_log_z: float | None, seed: int
) -> EstimatedCertificate:
    """Return the certificate of a policy on a space too large to enumerate.

    Args:
        samples: trajectories of the policy without exploration; they end in `checked.sampled`.
        log_ratio: [B] log P_F(tau) - log P_B(tau | x) of the samples.
        checked: terminal states on which p is compared with R.
        learned_log_z: log Z learned by the objective.
        seed: of the subsets and the intervals.
    """
    ends, generator = checked.sampled, torch.Generator().manual_seed(seed)
    log_weight = log_weights(log_ratio, checked.log_reward[ends], samples.log_symmetry)
    log_prob = terminating_log_prob(checked.log_ratio, checked.log_symmetry)
    back = log_weights(checked.log_ratio, checked.log_reward[:, None], checked.log_symmetry[:, None])
    num, num_rollouts = checked.log_ratio.shape
    size = min(num, SUBSET_SIZE, max(2, num // _NUM_SUBSETS))
    subsets = disjoint_subsets(num, size=size, generator=generator)
    pairs = [log_prob.numpy(), checked.log_reward.double().numpy()]
    log_z = log_partition(log_weight, seed=seed)
    deviation = log_prob - checked.log_reward.double() + log_z.value
    return EstimatedCertificate(
        num_samples=len(samples),
        num_test=num,
        subset_size=size,
        num_rollouts=num_rollouts,
        effective_rollouts=float(effective_sample_size(checked.log_ratio).mean()),
        elbo=evidence_bound(log_weight, seed=seed),
        log_z=log_z,
        eubo=reweighted_upper_bound(checked.log_reward[ends], log_prob[ends], back[ends], seed=seed),
        learned_log_z=learned_log_z,
        log_prob=bootstrap(np.mean, pairs[:1], seed=seed),
        flow_consistency=flow_consistency(log_prob, checked.log_reward, subsets, seed=seed),
        spearman=bootstrap(spearman, pairs, seed=seed),
        pearson=bootstrap(pearson, pairs, seed=seed),
        symmetry_slope=symmetry_slope(log_prob, checked.log_reward, checked.log_symmetry, seed=seed),
        classes=symmetry_classes(checked.log_symmetry.double().exp().round(decimals=3), deviation),
    )
