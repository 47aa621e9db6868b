"""The certificate of a run: the policy's distribution over terminal states compared with R(x) / Z.

Letters: X terminal states, K objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.evaluation.claims import Store
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store import Claim, EvaluationRecord, EvaluationStatus, EvaluationStore, Identity
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.canonical import Candidate
from gflownet.mdp.context import GraphBuildingEnvContext
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
from gflownet.objectives.base import Objective
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.process import stream_seed

NUM_ROLLOUTS = 10  # backward trajectories from each state with an estimated p(x)
BETA_QUANTILES = (0.05, 0.5, 0.95)  # of a random inverse temperature: the certified values
_NUM_DRAWS = 999  # of the conditioning, to compute the quantiles
_CHUNK = 16  # candidates evaluated between two checks for a stop request: a default training step
# Each random choice has its own stream.
_CONDITIONING, _FORWARD, _BACKWARD, _INTERVALS = range(4)


@dataclass(frozen=True)
class Certified:
    """The certificate under one conditioning."""

    beta: float
    conditioning: tuple[float, ...]  # encoding read by the policy
    certificate: Certificate


@dataclass(frozen=True)
class RunCertificate:
    """The certificates of a run and the evaluations behind them."""

    parts: tuple[Certified, ...]
    num_rewards: int  # terminal states with a reward
    num_evaluated: int  # of these, evaluated for the certificate and not in training
    num_failed: int  # of these, with a failed evaluation and the floor score


class CertificateStore:
    """The evaluations of a run, and a second store for new ones, which reports of the search exclude."""

    def __init__(self, run: Store, new: EvaluationStore) -> None:
        self._run, self._new = run, new

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the record of each graph, or None."""
        pairs = zip(self._run.find_many(identities), self._new.find_many(identities), strict=True)
        return [new or known for known, new in pairs]  # a new one is another attempt

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        """Store new evaluations."""
        self._new.add(records)

    def claim(self, candidates: Iterable[tuple[Candidate, Identity]], **options: Any) -> list[Claim]:
        """Return the claims of new evaluations, see `EvaluationStore.claim`."""
        return self._new.claim(candidates, **options)

    def start(self, identities: Iterable[Identity], *, owner: str) -> None:
        """Count an attempt, see `EvaluationStore.start`."""
        self._new.start(identities, owner=owner)

    def renew(self, *, owner: str, lease: float) -> int:
        """Extend the claims of an owner."""
        return self._new.renew(owner=owner, lease=lease)

    def release(self, *, owner: str, identities: Sequence[Identity] | None = None) -> int:
        """Give back claims of an owner."""
        return self._new.release(owner=owner, identities=identities)


@dataclass(frozen=True)
class Subject:
    """The certified policy with its task, objective and evaluator."""

    context: GraphBuildingEnvContext
    task: GFNTask
    policy: PolicyOnDevice  # for sampling
    objective: Objective
    trained: PolicyOnDevice  # by the objective; the sampling policy may be a moving average of it
    evaluator: Evaluator
    store: CertificateStore  # of the evaluator
    step: int
    seed: int

    def generator(self, *stream: int) -> torch.Generator:
        """Return the random generator of a stream."""
        return torch.Generator().manual_seed(stream_seed(self.seed, *stream))

    def log_z(self, conditioning: Conditioning) -> float | None:
        """Return the learned log Z under a single conditioning, None if it is not learned."""
        log_z = self.objective.log_partition(self.trained, conditioning.encoding)
        return None if log_z is None else float(log_z.detach())

    @property
    def prior(self) -> PolicyFunction | None:
        """Return the prior p0 of an objective with the target R(x) p0(x) instead of R(x)."""
        return self.objective.prior_policy(self.policy)

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Return the log-rewards of scores [X], or of utilities [X, K], under a single conditioning, float64."""
        return self.task.log_reward(scores, _repeated(conditioning, len(scores))).double()


class _Method(Protocol):
    """Exact or estimated certification."""

    terminal: GraphStates  # X distinct terminal states, to be evaluated

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        ...


class _Enumeration:
    """Exact certification by pushing the policy's probabilities forward through all states."""

    def __init__(self, subject: Subject, graph: StateGraph) -> None:
        self._subject, self._graph = subject, graph
        self.terminal = graph.states[graph.terminal]

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject, graph = self._subject, self._graph
        log_reward = torch.zeros(len(graph), dtype=torch.float64)
        log_reward[graph.terminal] = subject.log_reward(scores, conditioning)
        prior = subject.prior
        if prior is not None:
            log_prior = terminating_distribution(graph, self._log_forward(prior, conditioning)).log()
            log_reward[graph.terminal] += log_prior[graph.terminal]
        log_forward = self._log_forward(subject.policy, conditioning)
        return certify_exactly(graph, log_forward, log_reward, learned_log_z=subject.log_z(conditioning))

    def _log_forward(self, policy: PolicyFunction, conditioning: Conditioning) -> Tensor:
        return policy_log_prob(self._graph, forward_scores(self._subject.context, policy, conditioning.encoding[0]))


