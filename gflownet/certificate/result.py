"""The certificate of a run: the rules of the environment and, per conditioning, the optimum and the network."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gflownet.certificate.figures import Certificate
from gflownet.certificate.optimum import Optimum, SymmetryTermError
from gflownet.certificate.rules import RuleReport


@dataclass(frozen=True)
class Certified:
    """The certificate under one conditioning."""

    beta: float
    conditioning: tuple[float, ...]  # encoding read by the policy
    certificate: Certificate  # of the network
    optimum: Optimum | None  # of the objective; None: not enumerable, or the objective aims at something else
    tv_to_optimum: float | None  # total variation between network and optimum
    symmetry_term: SymmetryTermError | None  # None: the objective scales every reward as it should


@dataclass(frozen=True)
class RunCertificate:
    """The certificates of a run and the evaluations behind them."""

    parts: tuple[Certified, ...]
    rules: RuleReport  # of the environment
    objective: str  # name of its class
    samples_reward: bool  # whether the objective aims at p(x) ~ R(x)
    symmetry: str | None  # corrected by "reward" or "actions", or "none"; None: unknown, for an objective of the user
    num_rewards: int  # terminal states with a reward
    num_evaluated: int  # of these, evaluated for the certificate and not in training
    num_failed: int  # of these, with a failed evaluation and the floor score
    num_predicted: int = 0  # of the rewards, predicted by a surrogate

    @property
    def objective_words(self) -> str:
        """Return the name of the objective in words: `TrajectoryBalance` as `trajectory balance`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.objective).lower()
