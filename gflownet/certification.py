"""The certificate of a run: what its policy samples, against what its rewards say that it is to sample.

Letters: X terminal states, B trajectories, M trajectories drawn backwards from a state, C conditioning features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store import EvaluationRecord, EvaluationStatus, EvaluationStore, Identity
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.canonical import Candidate
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.certificate import Certificate, CheckedStates, certify_by_estimates, certify_exactly
from gflownet.metrics.estimates import log_ratio, terminating_log_prob, with_learned_backward
from gflownet.metrics.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
)
from gflownet.objectives.actor_critic import ActorCritic
from gflownet.objectives.base import Objective
from gflownet.objectives.max_likelihood import MaxLikelihood
from gflownet.objectives.order_preserving import OrderPreserving
from gflownet.objectives.relative import RelativeTrajectoryBalance
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.process import stream_seed

NUM_ROLLOUTS = 10  # backward trajectories into each state whose p(x) is estimated (spec/gflownet.md, rung 5)
# Where rewards are sharpened at random, those quantiles of beta are certified.
BETA_QUANTILES = (0.05, 0.5, 0.95)
_NUM_DRAWS = 999  # of what trajectories are conditioned on, to tell those
_OTHER_AIMS = (ActorCritic, MaxLikelihood, OrderPreserving)  # objectives whose optimum is another p(x)
_CHUNK = 16  # candidates evaluated between two looks at whether to stop: a training step of default size
# What is drawn at random, each from a stream of its own.
_CONDITIONING, _FORWARD, _BACKWARD, _INTERVALS = range(4)


@dataclass(frozen=True)
class Certified:
    """The certificate under one conditioning."""

    beta: float
    conditioning: tuple[float, ...]  # what the policy was shown
    certificate: Certificate


@dataclass(frozen=True)
class RunCertificate:
    """All that a run is certified by."""

    parts: tuple[Certified, ...]
    num_rewards: int  # terminal states whose rewards it takes
    num_evaluated: int  # those of them that were evaluated for it, and not in training
    num_failed: int  # those states whose evaluation failed, and which count with the floor score


class CertificateStore:
    """The run's evaluations, and beside them those made for the certificate: a report knows of the search's alone."""

    def __init__(self, found: EvaluationStore, own: EvaluationStore) -> None:
        self._found, self._own = found, own

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the row of each graph, or None."""
        pairs = zip(self._found.find_many(identities), self._own.find_many(identities), strict=True)
        return [found or own for found, own in pairs]

    def add(self, records: Sequence[EvaluationRecord]) -> None:
        """Keep what was evaluated for the certificate."""
        self._own.add(records)


