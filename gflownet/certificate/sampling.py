"""Certification by estimates, for spaces too large to enumerate.

Letters: X terminal states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.certificate.estimates import log_ratio, terminating_log_prob, with_learned_backward
from gflownet.certificate.figures import CheckedStates, certify_by_estimates
from gflownet.certificate.optimum import SymmetryTermError, wrong_symmetry_terms
from gflownet.certificate.result import Certified
from gflownet.certificate.rules import check_rules
from gflownet.certificate.subject import BACKWARD, FORWARD, INTERVALS, RULES, WALKS, Subject, repeated
from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.data.uniform import uniform_states
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.workers.process import stream_seed

NUM_ROLLOUTS = 10  # backward trajectories from each state with an estimated p(x)
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
        self._samples = [
            sample_forward(
                subject.context,
                subject.policy,
                conditioning=repeated(conditioning, num_samples),
                generator=subject.generator(FORWARD, index),
            )
            for index, conditioning in enumerate(conditionings)
        ]
        others = [self._random_states(max(1, num_samples // _RANDOM_SHARE))]
        others += [] if extra_states is None else [extra_states]
        states = GraphStates.cat([*(sample.terminal for sample in self._samples), *others])
        _, owner = subject.context.env.identify(states).unique(return_inverse=True)
        first = torch.full((int(owner.max()) + 1,), len(states))
        first = first.scatter_reduce(0, owner, torch.arange(len(states)), "amin")
        self.terminal = states[first]
        # Index of the terminal state of each sample.
        self._sampled = owner[: num_samples * len(conditionings)].split(num_samples)
        visited = GraphStates.cat([*(sample.states for sample in self._samples), self.terminal])
        seed = stream_seed(subject.seed, RULES)
        self.rules = check_rules(subject.context.env, visited, is_complete=False, seed=seed)

    def _random_states(self, num: int) -> GraphStates:
        return uniform_states(self._subject.context.env, num, generator=self._subject.generator(WALKS))

    def certified(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certified:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject = self._subject
        samples = self._with_own_backward(self._samples[index])
        rollouts = self._rollouts(conditioning, subject.generator(BACKWARD, index))
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
        certificate = certify_by_estimates(
            samples,
            log_ratio(subject.context, subject.policy, samples),
            checked,
            learned_log_z=subject.log_z(conditioning),
            seed=stream_seed(subject.seed, INTERVALS, index),
        )
        return Certified(
            beta=float(conditioning.beta),
            conditioning=tuple(conditioning.encoding[0].tolist()),
            certificate=certificate,
            optimum=None,
            tv_to_optimum=None,
            symmetry_term=self._symmetry_term(index, log_reward),
        )

    def _symmetry_term(self, index: int, log_reward: Tensor) -> SymmetryTermError | None:
        """Return the sampled states whose log-reward the objective scales by a wrong factor."""
        reader = self._subject.reader
        if reader is None or not self._subject.objective.samples_reward or self._subject.prior is not None:
            return None
        samples = self._samples[index].with_rewards(log_reward[self._sampled[index]])
        return wrong_symmetry_terms(self._subject, reader, samples)

    def _rollouts(self, conditioning: Conditioning, generator: torch.Generator) -> TrajectoryBatch:
        """Return NUM_ROLLOUTS trajectories into each terminal state, sampled through the policy's P_B or uniformly."""
        subject, num = self._subject, len(self.terminal)
        rollouts = sample_backward(
            subject.context,
            self.terminal[torch.arange(num).repeat_interleave(NUM_ROLLOUTS)],
            conditioning=repeated(conditioning, num * NUM_ROLLOUTS),
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
