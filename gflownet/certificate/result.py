"""What a certificate states: rules of the environment, optimum of the objective, distances of the network.

Imports no torch, for the page of a run. Letters: S states, M their actions, X terminal states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from gflownet.evaluation.statistics import Interval

NO_DISTANCE = 1e-9  # total variation caused by rounding alone
SLOPE_ROUNDING = 1e-5  # error of a slope in single precision; intervals may be narrower


class Check(Enum):
    """The checks, causes before consequences; the values are their names in the certificate."""

    CODES = "isomorphism code"
    LIST = "list of every_state"
    ILLEGAL_STATE = "illegal state"
    NO_REVERSE = "forward step without reverse"
    HIDDEN = "backward mask hides a legal removal"
    ALLOWED = "backward mask allows an illegal removal"
    DISAGREE = "forward and backward masks disagree"
    LIMIT = "networks within a limit"
    UNIFORM = "uniform P_B of sampled trajectories"
    AUTOMORPHISMS = "automorphism count"
    ORBITS = "n_f |Aut G'| = n_b |Aut G|"


@dataclass(frozen=True)
class Violation:
    """A check that fails."""

    check: Check
    num: int  # violations
    example: str  # the first one


@dataclass(frozen=True)
class RuleReport:
    """The numbers of checked transitions and states, and the checks that fail."""

    is_complete: bool  # all transitions of an enumerated space; otherwise those of sampled states
    num_states: int  # whose forward actions were applied, up to isomorphism
    num_forward: int  # forward actions applied and undone
    num_backward: int  # backward actions applied and undone
    num_edges: int  # pairs (G, G') with n_f |Aut G'| compared with n_b |Aut G|
    num_counted: int  # states with an independent automorphism count
    num_compared: int  # states with an independent canonical key
    violations: tuple[Violation, ...]  # causes before consequences

    @property
    def holds(self) -> bool:
        """Return whether every check holds."""
        return not self.violations

    @property
    def num_transitions(self) -> int:
        """Return the number of forward and backward actions."""
        return self.num_forward + self.num_backward


@dataclass(frozen=True)
class LossAtFlows:
    """The loss of an objective at its exact optimum, on trajectories as training samples them."""

    loss: float  # largest absolute value: of each batch and of some single trajectories
    where: str  # the trajectories with this loss: into random terminal states, or those of a sampler
    loss_at_negative_log_z: float | None  # with -log Z in place of log Z; None: log Z is no parameter
    reported_log_z: float | None  # by `Objective.log_partition`; None: it learns none
    num_trajectories: int
    elsewhere: PerturbedLoss | None  # smallest one at other flows; None: the space has no choices


@dataclass(frozen=True)
class PerturbedLoss:
    """The loss of an objective at flows that do not balance the rewards: positive, with a gradient."""

    loss: float
    has_gradient: bool  # by the logits; True where only log Z is changed
    change: str  # of the exact flows


@dataclass(frozen=True)
class TrainedLoss:
    """The loss of the trained network, on trajectories of the policy and on some into random terminal states."""

    loss: float  # the larger one
    num_steps: float  # mean per trajectory

    @property
    def reach(self) -> float:
        """Return the largest mean error of log p(x) that such a loss allows, nats: its root, at every step, twice."""
        return 2 * self.num_steps * math.sqrt(max(self.loss, 0.0))


@dataclass(frozen=True)
class SymmetryTermError:
    """A log-reward that the objective scales by another factor than |Aut(x)| / |Aut(s0)|."""

    num: int  # terminal states with a wrong factor
    example: str  # the first one


@dataclass(frozen=True)
class Optimum:
    """The exact optimum of an objective on an enumerated space."""

    probability: Tensor  # [S] of the states
    total_variation: float  # between this distribution and the target
    log_z: float  # log-flow through the initial state
    loss: LossAtFlows | None  # of the objective at its optimum; None: it has parameters of unknown optimum

    def figures(self) -> dict[str, float | None]:
        """Return the figures by name, as in the certificate's JSON."""
        return {
            "optimum_total_variation": self.total_variation,
            "optimum_log_z": self.log_z,
            "optimum_reported_log_z": None if self.loss is None else self.loss.reported_log_z,
            "optimum_loss": None if self.loss is None else self.loss.loss,
        }


@dataclass(frozen=True)
class SymmetryClass:
    """Terminal states with one automorphism count."""

    automorphisms: float  # |Aut(x)| / |Aut(s0)|
    num_states: int
    deviation: float  # mean of log p(x) - log R(x) / Z: 0 is right