@dataclass(frozen=True)
class Subject:
    """What is certified, and who scores terminal states for it."""

    context: GraphBuildingEnvContext
    task: GFNTask
    policy: PolicyOnDevice  # that samples
    objective: Objective
    trained: PolicyOnDevice  # of the objective; the one that samples may be a moving average of it
    evaluator: Evaluator
    store: CertificateStore  # that of the evaluator
    step: int
    seed: int

    def generator(self, *stream: int) -> torch.Generator:
        """Return the randomness of one purpose."""
        return torch.Generator().manual_seed(stream_seed(self.seed, *stream))

    def log_z(self, conditioning: Conditioning) -> float | None:
        """Return the learned log Z under a conditioning of one."""
        found = self.objective.log_partition(self.trained, conditioning.encoding)
        return None if found is None else float(found.detach())

    @property
    def prior(self) -> PolicyFunction | None:
        """Return the prior p0 of an objective that aims at p(x) ~ R(x) p0(x) in place of R(x)."""
        objective = self.objective
        if not isinstance(objective, RelativeTrajectoryBalance):
            return None
        if objective.prior is not None:
            return PolicyOnDevice(objective.prior, device=self.policy.device, precision="float32")

        def uniform(batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
            categorical, numbers = self.policy(batch, conditioning)
            return categorical.mixed(1.0), numbers

        return uniform

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Return the log-rewards of scores [X], or of utilities [X, K], under a conditioning of one."""
        return self.task.log_reward(scores, _repeated(conditioning, len(scores)))


class _Method(Protocol):
    """How a certificate comes about."""

    terminal: GraphStates  # X distinct terminal states whose rewards it takes

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        ...


class _Enumeration:
    """Every terminal state, and the policy pushed forward through all states."""

    def __init__(self, subject: Subject, graph: StateGraph) -> None:
        self._subject, self._graph = subject, graph
        self.terminal = graph.states[graph.terminal]

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        subject, graph = self._subject, self._graph
        log_reward = torch.zeros(len(graph), dtype=torch.float64)
        log_reward[graph.terminal] = subject.log_reward(scores, conditioning).double()
        if subject.prior is not None:
            log_prior = terminating_distribution(graph, self._log_forward(subject.prior, conditioning)).log()
            log_reward[graph.terminal] += log_prior[graph.terminal]
        log_forward = self._log_forward(subject.policy, conditioning)
        return certify_exactly(graph, log_forward, log_reward, learned_log_z=subject.log_z(conditioning))

    def _log_forward(self, policy: PolicyFunction, conditioning: Conditioning) -> Tensor:
        ask = forward_scores(self._subject.context, policy, conditioning.encoding[0])
        return policy_log_prob(self._graph, ask)


class _Sampling:
    """Samples of the policy, and trajectories drawn backwards from those and from terminal states known before.

    Under each conditioning p is compared with R on all of them, whichever they were sampled under.
    """

    def __init__(
        self, subject: Subject, conditionings: Sequence[Conditioning], num_samples: int, known: GraphStates | None
    ) -> None:
        self._subject = subject
        self._samples = [
            sample_forward(
                subject.context,
                subject.policy,
                conditioning=_repeated(conditioning, num_samples),
                generator=subject.generator(_FORWARD, index),
            )
            for index, conditioning in enumerate(conditionings)
        ]
        env = subject.context.env
        found = [sample.terminal for sample in self._samples] + ([] if known is None else [known])
        states = GraphStates.cat(found)
        _, owner = env.identify(states).unique(return_inverse=True)
        first = torch.full((int(owner.max()) + 1,), len(states)).scatter_reduce(
            0, owner, torch.arange(len(states)), "amin"
        )
        self.terminal = states[first]
        self._sampled = owner[: num_samples * len(conditionings)].split(num_samples)  # which of the X each one ended in

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        subject = self._subject
        samples = with_own_backward(subject.context, subject.policy, self._samples[index])
        rolled_back = draw_back(
            subject.context,
            subject.policy,
            self.terminal,
            conditioning=conditioning,
            generator=subject.generator(_BACKWARD, index),
        )
        log_symmetry = rolled_back.log_symmetry[::NUM_ROLLOUTS]
        log_reward = subject.log_reward(scores, conditioning).double()
        if subject.prior is not None:
            ratios = log_ratio(subject.context, subject.prior, rolled_back).reshape(-1, NUM_ROLLOUTS)
            log_reward += terminating_log_prob(ratios, log_symmetry)
        return certify_by_estimates(
            samples,
            log_ratio(subject.context, subject.policy, samples),
            checked_states(
                subject.context, subject.policy, rolled_back, log_reward=log_reward, sampled=self._sampled[index]
            ),
            learned_log_z=subject.log_z(conditioning),
            seed=stream_seed(subject.seed, _INTERVALS, index),
        )


def with_own_backward(
    context: GraphBuildingEnvContext, policy: PolicyOnDevice, trajectories: TrajectoryBatch
) -> TrajectoryBatch:
    """Return the trajectories with log P_B of the policy, if it has a backward policy of its own."""
    return with_learned_backward(context, policy, trajectories) if context.backward_types else trajectories


def draw_back(
    context: GraphBuildingEnvContext,
    policy: PolicyOnDevice,
    terminal: GraphStates,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
) -> TrajectoryBatch:
    """Return NUM_ROLLOUTS trajectories into each terminal state under a conditioning of one, one state after another.

    They are drawn through the policy's own P_B, if it has one, through the uniform one otherwise, and log P_B is that.
    """
    num = len(terminal)
    drawn = sample_backward(
        context,
        terminal[torch.arange(num).repeat_interleave(NUM_ROLLOUTS)],
        conditioning=_repeated(conditioning, num * NUM_ROLLOUTS),
        generator=generator,
        policy=policy if context.backward_types else None,
    )
    return with_own_backward(context, policy, drawn)


def checked_states(
    context: GraphBuildingEnvContext,
    policy: PolicyOnDevice,
    rolled_back: TrajectoryBatch,
    *,
    log_reward: Tensor,
    sampled: Tensor,
) -> CheckedStates:
    """Return the terminal states that trajectories of `draw_back` lead into.

    Args:
        context: how the policy is shown states.
        policy: the policy.
        rolled_back: the trajectories into X states.
        log_reward: [X].
        sampled: which of the states each sample of the policy ended in.
    """
    return CheckedStates(
        log_reward=log_reward,
        log_symmetry=rolled_back.log_symmetry[::NUM_ROLLOUTS],
        log_ratio=log_ratio(context, policy, rolled_back).reshape(-1, NUM_ROLLOUTS),
        sampled=sampled,
    )


def certify(
    subject: Subject,
    *,
    max_states: int,
    num_samples: int,
    known: GraphStates | None,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> RunCertificate | None:
    """Return the certificate of a trained policy, None if a signal came before it was complete.

    Args:
        subject: the policy and its target.
        max_states: where there are more states than this, the certificate is made of estimates.
        num_samples: trajectories that estimates are made from.
        known: terminal states seen in training, which estimates are checked on, too.
        say: is told what it takes, before it is done.
        stopped: whether a signal came.
    """
    conditionings = _conditionings(subject)
    if isinstance(subject.objective, _OTHER_AIMS):
        say(
            f"certificate: {type(subject.objective).__name__} does not aim at p(x) ~ R(x), which it is measured against"
        )
    method: _Method
    try:
        graph = enumerate_states(subject.context.env, max_states=max_states)
    except ValueError as error:
        say(f"certificate: estimates from {num_samples} trajectories ({error})")
        method = _Sampling(subject, conditionings, num_samples, known)
    else:
        say(f"certificate: exact, from all {len(graph)} states, {len(graph.terminal)} of them terminal")
        method = _Enumeration(subject, graph)
    candidates = [subject.context.env.terminal(method.terminal, i) for i in range(len(method.terminal))]
    known_before = subject.store.find_many([Identity.of(candidate) for candidate in candidates])
    num_new = sum(record is None for record in known_before)
    say(f"certificate: {num_new} of {len(candidates)} terminal states are to be evaluated first")
    evaluations = _evaluated(subject, candidates, stopped)
    if evaluations is None:
        say("certificate: none, it was interrupted")
        return None
    scores = torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])
    parts = []
    for index, conditioning in enumerate(conditionings):
        found = method.certificate(index, conditioning, scores)
        parts.append(Certified(float(conditioning.beta), tuple(conditioning.encoding[0].tolist()), found))
    num_failed = sum(evaluation.status is EvaluationStatus.FAILED for evaluation in evaluations)
    return RunCertificate(tuple(parts), len(candidates), num_new, num_failed)


def _evaluated(
    subject: Subject, candidates: Sequence[Candidate], stopped: Callable[[], bool]
) -> list[Evaluation] | None:
    """Return the evaluations, None if a signal came before the last one."""
    evaluations: list[Evaluation] = []
    for start in range(0, len(candidates), _CHUNK):
        if stopped():
            return None
        evaluations += subject.evaluator.evaluate(candidates[start : start + _CHUNK], step=subject.step)
    return None if stopped() else evaluations


def _conditionings(subject: Subject) -> list[Conditioning]:
    """Return what the policy is certified under: the one thing there is, or draws at the quantiles of beta."""
    drawn = subject.task.sample_conditioning(_NUM_DRAWS, generator=subject.generator(_CONDITIONING))
    together = torch.cat([drawn.encoding, drawn.beta[:, None]], 1)
    if bool((together == together[0]).all()):
        return [Conditioning(drawn.encoding[:1], drawn.beta[:1])]
    order = drawn.beta.argsort(stable=True)
    chosen = [order[round(quantile * (_NUM_DRAWS - 1))] for quantile in BETA_QUANTILES]
    return [Conditioning(drawn.encoding[at][None], drawn.beta[at][None]) for at in chosen]


def _repeated(conditioning: Conditioning, num: int) -> Conditioning:
    return Conditioning(conditioning.encoding.expand(num, -1), conditioning.beta.expand(num))
