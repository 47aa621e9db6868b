"""The certificate of a run: the policy's distribution over terminal states compared with R(x) / Z."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.enumeration import Enumeration
from gflownet.certificate.exact import enumerate_states
from gflownet.certificate.result import RunCertificate
from gflownet.certificate.sampling import Sampling
from gflownet.certificate.subject import Subject
from gflownet.errors import counted
from gflownet.evaluation.store import EvaluationStatus, Identity
from gflownet.mdp.states import GraphStates


def certify(
    subject: Subject,
    *,
    max_states: int,
    num_samples: int,
    extra_states: GraphStates | None,
    report_stage: Callable[[str], None],
    stopped: Callable[[], bool],
    report_progress: Progress = lambda stage, done, total: None,
) -> RunCertificate | None:
    """Return the certificate of a trained policy, None if a signal interrupted it.

    Args:
        subject: the policy and its target.
        max_states: spaces with more states get estimates.
        num_samples: number of trajectories for estimates.
        extra_states: terminal states from training, added to the states of the estimates.
        report_stage: prints a line before each stage.
        stopped: whether a signal arrived.
        report_progress: gets the name of a stage, its completed and its whole work.
    """
    conditionings = subject.conditionings()
    if not subject.objective.samples_reward:
        name = type(subject.objective).__name__
        report_stage(f"certificate: {name} does not aim at p(x) ~ R(x), the reference of all distances below")
    method: Enumeration | Sampling
    try:
        graph = enumerate_states(subject.context.env, max_states=max_states)
    except ValueError as error:
        report_stage(f"certificate: estimates from {num_samples} trajectories ({error})")
        method = Sampling(subject, conditionings, num_samples, extra_states)
    else:
        report_stage(f"certificate: exact, from all {len(graph)} states, {len(graph.terminal)} of them terminal")
        method = Enumeration(subject, graph)
    rewards = _completed(subject, method, report_stage) or _measured(
        subject, method, report_stage, stopped, report_progress
    )
    if rewards is None:
        report_stage("certificate: none, interrupted")
        return None
    parts = []
    for index, conditioning in enumerate(conditionings):
        report_progress("certificate, comparison", index, len(conditionings))
        parts.append(method.certified(index, conditioning, rewards.scores))
    return RunCertificate(
        parts=tuple(parts),
        rules=method.rules,
        objective=type(subject.objective).__name__,
        samples_reward=subject.objective.samples_reward,
        symmetry=_symmetry(subject),
        num_rewards=len(rewards.scores),
        num_evaluated=rewards.num_evaluated,
        num_failed=rewards.num_failed,
        num_predicted=rewards.num_predicted,
    )


# Receives the name of a stage, its completed and its whole work.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Rewards:
    """Scores of the terminal states of a certificate."""

    scores: Tensor  # [X], or utilities [X, K]
    num_evaluated: int = 0
    num_failed: int = 0
    num_predicted: int = 0


def _completed(
    subject: Subject, method: Enumeration | Sampling, report_stage: Callable[[str], None]
) -> _Rewards | None:
    """Return measured and predicted scores, without new evaluations; None where the target is the measured reward."""
    if subject.complete is None:
        return None
    scores, is_measured = subject.complete(method.terminal)
    num_measured = int(is_measured.sum())
    num_predicted = len(scores) - num_measured
    report_stage(
        f"certificate: the target is the completed reward, {num_measured} measured and "
        f"{counted(num_predicted, 'predicted score')}"
    )
    return _Rewards(scores.float(), num_predicted=num_predicted)


def _measured(
    subject: Subject,
    method: Enumeration | Sampling,
    report_stage: Callable[[str], None],
    stopped: Callable[[], bool],
    report_progress: Progress,
) -> _Rewards | None:
    """Return measured scores, None if a signal arrived."""
    candidates = [subject.context.env.terminal(method.terminal, i) for i in range(len(method.terminal))]
    records = subject.store.find_many([Identity.of(candidate) for candidate in candidates])
    num_new = sum(record is None for record in records)
    report_stage(f"certificate: evaluating {num_new} of {len(candidates)} terminal states")
    evaluations = subject.evaluated(
        candidates, stopped, lambda num: report_progress("certificate, evaluations", num, len(candidates))
    )
    if evaluations is None:
        return None
    scores = torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])
    num_failed = sum(evaluation.status is not EvaluationStatus.OK for evaluation in evaluations)
    return _Rewards(scores, num_new, num_failed)


def _symmetry(subject: Subject) -> str | None:
    """Return how the objective counts symmetric states."""
    reader = subject.reader
    if reader is None:
        return None
    if subject.prior is not None or reader.counts_classes:
        return "actions"
    return "reward" if reader.scales_rewards else "none"