@dataclass(frozen=True)
class ExactCertificate:
    """Distances of the exact distribution p over all terminal states from the target R / Z."""

    kind: ClassVar[Literal["exact"]] = "exact"
    num_states: int  # up to isomorphism
    num_terminal: int
    total_variation: float  # between p and R / Z
    l1: float
    jensen_shannon: float  # nats
    spearman: float  # of log p and log R; NaN if either is constant
    log_z: float  # true value
    learned_log_z: float | None  # None: not learned by this objective
    tv_uncorrected: float  # between p and R / |Aut|, the optimum of a sampler without symmetry correction
    tv_of_symmetries: float  # between R / |Aut| and R / Z, both normalised
    classes: tuple[SymmetryClass, ...]  # by automorphism count, ascending

    @property
    def symmetries_hold(self) -> bool | None:
        """Return whether p is near R (True) or near R / |Aut| (False): closer than half their distance; None: neither.

        By the triangle inequality at most one of them is near. None also if the two are equal.
        """
        radius = self.tv_of_symmetries / 2
        if self.tv_of_symmetries < NO_DISTANCE or min(self.total_variation, self.tv_uncorrected) >= radius:
            return None
        return self.total_variation < radius

    def figures(self) -> Mapping[str, float]:
        """Return the fields and the error of log Z by name, NaN for unknown values; of the classes the maximum."""
        return _figures(self) | {"log_z_error": abs(_number(self.learned_log_z) - self.log_z)}


@dataclass(frozen=True)
class EstimatedCertificate:
    """Estimates with 95 % intervals, for spaces too large to enumerate."""

    kind: ClassVar[Literal["estimated"]] = "estimated"
    num_samples: int  # trajectories of the policy, for the bounds of log Z
    num_test: int  # distinct terminal states, for all other estimates
    subset_size: int  # terminal states per subset of the flow consistency
    num_rollouts: int  # backward trajectories from each of them
    effective_rollouts: float  # mean effective sample size of these in the estimate of p(x)
    elbo: Interval  # at most log Z
    log_z: Interval
    eubo: Interval  # at least log Z
    learned_log_z: float | None  # None: not learned by this objective
    log_prob: Interval  # mean log p(x)
    flow_consistency: Interval  # total variation within random subsets
    spearman: Interval  # of log p and log R
    pearson: Interval  # of log p and log R
    symmetry_slope: Interval | None  # of log p - log R against log |Aut|: 0 is right, -1 is uncorrected
    classes: tuple[SymmetryClass, ...]  # of the compared states, by automorphism count, ascending

    @property
    def symmetries_hold(self) -> bool | None:
        """Return whether the slope's interval contains 0 and not -1 (False: -1 and not 0); None if undecided."""
        if self.symmetry_slope is None:
            return None
        low, high = self.symmetry_slope.low - SLOPE_ROUNDING, self.symmetry_slope.high + SLOPE_ROUNDING
        corrected, uncorrected = low <= 0 <= high, low <= -1 <= high
        return None if corrected == uncorrected else corrected

    def figures(self) -> Mapping[str, float]:
        """Return the fields by name, intervals as estimate and ends, NaN for unknown values."""
        return _figures(self)


Certificate = ExactCertificate | EstimatedCertificate


def _figures(certificate: Certificate) -> dict[str, float]:
    figures: dict[str, float] = {}
    for field in fields(certificate):
        value = getattr(certificate, field.name)
        if field.name == "classes":
            figures["max_class_deviation"] = max((abs(c.deviation) for c in value), default=0.0)
        elif hasattr(value, "low"):  # an Interval, whose module imports scipy
            figures |= {field.name: value.value, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        else:
            figures[field.name] = _number(value)
    return figures


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class Certified:
    """The certificate under one conditioning."""

    beta: float
    conditioning: tuple[float, ...]  # encoding read by the policy
    certificate: Certificate  # of the network
    optimum: Optimum | None  # of the objective; None: not enumerable, or the objective aims at something else
    tv_to_optimum: float | None  # total variation between network and optimum
    symmetry_term: SymmetryTermError | None  # None: the objective scales every reward as it should
    limits: Mapping[str, int]  # caps of the trajectories, of a run with cond.limit
    trained: TrainedLoss | None = None  # None: it needs rewards of further states, or parameters of another network


@dataclass(frozen=True)
class RunCertificate:
    """The certificates of a run and the evaluations behind them."""

    parts: tuple[Certified, ...]
    rules: RuleReport  # of the environment
    objective: str  # name of its class
    samples_reward: bool  # whether the objective aims at p(x) ~ R(x)
    symmetry: str | None  # corrected by "reward" or "actions", or "none"; None: unknown, for an objective of the user
    num_rewards: int  # terminal states with a reward
    num_evaluated: int = 0  # of these, evaluated for the certificate and not in training
    num_failed: int = 0  # of these, with a failed evaluation and the floor score
    num_predicted: int = 0  # of the rewards, predicted by a surrogate

    @property
    def objective_words(self) -> str:
        """Return the name of the objective in words: `TrajectoryBalance` as `trajectory balance`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.objective).lower()
