"""Exact certification: all states, the policy's probabilities pushed through them, and the objective's optimum."""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.figures import certify_exactly
from gflownet.certificate.optimum import exact_optimum
from gflownet.certificate.result import Certified
from gflownet.certificate.rules import check_rules
from gflownet.certificate.subject import RULES, Subject
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.policy import PolicyFunction
from gflownet.workers.process import stream_seed


class Enumeration:
    """Certifies a policy on an enumerated space."""

    def __init__(self, subject: Subject, graph: StateGraph) -> None:
        self._subject, self._graph = subject, graph
        self.terminal = graph.states[graph.terminal]  # X distinct terminal states, to be evaluated
        seed = stream_seed(subject.seed, RULES)
        self.rules = check_rules(subject.context.env, graph.states, is_complete=True, seed=seed)

    def certified(self, index: int, conditioning: Conditioning, scores: Tensor) -> Certified:
        """Return the certificate under a conditioning, given the scores of the terminal states."""
        subject, graph = self._subject, self._graph
        log_reward = torch.zeros(len(graph), dtype=torch.float64)
        log_reward[graph.terminal] = subject.log_reward(scores, conditioning)
        target, prior = log_reward.clone(), subject.prior
        if prior is not None:
            log_prior = terminating_distribution(graph, self._log_forward(prior, conditioning)).log()
            target[graph.terminal] += log_prior[graph.terminal]
        log_forward = self._log_forward(subject.policy, conditioning)
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
        )

    def _log_forward(self, policy: PolicyFunction, conditioning: Conditioning) -> Tensor:
        return policy_log_prob(self._graph, forward_scores(self._subject.context, policy, conditioning.encoding[0]))
