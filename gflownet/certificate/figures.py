"""Certificates: the distance of a policy's distribution from the target R(x) / Z, exact or estimated.

Letters: S states, M their actions (`gflownet.certificate.exact`), X terminal states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gflownet.certificate.estimates import (
    disjoint_subsets,
    effective_sample_size,
    evidence_lower_bound,
    flow_consistency,
    log_partition,
    log_weights,
    reweighted_upper_bound,
    symmetry_slope,
    terminating_log_prob,
)
from gflownet.certificate.exact import (
    StateGraph,
    jensen_shannon,
    l1_distance,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.result import EstimatedCertificate, ExactCertificate, SymmetryClass
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.statistics import bootstrap, pearson, spearman

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
        elbo=evidence_lower_bound(log_weight, seed=seed),
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
