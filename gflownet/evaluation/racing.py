"""A race of finalists with noisy scores: posterior means, and further trainings of those that may be the best.

Letters: K finalists, n scores of a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

# Number of the seed by which random architectures are chosen, above those of the run; their race has the next ones.
RANDOM_REPEAT = 1_000_000
# Half the width of an interval in standard deviations, at 95 %.
_HALF_WIDTH = 1.96
# Weight of the first guess of the noise, in degrees of freedom of repeated trainings.
_GUESS_WEIGHT = 2.0
# Trainings per finalist on average: fewer finalists race where the trainings do not suffice.
_MIN_TRAININGS = 2
# Finalists that are trained at the same time, after the first seed of all.
_WIDTH = 4


@dataclass(frozen=True)
class Belief:
    """Normal distributions of the mean scores over seeds."""

    mean: np.ndarray  # [K]
    std: np.ndarray  # [K]


def num_finalists(num_trainings: int, top: int) -> int:
    """Return the number of finalists K for a number of trainings, at most `top`."""
    return min(top, max(num_trainings // _MIN_TRAININGS, min(num_trainings, 1)))


def spread_of(scores: Sequence[float]) -> float:
    """Return the standard deviation of scores [n] by their upper half, so that bad candidates do not count."""
    values = np.asarray(scores, dtype=float)
    centre = np.median(values)
    return math.sqrt(float(np.mean((values[values >= centre] - centre) ** 2)))


def shrunk(scores: Sequence[float], noise: float) -> Belief:
    """Return the posterior of the true means of n scores, one training each, by empirical Bayes.

    The prior is normal: its mean is the median, its variance that of the scores minus the noise.
    """
    values = np.asarray(scores, dtype=float)
    between = max(spread_of(scores) ** 2 - noise**2, 0.0)
    share = between / (between + noise**2) if between else 0.0
    centre = float(np.median(values))
    return Belief(centre + share * (values - centre), np.full(len(values), noise * math.sqrt(share)))


def pooled_noise(samples: Sequence[Sequence[float]], *, guess: float) -> float:
    """Return the standard deviation of one training, pooled over the repeated trainings of each finalist.

    `guess` counts as `_GUESS_WEIGHT` degrees of freedom.
    """
    squares, freedom = _GUESS_WEIGHT * guess**2, _GUESS_WEIGHT
    for sample in samples:
        if len(sample) > 1:
            squares += float(np.var(sample)) * len(sample)
            freedom += len(sample) - 1
    return math.sqrt(squares / freedom)


def posterior(prior: Belief, samples: Sequence[Sequence[float]], *, noise: float) -> Belief:
    """Return the distributions of the K means, given a prior and the scores of each finalist's new seeds.

    Where the scores are further from the prior than it allows, its variance grows by the excess (moments).
    """
    num = np.array([len(sample) for sample in samples], dtype=float)
    means = np.array([float(np.mean(sample)) if len(sample) else 0.0 for sample in samples])
    has = num > 0
    variance = prior.std**2
    if has.any():
        excess = (means - prior.mean)[has] ** 2 - noise**2 / num[has] - variance[has]
        variance = variance + max(float(excess.mean()), 0.0)
    known = variance * num
    total = known + noise**2
    # Weight of the new seeds; without any doubt in either, they count.
    weight = np.divide(known, total, out=np.where(has, 1.0, 0.0), where=total > 0)
    return Belief(weight * means + (1 - weight) * prior.mean, np.sqrt(variance * (1 - weight)))


@dataclass(eq=False)
class Race:
    """Trainings of K finalists on new seeds, by their upper bounds (Kalyanakrishnan et al. 2012, LUCB).

    Each finalist gets a seed. Then those with the highest bounds are trained again, as long as their interval reaches
    the best: one that falls behind stops, and goes on where the best turns out worse. A failed training ends them.
    """

    prior: Callable[[float], Belief]  # noise of one training -> belief before the race
    num: InitVar[int]  # K
    num_trainings: int  # of all finalists together
    num_seeds: int  # maximum number of trainings of one finalist
    guess: float  # the noise before any repeated training
    num_at_once: int = 1  # seeds of one finalist after its first
    is_shifted: bool = False  # the trainings are of another length than those of the prior, which gets their mean
    scores: list[list[float]] = field(init=False)  # of new seeds
    failed: set[int] = field(default_factory=set, init=False)  # finalists with a failed training

    def __post_init__(self, num: int) -> None:
        self.scores = [[] for _ in range(num)]

    def __len__(self) -> int:
        """Return K."""
        return len(self.scores)

    @property
    def noise(self) -> float:
        """Return the standard deviation of one training."""
        samples = [scores for finalist, scores in enumerate(self.scores) if finalist not in self.failed]
        return pooled_noise(samples, guess=self.guess)

    @property
    def belief(self) -> Belief:
        """Return the posterior of the K means."""
        noise = self.noise
        prior = self.prior(noise)
        has = [finalist for finalist, scores in enumerate(self.scores) if scores and finalist not in self.failed]
        if self.is_shifted and has:
            means = np.array([np.mean(self.scores[finalist]) for finalist in has])
            prior = Belief(prior.mean + float(np.mean(means - prior.mean[has])), prior.std)
        return posterior(prior, self.scores, noise=noise)

    def rounds(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the next trainings, pairs of a finalist and the number of its seed from 1 on.

        The caller adds their scores to `scores` before it takes the next round; a round without one is the last.
        """
        while lacking := [
            finalist
            for finalist, scores in enumerate(self.scores)
            if len(scores) < self.num_seeds and finalist not in self.failed
        ]:
            unseen = [finalist for finalist in lacking if not self.scores[finalist]]
            num_before = self._num_done
            left = self.num_trainings - num_before
            wanted = (unseen or self._near(lacking)[:_WIDTH])[:left]
            if wanted:
                num = 1 if unseen else max(1, min(self.num_at_once, left // len(wanted)))
                ends = [min(len(self.scores[finalist]) + num, self.num_seeds) for finalist in wanted]
                yield [
                    (k, seed)
                    for k, end in zip(wanted, ends, strict=True)
                    for seed in range(len(self.scores[k]) + 1, end + 1)
                ]
            if self._num_done == num_before:
                return

    @property
    def _num_done(self) -> int:
        return sum(map(len, self.scores))

    def _near(self, lacking: list[int]) -> list[int]:
        """Return the finalists whose interval reaches the best, those with the highest upper bound first."""
        belief = self.belief
        best = max(belief.mean[finalist] for finalist in range(len(self)) if finalist not in self.failed)
        bound = belief.mean + _HALF_WIDTH * belief.std
        return sorted((k for k in lacking if bound[k] >= best), key=lambda finalist: -bound[finalist])


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation of pairs, tied values with their mean rank; NaN where it is not defined."""
    if len(pairs) < 2:
        return math.nan
    first, second = (_ranks(np.asarray(values)) for values in zip(*sorted(pairs), strict=True))
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread > 0 else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks minus their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse] - (len(values) + 1) / 2
