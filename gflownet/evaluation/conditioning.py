"""Conditioning of trajectories: inverse temperature beta, preferences among several objectives, a focus region, a cap.

Utilities are numbers >= 0, larger is better. Shapes: B trajectories, C conditioning features, K objectives, L limits of
the environment (`GraphVocabulary.limits`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.config import (
    ConditionalsConfig,
    FocusConfig,
    LimitConfig,
    PreferencesConfig,
    TemperatureConfig,
)

# The upper end of a gamma distribution's encoding: mean + 2 standard deviations covers about 95 % of it.
_GAMMA_NUM_DEVIATIONS = 2.0
_NUM_BETA_BINS = 8  # of the thermometer of beta
_SURFACE = 0.1  # factor of a score on the surface of the cone, 1 on its axis


@dataclass(frozen=True)
class Conditioning:
    """The conditioning of a batch of trajectories."""

    encoding: Tensor  # [B, C] float32, input of the policy
    beta: Tensor  # [B] float32, inverse temperature
    # [B, L] int64, hard caps of the trajectories; None: the environment's own forward, the states' own backward
    limit: Tensor | None = None

    def __getitem__(self, index: Tensor | slice) -> Conditioning:
        """Return the conditionings at an index."""
        limit = None if self.limit is None else self.limit[index]
        return Conditioning(self.encoding[index], self.beta[index], limit)


class RewardConditional:
    """Sampler of conditionings. An encoding is the thermometer of beta, then preferences, focus and cap where in use.

    With one objective there are no preferences and no focus; they are read back from the encoding.
    """

    def __init__(self, config: ConditionalsConfig, *, num_objectives: int = 0) -> None:
        """`num_objectives`: K, 0 for a single objective, the score."""
        self._temperature = TemperatureConditional(config.temperature)
        self._preferences = self._focus = None
        if num_objectives:
            self._preferences = PreferenceConditional(config.preferences, num_objectives=num_objectives)
            self._focus = FocusConditional(config.focus, num_objectives=num_objectives) if config.focus.use else None
        self._directions = [part for part in (self._preferences, self._focus) if part]
        self._widths = [self._temperature.num_cond_dim, *[num_objectives] * len(self._directions)]
        self.limit = None if config.limit.metric is None else LimitConditional(config.limit)
        if self.limit:
            self._widths.append(LIMIT_WIDTH)

    @property
    def num_cond_dim(self) -> int:
        """The number of conditioning features C."""
        return sum(self._widths)

    def sample(self, num: int, *, generator: torch.Generator) -> Conditioning:
        """Return `num` sampled conditionings, reproducible from `generator`."""
        temperature = self._temperature.sample(num, generator=generator)
        directions = [part.sample(num, generator=generator) for part in self._directions]
        caps = None if self.limit is None else self.limit.sample(num, generator=generator)
        return self._capped([temperature.encoding, *directions], temperature.beta, caps)

    def reaching(self, sampled: Conditioning, sizes: Tensor) -> Conditioning:
        """Return sampled conditionings with caps for trajectories into terminal states of known sizes [B, L].

        Caps are log-uniform between the size, or `cond.limit.low` if it is larger, and `cond.limit.high`.
        """
        if self.limit is None or sampled.limit is None:
            return sampled
        *encodings, of_limit = sampled.encoding.split(self._widths, 1)
        caps = self.limit.at(of_limit[:, -1].double(), sizes[:, self.limit.column])
        return self._capped(encodings, sampled.beta, caps)

    def _capped(self, encodings: Sequence[Tensor], beta: Tensor, caps: Tensor | None) -> Conditioning:
        """Return conditionings with caps [B] of the limited metric."""
        if self.limit is None or caps is None:
            return Conditioning(torch.cat(list(encodings), 1), beta)
        return Conditioning(torch.cat([*encodings, self.limit.encode(caps)], 1), beta, self.limit.limits(caps))

    def overridden(
        self,
        sampled: Conditioning,
        *,
        beta: float | None = None,
        preferences: Sequence[float] | None = None,
        focus: Sequence[float] | None = None,
        limit: int | None = None,
    ) -> Conditioning:
        """Return sampled conditionings with some values replaced; preferences and focus are scaled to sum to 1.

        `limit` is the cap of `cond.limit.metric`.

        Raises:
            UserError: a value that is never sampled in training; `limit` may be outside [low, high].
        """
        num, betas, encodings = len(sampled.beta), sampled.beta, list(sampled.encoding.split(self._widths, 1))
        if beta is not None:
            self._temperature.check(beta)
            betas = torch.full((num,), float(beta))
            encodings[0] = self._temperature.encode(betas)
        if preferences is not None:
            if self._preferences is None:
                raise UserError(f"preferences: expected none without evaluation.objectives, got {list(preferences)}")
            encodings[1] = self._preferences.checked(preferences).expand(num, -1)
        if focus is not None:
            if self._focus is None:
                raise UserError(f"focus: expected none without cond.focus.use=true, got {list(focus)}")
            encodings[2] = self._focus.checked(focus).expand(num, -1)
        if limit is not None:
            if self.limit is None:
                raise UserError(f"limit: expected none without cond.limit.metric, got {limit}")
            encodings.pop()
            return self._capped(encodings, betas, torch.full((num,), limit))
        return Conditioning(torch.cat(encodings, 1), betas, sampled.limit)

    def score(self, utilities: Tensor, encoding: Tensor) -> Tensor:
        """Return the scores [B] of utilities [B, K] under the conditionings with encodings [B, C]."""
        assert self._preferences is not None, "several objectives without preferences"
        _, preferences, *others = encoding.split(self._widths, 1)
        score = self._preferences.scalarise(utilities, preferences)
        return score if self._focus is None else score * self._focus.coefficient(utilities, others[0])


class TemperatureConditional:
    """Sampler of beta and its encoding as a thermometer: C bins that fill from left to right as beta grows.

    Distributions and parameters are named as in recursionpharma/gflownet.
    """

    def __init__(self, config: TemperatureConfig) -> None:
        self.sample_dist = config.sample_dist
        self.dist_params = tuple(float(p) for p in config.dist_params)
        self.num_cond_dim = _NUM_BETA_BINS

    def sample(self, num: int, *, generator: torch.Generator) -> Conditioning:
        """Return `num` samples of beta with their encodings, reproducible from `generator`."""
        beta = torch.from_numpy(self._sample_beta(num, generator=generator).astype(np.float32))
        return Conditioning(encoding=self.encode(beta), beta=beta)

    def encode(self, beta: Tensor) -> Tensor:
        """Return the encodings [B, C] of betas [B]; zeros for a constant beta."""
        if self.sample_dist == "constant":
            return torch.zeros(len(beta), self.num_cond_dim)
        width = self._upper_end() / self.num_cond_dim
        lower_ends = width * torch.arange(self.num_cond_dim, dtype=torch.float32)
        return ((beta[:, None] - lower_ends) / width).clamp(0.0, 1.0)

    def check(self, beta: float) -> None:
        """Raise UserError for a beta that is never sampled, or, of a gamma distribution, beyond the thermometer."""
        low = 0.0 if self.sample_dist in ("gamma", "beta") else self.dist_params[0]
        high = self._upper_end()
        if not low <= beta <= high:
            expected = f"{low:g}" if low == high else f"a number in [{low:g}, {high:g}]"
            raise UserError(f"beta: expected {expected}, by cond.temperature, got {beta}")

    def _sample_beta(self, num: int, *, generator: torch.Generator) -> np.ndarray:
        if self.sample_dist == "constant":
            return np.full(num, self.dist_params[0])
        # torch samples gamma and beta only from its global generator; numpy accepts a separate one.
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        first, second = self.dist_params
        match self.sample_dist:
            case "uniform":
                return rng.uniform(first, second, num)
            case "loguniform":
                return np.exp(rng.uniform(math.log(first), math.log(second), num))
            case "gamma":
                return rng.gamma(first, second, num)
            case _:
                return rng.beta(first, second, num)

    def _upper_end(self) -> float:
        match self.sample_dist:
            case "gamma":
                shape, scale = self.dist_params
                return scale * (shape + _GAMMA_NUM_DEVIATIONS * math.sqrt(shape))
            case "beta":
                return 1.0
            case _:
                return self.dist_params[-1]


class DirectionConditional:
    """Sampler of vectors [K] of numbers >= 0 that sum to 1: uniform (Dirichlet), or from a list."""

    key: ClassVar[str]  # option group: cond.preferences or cond.focus

    def __init__(self, listed: Sequence[Sequence[float]], *, num_objectives: int) -> None:
        self._num = num_objectives
        self._listed = simplex([list(row) for row in listed]) if listed else None

    def sample(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Return `num` sampled vectors, [B, K]."""
        if self._listed is not None and len(self._listed) == 1:  # nothing to sample
            return self._listed.expand(num, -1)
        if self._listed is not None:
            return self._listed[torch.randint(len(self._listed), (num,), generator=generator)]
        # torch samples this distribution only from its global generator; numpy accepts a separate one.
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        return torch.from_numpy(rng.dirichlet(np.ones(self._num), num).astype(np.float32))

    def checked(self, numbers: Sequence[float]) -> Tensor:
        """Return the numbers scaled to sum to 1, [1, K].

        Raises:
            UserError: the wrong count, numbers < 0, all 0, or a vector that is not in the list.
        """
        name = self.key.rpartition(".")[2]
        if len(numbers) != self._num:
            raise UserError(f"{name}: expected {self._num} numbers, got {list(numbers)}")
        try:
            scaled = simplex([numbers])
        except ValueError as error:
            raise UserError(f"{name}: {error}") from None
        if self._listed is not None and not bool(torch.isclose(self._listed, scaled).all(1).any()):
            listed = ", ".join(str([round(number, 4) for number in row]) for row in self._listed.tolist())
            raise UserError(f"{name}: expected one of {listed}, by {self.key}, got {list(numbers)}")
        return scaled