class _Sampling:
    """Estimates from samples of the policy and backward trajectories from these and from known terminal states.

    Under each conditioning p is compared with R on the terminal states of all conditionings.
    """

    def __init__(
        self,
        subject: Subject,
        conditionings: Sequence[Conditioning],
        num_samples: int,
        extra_states: GraphStates | None,
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
        states = GraphStates.cat(
            [*(sample.terminal for sample in self._samples), *([] if extra_states is None else [extra_states])]
        )
        _, owner = subject.context.env.identify(states).unique(return_inverse=True)
        first = torch.full((int(owner.max()) + 1,), len(states))
        first = first.scatter_reduce(0, owner, torch.arange(len(states)), "amin")
        self.terminal = states[first]
        # Index of the terminal state of each sample.
        self._sampled = owner[: num_samples * len(conditionings)].split(num_samples)

    def certificate(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certificate:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject = self._subject
        samples = self._with_own_backward(self._samples[index])
        rollouts = self._rollouts(conditioning, subject.generator(_BACKWARD, index))
        log_symmetry = rollouts.log_symmetry[::NUM_ROLLOUTS]
        log_reward = subject.log_reward(scores, conditioning)
        if subject.prior is not None:
            log_reward += terminating_log_prob(self._ratios(subject.prior, rollouts), log_symmetry)
        checked = CheckedStates(
            log_reward=log_reward,
            log_symmetry=log_symmetry,
            log_ratio=self._ratios(subject.policy, rollouts),
            sampled=self._sampled[index],
        )
        return certify_by_estimates(
            samples,
            log_ratio(subject.context, subject.policy, samples),
            checked,
            learned_log_z=subject.log_z(conditioning),
            seed=stream_seed(subject.seed, _INTERVALS, index),
        )

    def _rollouts(self, conditioning: Conditioning, generator: torch.Generator) -> TrajectoryBatch:
        """Return NUM_ROLLOUTS trajectories into each terminal state, sampled through the policy's P_B or uniformly."""
        subject, num = self._subject, len(self.terminal)
        rollouts = sample_backward(
            subject.context,
            self.terminal[torch.arange(num).repeat_interleave(NUM_ROLLOUTS)],
            conditioning=_repeated(conditioning, num * NUM_ROLLOUTS),
            generator=generator,
            policy=subject.policy if subject.context.backward_types else None,
        )
        return self._with_own_backward(rollouts)

    def _with_own_backward(self, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return the trajectories with log P_B of the policy, if it has a learned backward policy."""
        context = self._subject.context
        if not context.backward_types:
            return trajectories
        return with_learned_backward(context, self._subject.policy, trajectories)

    def _ratios(self, policy: PolicyFunction, rollouts: TrajectoryBatch) -> Tensor:
        """Return log P_F - log P_B of the rollouts into each terminal state, [X, NUM_ROLLOUTS]."""
        return log_ratio(self._subject.context, policy, rollouts).reshape(-1, NUM_ROLLOUTS)


def certify(
    subject: Subject,
    *,
    max_states: int,
    num_samples: int,
    extra_states: GraphStates | None,
    report_stage: Callable[[str], None],
    stopped: Callable[[], bool],
) -> RunCertificate | None:
    """Return the certificate of a trained policy, None if a signal interrupted it.

    Args:
        subject: the policy and its target.
        max_states: spaces with more states get estimates.
        num_samples: number of trajectories for estimates.
        extra_states: terminal states from training, added to the states of the estimates.
        report_stage: prints a line before each stage.
        stopped: whether a signal arrived.
    """
    conditionings = _conditionings(subject)
    if not subject.objective.samples_reward:
        name = type(subject.objective).__name__
        report_stage(f"certificate: {name} does not aim at p(x) ~ R(x), the reference of all distances below")
    method: _Method
    try:
        graph = enumerate_states(subject.context.env, max_states=max_states)
    except ValueError as error:
        report_stage(f"certificate: estimates from {num_samples} trajectories ({error})")
        method = _Sampling(subject, conditionings, num_samples, extra_states)
    else:
        report_stage(f"certificate: exact, from all {len(graph)} states, {len(graph.terminal)} of them terminal")
        method = _Enumeration(subject, graph)
    candidates = [subject.context.env.terminal(method.terminal, i) for i in range(len(method.terminal))]
    records = subject.store.find_many([Identity.of(candidate) for candidate in candidates])
    num_new = sum(record is None for record in records)
    report_stage(f"certificate: evaluating {num_new} of {len(candidates)} terminal states")
    evaluations = _evaluated(subject, candidates, stopped)
    if evaluations is None:
        report_stage("certificate: none, interrupted")
        return None
    scores = torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])
    parts = []
    for index, conditioning in enumerate(conditionings):
        certificate = method.certificate(index, conditioning, scores)
        parts.append(Certified(float(conditioning.beta), tuple(conditioning.encoding[0].tolist()), certificate))
    num_failed = sum(evaluation.status is not EvaluationStatus.OK for evaluation in evaluations)
    return RunCertificate(tuple(parts), len(candidates), num_new, num_failed)


def _evaluated(
    subject: Subject, candidates: Sequence[Candidate], stopped: Callable[[], bool]
) -> list[Evaluation] | None:
    """Return the evaluations, None if a signal arrived before the last one."""
    evaluations: list[Evaluation] = []
    try:
        for start in range(0, len(candidates), _CHUNK):
            if stopped():
                return None
            evaluations += subject.evaluator.evaluate(candidates[start : start + _CHUNK], step=subject.step)
    except EvaluationStoppedError:
        return None
    return None if stopped() else evaluations


def _conditionings(subject: Subject) -> list[Conditioning]:
    """Return the certified conditionings: the only one, or samples at the quantiles of beta."""
    samples = subject.task.sample_conditioning(_NUM_DRAWS, generator=subject.generator(_CONDITIONING))
    rows = torch.cat([samples.encoding, samples.beta[:, None]], 1)
    if bool((rows == rows[0]).all()):
        return [Conditioning(samples.encoding[:1], samples.beta[:1])]
    order = samples.beta.argsort(stable=True)
    indices = [order[round(quantile * (_NUM_DRAWS - 1))] for quantile in BETA_QUANTILES]
    return [Conditioning(samples.encoding[index][None], samples.beta[index][None]) for index in indices]


def _repeated(conditioning: Conditioning, num: int) -> Conditioning:
    return Conditioning(conditioning.encoding.expand(num, -1), conditioning.beta.expand(num))
