"""A race of finalists with noisy scores, and how many trainings compare its winner with that of another race.

Letters: K finalists, n scores of a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from statistics import NormalDist

import numpy as np

# Number of the seed by which random architectures are chosen, above those of the run; their race has the next ones.
RANDOM_REPEAT = 1_000_000
# Half the width of an interval in standard deviations, at 95 %.
_HALF_WIDTH = 1.96
_LEVEL = 0.95  # of the intervals of all verdicts at once
# Weight of the first guess of the noise, in degrees of freedom of repeated trainings.
_GUESS_WEIGHT = 2.0
MIN_SEEDS = 3  # of each side, for a verdict
MOST_MEASURED = 2  # seeds that measure a winner, at most, in units of final.num_seeds
# Trainings per finalist on average, with those that measure the winner: fewer finalists race where they do not suffice.
_MIN_TRAININGS = 3
# Finalists that are trained at the same time, after the first seed of all.
_WIDTH = 4


@dataclass(frozen=True)
class NormalMeans:
    """Normal distributions of the mean scores over seeds."""

    mean: np.ndarray  # [K]
    std: np.ndarray  # [K]


def num_finalists(num_trainings: int, top: int) -> int:
    """Return the number of finalists K for a number of trainings, at most `top`."""
    return min(top, max(num_trainings // _MIN_TRAININGS, min(num_trainings, 1)))


def num_for_choice(num_trainings: int, num_finalists: int, *, num_seeds: int) -> int:
    """Return the trainings that choose among finalists; the others measure the winner, at most twice `num_seeds`."""
    if num_finalists == 1:
        return 0
    return max(num_trainings - MOST_MEASURED * num_seeds, min(num_finalists, num_trainings))


def spread_of(scores: Sequence[float]) -> float:
    """Return the standard deviation of scores [n] by their upper half, so that bad candidates do not count."""
    values = np.asarray(scores, dtype=float)
    centre = np.median(values)
    return math.sqrt(float(np.mean((values[values >= centre] - centre) ** 2)))


def shrunk(scores: Sequence[float], noise: float) -> NormalMeans:
    """Return the posterior of the true means of n scores, one training each, by empirical Bayes.

    The prior is normal: its mean is the median, its variance that of the scores minus the noise.
    """
    values = np.asarray(scores, dtype=float)
    between = max(spread_of(scores) ** 2 - noise**2, 0.0)
    share = between / (between + noise**2) if between else 0.0
    centre = float(np.median(values))
    return NormalMeans(centre + share * (values - centre), np.full(len(values), noise * math.sqrt(share)))


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


def posterior(prior: NormalMeans, samples: Sequence[Sequence[float]], *, noise: float) -> NormalMeans:
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
    return NormalMeans(weight * means + (1 - weight) * prior.mean, np.sqrt(variance * (1 - weight)))


@dataclass(eq=False)
class Race:
    """Trainings of K finalists on new seeds, by their upper bounds (Kalyanakrishnan et al. 2012, LUCB).

    Each finalist gets a seed. Then those with the highest bounds are trained again, as long as their interval reaches
    the best: one that falls behind stops, and goes on where the best turns out worse. A failed training ends them.
    """

    prior: Callable[[float], NormalMeans]  # noise of one training -> distributions before the race
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
    def means(self) -> NormalMeans:
        """Return the posterior of the K means."""
        noise = self.noise
        prior = self.prior(noise)
        has = [finalist for finalist, scores in enumerate(self.scores) if scores and finalist not in self.failed]
        if self.is_shifted and has:
            means = np.array([np.mean(self.scores[finalist]) for finalist in has])
            prior = NormalMeans(prior.mean + float(np.mean(means - prior.mean[has])), prior.std)
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
            num_before = self.num_done
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
            if self.num_done == num_before:
                return

    @property
    def num_done(self) -> int:
        """Return the finished trainings."""
        return sum(map(len, self.scores))

    def _near(self, lacking: list[int]) -> list[int]:
        """Return the finalists whose interval reaches the best, those with the highest upper bound first."""
        means = self.means
        best = max(means.mean[finalist] for finalist in range(len(self)) if finalist not in self.failed)
        bound = means.mean + _HALF_WIDTH * means.std
        return sorted((k for k in lacking if bound[k] >= best), key=lambda finalist: -bound[finalist])


@dataclass(frozen=True)
class Winner:
    """The mean score of a finalist when it is chosen, and the noise of one training."""

    mean: float
    std: float
    noise: float


def seeds_to_compare(
    sides: Sequence[Sequence[Winner]],
    pairs: Sequence[tuple[int | None, int | None]],
    num_left: Sequence[int],
    *,
    most: int,
) -> list[list[int]]:
    """Return the trainings of the winners of both sides that compare them, at most `most` each.

    A pair has the places of two winners, None without one; the first pairs come first where `num_left` trainings of
    each side are not `MIN_SEEDS` for all. Further ones go where the expected number of verdicts grows most, given the
    means before: no result of these trainings decides on them, so their means are unbiased, and their intervals exact.
    """
    counts, left = [[0] * len(side) for side in sides], [*num_left]
    whole = [(first, second) for first, second in pairs if first is not None and second is not None]
    numbers = range(MIN_SEEDS, most + 1)
    chances = [
        dict(zip(numbers, (_chance(sides[0][a], sides[1][b], n, len(pairs)) for n in numbers), strict=True))
        for a, b in whole
    ]

    def costs(pair: tuple[int, int], num: int) -> list[int]:
        return [max(num - counts[side][place], 0) for side, place in enumerate(pair)]

    def train(pair: tuple[int, int], num: int) -> None:
        for side, cost in enumerate(costs(pair, num)):
            counts[side][pair[side]] += cost
            left[side] -= cost

    def fits(pair: tuple[int, int], num: int) -> bool:
        return all(cost <= rest for cost, rest in zip(costs(pair, num), left, strict=True))

    for pair in whole:
        train(pair, max((num for num in range(min(MIN_SEEDS, most) + 1) if fits(pair, num)), default=0))
    while steps := [
        ((chance[num] - chance.get(before, 0.0)) / sum(costs(pair, num)), -num, place)
        for place, (pair, chance) in enumerate(zip(whole, chances, strict=True))
        for before in [min(counts[0][pair[0]], counts[1][pair[1]])]
        for num in numbers
        if num > before and fits(pair, num)
    ]:
        _, num, place = max(steps)
        train(whole[place], -num)
    for side, compared in enumerate(counts):
        places = sorted({place for pair in pairs if (place := pair[side]) is not None})
        while left[side] > 0 and (open_places := [place for place in places if compared[place] < most]):
            compared[min(open_places, key=lambda place: compared[place])] += 1
            left[side] -= 1
    return counts


def _chance(first: Winner, second: Winner, num: int, num_pairs: int) -> float:
    """Return the probability that `num` trainings of each separate two means at the level of one of several pairs."""
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes a second

    variance = (first.noise**2 + second.noise**2) / num
    margin = float(stdtrit(2 * num - 2, (1 + _LEVEL ** (1 / num_pairs)) / 2)) * math.sqrt(variance)
    predicted = NormalDist(first.mean - second.mean, math.sqrt(variance + first.std**2 + second.std**2) or 1e-12)
    return predicted.cdf(-margin) + 1 - predicted.cdf(margin)


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