class PreferenceConditional(DirectionConditional):
    """Sampler of preferences w, weights that sum to 1, and the score of utilities under them.

    MOGFN-PC: Jain et al. 2023, Multi-Objective GFlowNets.
    """

    key = "cond.preferences"

    def __init__(self, config: PreferencesConfig, *, num_objectives: int) -> None:
        self.scalarisation = config.scalarisation
        super().__init__([config.weights] if config.weights else [], num_objectives=num_objectives)

    def scalarise(self, utilities: Tensor, preferences: Tensor) -> Tensor:
        """Return the score [B] of utilities u [B, K] under preferences w [B, K].

        weighted_sum: sum of w u. weighted_log_sum: exp(sum of w log u). tchebycheff: 1 - max of w (1 - u), the distance
        to the ideal point of ones (Miettinen 1998, part II, section 3.4), which reaches where the front is not convex.
        """
        match self.scalarisation:
            case "weighted_sum":
                return (preferences * utilities).sum(1)
            case "weighted_log_sum":
                return utilities.pow(preferences).prod(1)
            case _:
                return 1 - (preferences * (1 - utilities)).amax(1)


class FocusConditional(DirectionConditional):
    """Sampler of directions d in the space of utilities; utilities in a cone around d keep their score.

    Roy et al. 2023, Goal-conditioned GFlowNets for controllable multi-objective molecular design. Parameters are named
    as in recursionpharma/gflownet.
    """

    key = "cond.focus"

    def __init__(self, config: FocusConfig, *, num_objectives: int) -> None:
        self.cosim, self._exponent = config.cosim, math.log(_SURFACE) / math.log(config.cosim)
        super().__init__(config.directions, num_objectives=num_objectives)

    def coefficient(self, utilities: Tensor, directions: Tensor) -> Tensor:
        """Return the factor of a score, [B]: 1 on the axis, .1 on the cone's surface, 0 outside.

        cos(u, d)^(log .1 / log cosim) where cos(u, d) >= cosim (Roy et al. 2023, section 3).
        """
        cosine = F.cosine_similarity(utilities, directions, dim=1)
        return torch.where(cosine >= self.cosim, cosine.clamp(max=1.0) ** self._exponent, 0.0)


