"""The certificate of a run: the policy's distribution over terminal states compared with R(x) / Z.

Exact by enumeration of a small space, else by estimates from samples. Letters: S states, X terminal states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gflownet.certificate.balanced_loss import largest_loss, trained_loss
from gflownet.certificate.estimates import (
    NUM_ROLLOUTS,
    CheckedStates,
    certify_by_estimates,
    certify_exactly,
    log_ratio,
    rolled_back,
    terminating_log_prob,
    with_learned_backward,
)
from gflownet.certificate.exact import (
    StateGraph,
    enumerate_states,
    first_positions,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.optimum import SymmetryTermError, exact_optimum, wrong_symmetry_terms
from gflownet.certificate.result import Certified, RunCertificate
from gflownet.certificate.rules import check_rules, limit_violations, uniform_violations
from gflownet.certificate.subject import Subject, repeated
from gflownet.errors import counted
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.store.evaluations import EvaluationStatus, Identity
from gflownet.learning.sampler import sample_forward, uniform_states
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.workers.process import Stream, stream_seed

_NUM_CHECKED = 32  # sampled trajectories with a checked P_B


class Enumeration:
    """Certifies a policy on an enumerated space."""

    def __init__(self, subject: Subject, graph: StateGraph, conditionings: Sequence[Conditioning]) -> None:
        self._subject, self._whole, env = subject, graph, subject.context.env
        self.terminal = graph.states[graph.terminal]  # X distinct terminal states, to be evaluated
        # The states within the caps of each conditioning.
        self._graphs = [graph if c.limit is None else enumerate_states(env, limit=c.limit[0]) for c in conditionings]
        rules = check_rules(env, graph.states, is_complete=True, seed=stream_seed(subject.seed, Stream.RULES))
        reached = [each.states[each.terminal] for each in self._graphs]
        found = [*limit_violations(env, reached, self.terminal)]
        for name, batch in subject.samples(conditionings[0], _NUM_CHECKED).items():
            found += uniform_violations(env, batch, name)
        self.rules = replace(rules, violations=(*rules.violations, *found))

    def certified(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certified:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject, graph = self._subject, self._graphs[index]
        log_reward = torch.zeros(len(graph), dtype=torch.float64)
        of_state = scores.new_zeros(len(self._whole), *scores.shape[1:])
        of_state[self._whole.terminal] = scores
        scores = of_state[self._whole.locate(graph.code[graph.terminal])]
        log_reward[graph.terminal] = subject.log_reward(scores, conditioning)
        target, prior = log_reward.clone(), subject.prior
        if prior is not None:
            log_prior = terminating_distribution(graph, self._log_forward(graph, prior, conditioning)).log()
            target[graph.terminal] += log_prior[graph.terminal]
        is_above = (subject.context.env.sizes(graph.states) > graph.states.limit).any(1)
        target[is_above] = -torch.inf  # reached by an error of the masks
        log_forward = self._log_forward(graph, subject.policy, conditioning)
        try:
            optimum, symmetry_term = exact_optimum(subject, graph, conditioning, log_reward)
        except ValueError:
            if self.rules.holds:
                raise
            optimum = symmetry_term = None  # the violated rules are the finding
        distance = None
        if optimum is not None:
            distance = total_variation(terminating_distribution(graph, log_forward), optimum.probability)
        return Certified(
            beta=float(conditioning.beta),
            conditioning=tuple(conditioning.encoding[0].tolist()),
            certificate=certify_exactly(graph, log_forward, target, learned_log_z=subject.log_z(conditioning)),
            optimum=optimum,
            tv_to_optimum=distance,
            symmetry_term=symmetry_term,
            limits=subject.limits(conditioning),
            trained=None if optimum is None else trained_loss(subject, graph, log_reward, conditioning),
        )

    def _log_forward(self, graph: StateGraph, policy: PolicyFunction, conditioning: Conditioning) -> Tensor:
        return policy_log_prob(graph, forward_scores(self._subject.context, policy, conditioning.encoding[0]))


_RANDOM_SHARE = 4  # one random walk for this many trajectories of the policy


class Sampling:
    """Estimates from samples of the policy and backward trajectories from these and from other terminal states.

    The others are known ones and the ends of uniform random walks, since a policy may never sample some of the mass.
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
        self._samples = []
        for index, conditioning in enumerate(conditionings):
            many, generator = repeated(conditioning, num_samples), subject.generator(Stream.FORWARD, index)
            sample = sample_forward(subject.context, subject.policy, conditioning=many, generator=generator)
            self._samples.append(sample)
        num_walks, generator = max(1, num_samples // _RANDOM_SHARE), subject.generator(Stream.WALKS)
        further = [uniform_states(subject.context.env, num_walks, generator=generator)]
        further += [] if extra_states is None else [extra_states]
        states = GraphStates.cat([*(sample.terminal for sample in self._samples), *further])
        first, owner = first_positions(subject.context.env.identify(states))
        self.terminal = states[first]
        # Index of the terminal state of each sample.
        self._sampled = owner[: num_samples * len(conditionings)].split(num_samples)
        visited = GraphStates.cat([*(sample.states for sample in self._samples), self.terminal])
        seed = stream_seed(subject.seed, Stream.RULES)
        visited = visited.with_limit(subject.context.env.initial_states(1).limit)  # rules do not depend on limits
        rules = check_rules(subject.context.env, visited, is_complete=False, seed=seed)
        found = [*limit_violations(subject.context.env, [each.terminal for each in self._samples], self.terminal[:0])]
        found += [*uniform_violations(subject.context.env, self._samples[0], "sampled")]
        self.rules = replace(rules, violations=(*rules.violations, *found))

    def certified(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certified:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject, samples = self._subject, self._samples[index]
        if subject.context.backward_types:
            samples = with_learned_backward(subject.context, subject.policy, samples)
        inside = self._inside(index, conditioning)
        scores, sampled = scores[inside], torch.searchsorted(inside, self._sampled[index])
        terminal, generator = self.terminal[inside], subject.generator(Stream.BACKWARD, index)
        each = repeated(conditioning, len(terminal))
        rollouts = rolled_back(subject.context, subject.policy, terminal, each, num=NUM_ROLLOUTS, generator=generator)
        log_symmetry = rollouts.log_symmetry[::NUM_ROLLOUTS]
        log_reward = subject.log_reward(scores, conditioning)
        trained = None
        if not subject.objective.needs_state_rewards:
            back = rollouts.with_rewards(log_reward.repeat_interleave(NUM_ROLLOUTS))
            back = back.rows(torch.arange(0, len(back), NUM_ROLLOUTS))
            trained = largest_loss(subject, [back, samples.with_rewards(log_reward[sampled])])
        if subject.prior is not None:
            log_reward = log_reward + terminating_log_prob(self._ratios(subject.prior, rollouts), log_symmetry)
        checked = CheckedStates(
            log_reward=log_reward,
            log_symmetry=log_symmetry,
            log_ratio=self._ratios(subject.policy, rollouts),
            sampled=sampled,
        )
        certificate = certify_by_estimates(
            samples,
            log_ratio(subject.context, subject.policy, samples),
            checked,
            learned_log_z=subject.log_z(conditioning),
            seed=stream_seed(subject.seed, Stream.INTERVALS, index),
        )
        return Certified(
            beta=float(conditioning.beta),
            conditioning=tuple(conditioning.encoding[0].tolist()),
            certificate=certificate,
            optimum=None,
            tv_to_optimum=None,
            symmetry_term=self._symmetry_term(index, log_reward[sampled]),
            limits=subject.limits(conditioning),
            trained=trained,
        )

    def _inside(self, index: int, conditioning: Conditioning) -> Tensor:
        """Return the positions of the terminal states within the caps of a conditioning, ascending."""
        if conditioning.limit is None:
            return torch.arange(len(self.terminal))
        within = (self._subject.context.env.sizes(self.terminal) <= conditioning.limit).all(1)
        within[self._sampled[index]] = True  # also those that the masks should not have allowed
        return within.nonzero().squeeze(1)

    def _symmetry_term(self, index: int, log_reward: Tensor) -> SymmetryTermError | None:
        """Return the sampled states whose log-reward the objective scales by a wrong factor."""
        reader = self._subject.reader
        if reader is None or not self._subject.objective.samples_reward or self._subject.prior is not None:
            return None
        samples = self._samples[index].with_rewards(log_reward)
        return wrong_symmetry_terms(self._subject, reader, samples)

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
        method = Enumeration(subject, graph, conditionings)
    measured = _predicted(subject, method, report_stage) or _measured(
        subject, method, report_stage, stopped, report_progress
    )
    if measured is None:
        report_stage("certificate: none, interrupted")
        return None
    parts, (scores, counts) = [], measured
    for index, conditioning in enumerate(conditionings):
        report_progress("certificate, comparison", index, len(conditionings))
        parts.append(method.certified(index, conditioning, scores))
    return RunCertificate(
        parts=tuple(parts),
        rules=method.rules,
        objective=type(subject.objective).__name__,
        samples_reward=subject.objective.samples_reward,
        symmetry=_symmetry(subject),
        num_rewards=len(scores),
        **counts,
    )


# Receives the name of a stage, its completed and its whole work.
Progress = Callable[[str, int, int], None]


# Scores [X] of the terminal states of a certificate, or utilities [X, K], and the counts of a `RunCertificate`.
_Rewards = tuple[Tensor, dict[str, int]]


def _predicted(
    subject: Subject, method: Enumeration | Sampling, report_stage: Callable[[str], None]
) -> _Rewards | None:
    """Return predicted scores, without new evaluations; None where the target is the measured reward."""
    if subject.predict is None:
        return None
    scores = subject.predict(method.terminal)
    report_stage(f"certificate: the target is the reward of {counted(len(scores), 'predicted score')}")
    return scores.float(), {"num_predicted": len(scores)}


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
    return scores, {"num_evaluated": num_new, "num_failed": num_failed}


def _symmetry(subject: Subject) -> str | None:
    """Return how the objective counts symmetric states."""
    reader = subject.reader
    if reader is None:
        return None
    if subject.prior is not None or reader.counts_classes:
        return "actions"
    return "reward" if reader.scales_rewards else "none"