_NUM_BINS = 19  # of the thermometer of a cap
LIMIT_WIDTH = _NUM_BINS + 1


class LimitConditional:
    """Sampler of hard caps c of one metric, log-uniform, and their encoding: a thermometer of log c, and its value.

    Set by `use` once the environment is known. log c is scaled to [0, 1] between `low` and `high`; caps outside, which
    are allowed when sampling, are encoded as the nearest end.
    """

    low: int
    high: int
    column: int  # of the metric in the environment's limits

    def __init__(self, config: LimitConfig) -> None:
        self.metric, self._config = str(config.metric), config

    def use(self, names: Sequence[str], smallest: Sequence[int], caps: Sequence[int]) -> None:
        """Set the ends from the limits of an environment: their names, smallest possible sizes and own caps.

        Raises:
            UserError: an environment without this limit, or ends that it does not have.
        """
        if self.metric not in names:
            offered = ", ".join(names) or "none"
            raise UserError(
                f"cond.limit.metric: expected a size that the environment caps ({offered}), got {self.metric}; "
                "operation_graph, cells with a network and choices with a cost have one for each max_... option"
            )
        self.column, self._caps = list(names).index(self.metric), torch.tensor(caps)
        least, own, config = smallest[self.column], caps[self.column], self._config
        self.low = least if config.low is None else config.low
        self.high = own if config.high is None else config.high
        if not least <= self.low < self.high <= own:
            raise UserError(
                f"cond.limit: expected low < high within [{least:,}, {own:,}], the {self.metric} of the "
                f"smallest network and the environment's own cap, got [{self.low:,}, {self.high:,}]"
            )

    def sample(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Return `num` caps, [B] int64."""
        place = torch.rand(num, generator=generator, dtype=torch.float64)
        return self.at(place, torch.zeros(num, dtype=torch.int64))

    def at(self, place: Tensor, sizes: Tensor) -> Tensor:
        """Return caps at places [B] in [0, 1] between log `low`, or log of a larger size [B], and log `high`."""
        low, high = sizes.clamp(min=self.low), sizes.clamp(min=self.high)
        log_low, log_high = low.double().log(), high.double().log()
        caps = (log_low + place * (log_high - log_low)).exp().round().long()
        return caps.clamp(low, high)

    def encode(self, caps: Tensor) -> Tensor:
        """Return the encodings [B, LIMIT_WIDTH] of caps [B]."""
        place = (caps.double() / self.low).log() / math.log(self.high / self.low)
        place = place.float().clamp(0.0, 1.0)[:, None]
        return torch.cat([(place * _NUM_BINS - torch.arange(_NUM_BINS)).clamp(0.0, 1.0), place], 1)

    def limits(self, caps: Tensor) -> Tensor:
        """Return caps [B] of the metric with the environment's own caps of other metrics, [B, L]."""
        limits = self._caps.repeat(len(caps), 1)
        limits[:, self.column] = caps
        return limits


def simplex(rows: Sequence[Sequence[float]]) -> Tensor:
    """Return rows of numbers >= 0, at least one > 0, scaled to sum to 1. Raises ValueError for other rows."""
    numbers = torch.tensor(rows, dtype=torch.float64)
    if not bool((numbers.isfinite() & (numbers >= 0)).all() and (numbers.sum(1) > 0).all()):
        raise ValueError(f"expected numbers >= 0, one of them > 0, got {numbers.tolist()}")
    return (numbers / numbers.sum(1, keepdim=True)).float()
