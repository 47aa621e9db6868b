"""Effects of features of architectures on the score, and their section with a table of the clearest.

N: scores, F: features, P: permutations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gflownet.pictures.chart import Table, number_text
from gflownet.report.page.features import Feature
from gflownet.report.page.run_data import RunData

LEVEL = 0.95
# Architectures with and without a feature that an effect needs.
MIN_GROUP = 5
# Range of equal scores relative to the largest.
_ROUNDING = 1e-12
# Of the permutations: the page of the same files is the same text.
_SEED = 0
# Category of the features that compare sizes with their median.
SIZE = "size"


@dataclass(frozen=True)
class Effect:
    """Mean score of architectures with a feature minus the mean score of the others."""

    category: str
    name: str
    num_with: int
    num_without: int
    mean_with: float
    mean_without: float
    low: float  # of the 95 % interval of the difference
    high: float
    is_certain: bool  # the interval excludes 0, and a permutation test of all effects finds a difference, too

    @property
    def difference(self) -> float:
        """Difference of the means."""
        return self.mean_with - self.mean_without


@dataclass(frozen=True)
class _Group:
    """Sums over the scores of architectures."""

    num: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        return self.total / self.num

    @property
    def variance(self) -> float:
        """The unbiased variance; rounding does not make it negative."""
        return max(0.0, (self.squares - self.total * self.mean) / (self.num - 1))


def effects_of(run: RunData) -> list[Effect]:
    """Return the effects of all features and sizes of the feasible architectures of a run, the clearest first."""
    scores = [record.score for record in run.feasible]
    features: list[set[tuple[str, str]]] = [set(each.features) for each in run.described]
    num_parameters = [record.num_parameters for record in run.feasible]
    for name, values in _sizes(run, num_parameters).items():
        median = float(np.median(np.asarray(values)))
        for position, value in enumerate(values):
            if value > median:
                features[position].add((SIZE, f"more than {median:,.0f} {name}"))
    return effects(features, scores)


def effects(features: Sequence[set[tuple[str, str]] | set[Feature]], scores: Sequence[float]) -> list[Effect]:
    """Return the effect of each feature with enough architectures on both sides.

    The interval is Welch's: Student's t with the degrees of freedom of Welch and Satterthwaite (1947). It is too narrow
    for small groups with skewed scores, so a permutation test of all features finds the certain effects.
    """
    if not scores or max(scores) - min(scores) <= _ROUNDING * max(map(abs, scores)):
        return []
    centre, everything, groups = _groups(features, scores)
    compared = {
        feature: group
        for feature, group in groups.items()
        if group.num >= MIN_GROUP and everything.num - group.num >= MIN_GROUP
    }
    is_clear = _clear(list(compared), features, scores)
    every = [
        _effect(feature, group, everything, centre=centre, is_clear=is_clear[feature])
        for feature, group in compared.items()
    ]
    return sorted(every, key=lambda effect: (-_clearness(effect), effect.category, effect.name))


def _clear(
    compared: Sequence[tuple[str, str]],
    features: Sequence[set[tuple[str, str]] | set[Feature]],
    scores: Sequence[float],
) -> dict[tuple[str, str], bool]:
    """Return whether each feature has a clear difference among all compared ones."""
    order = sorted(compared)
    number = {feature: column for column, feature in enumerate(order)}
    is_present = np.zeros((len(scores), len(order)), dtype=bool)
    for row, one in enumerate(features):
        is_present[row, [number[each] for each in one if each in number]] = True
    generator = np.random.default_rng(_SEED)
    is_clear = clear_features(is_present, np.asarray(scores, dtype=float), level=LEVEL, generator=generator)
    return dict(zip(order, is_clear.tolist(), strict=True))


def _groups(
    features: Sequence[set[tuple[str, str]] | set[Feature]], scores: Sequence[float]
) -> tuple[float, _Group, dict[tuple[str, str], _Group]]:
    """Return the mean score, and the sums of centred scores: of all architectures, and of those with each feature."""
    number = dict[tuple[str, str], int]()
    present = [number.setdefault(feature, len(number)) for one in features for feature in one]
    columns = np.asarray(present, dtype=int)
    rows = np.repeat(np.arange(len(features)), [len(one) for one in features])
    values = np.asarray(scores, dtype=float)
    centre = float(values.mean()) if len(values) else 0.0
    values = values - centre
    counts = np.bincount(columns, minlength=len(number)).tolist()
    totals = np.bincount(columns, values[rows], minlength=len(number)).tolist()
    squares = np.bincount(columns, values[rows] ** 2, minlength=len(number)).tolist()
    groups = {(str(f[0]), f[1]): _Group(counts[i], totals[i], squares[i]) for f, i in number.items()}
    return centre, _Group(len(values), float(values.sum()), float((values**2).sum())), groups


def _effect(feature: tuple[str, str], group: _Group, everything: _Group, *, centre: float, is_clear: bool) -> Effect:
    others = _Group(everything.num - group.num, everything.total - group.total, everything.squares - group.squares)
    difference = group.mean - others.mean
    errors = group.variance / group.num, others.variance / others.num
    error = math.sqrt(sum(errors))
    freedom = 1.0
    if error > 0:
        freedom = sum(errors) ** 2 / sum(e * e / (g.num - 1) for e, g in zip(errors, (group, others), strict=True))
    margin = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    return Effect(
        category=feature[0],
        name=feature[1],
        num_with=group.num,
        num_without=others.num,
        mean_with=centre + group.mean,
        mean_without=centre + others.mean,
        low=difference - margin,
        high=difference + margin,
        is_certain=is_clear and abs(difference) > margin,
    )


def _clearness(effect: Effect) -> float:
    """Return the difference in units of its margin."""
    margin = (effect.high - effect.low) / 2
    if margin > 0:
        return round(abs(effect.difference) / margin, 9)  # the complement of a feature is as clear
    return math.inf if effect.difference else 0.0


def _sizes(run: RunData, num_parameters: Sequence[int | None]) -> Mapping[str, Sequence[float]]:
    """Return the sizes that differ between architectures, by name."""
    named: dict[str, Sequence[float]] = {
        "hidden nodes": [float(each.num_nodes) for each in run.described],
        "edges": [float(each.num_edges) for each in run.described],
    }
    if num_parameters and all(value is not None for value in num_parameters):
        named["parameters"] = [float(value or 0) for value in num_parameters]
    return {name: values for name, values in named.items() if len(set(values)) > 1}


NUM_PERMUTATIONS = 499
# Scores above this number are left out at random: the time grows with the number of scores.
MAX_SCORES = 4_000
# Relative rounding of single precision: permutations with the observed statistic count as at least as large.
_SINGLE = 1e-4


def clear_features(
    is_present: np.ndarray, scores: np.ndarray, *, level: float, generator: np.random.Generator
) -> np.ndarray:
    """Return the features [F] with a difference of means that is clear among all features.

    If no feature has an effect, any feature is clear in at most 1 - `level` of all cases, for every distribution of
    the scores: under a permutation of the scores all differences are chance. The statistic of a permutation is its
    largest standardised difference of means (max-T of Westfall and Young 1993).

    Args:
        is_present: whether an architecture has a feature [N, F]; each feature is present and absent.
        scores: of the architectures [N].
        level: 0.95 for a test at 5 %.
        generator: chooses the permutations.
    """
    if len(scores) > MAX_SCORES:
        sample = generator.choice(len(scores), MAX_SCORES, replace=False)
        is_present, scores = is_present[sample], scores[sample]
    if not is_present.size or not np.ptp(scores):
        return np.zeros(is_present.shape[1], dtype=bool)
    centred = ((scores - scores.mean()) / scores.std()).astype(np.float32)
    num_with = is_present.sum(axis=0)
    # The variance of the sum of the scores with a feature, up to a factor that all features share.
    variance = np.maximum(num_with * (len(scores) - num_with) / len(scores), 0.5)
    table = (is_present / np.sqrt(variance)).astype(np.float32)  # [N, F]
    observed = np.abs(centred @ table)
    permuted = generator.permuted(np.tile(centred, (NUM_PERMUTATIONS, 1)), axis=1)  # [P, N]
    largest = np.abs(permuted @ table).max(axis=1)
    num_larger = (largest[:, None] >= observed * (1 - _SINGLE)).sum(axis=0)
    return (1 + num_larger) / (1 + NUM_PERMUTATIONS) <= 1 - level + 1e-9


MAX_ROWS = 10  # of the table
CAVEAT = "a correlation among the sampled architectures, not a cause"
_HEADER = ("architectures with", "mean score minus that of the others", "number with, without", "clear")


@dataclass(frozen=True)
class EffectSection:
    """The clearest effects, and what they compare."""

    table: Table
    sentence: str  # the clearest effect in words, empty if none is clear among all
    num_compared: int
    num_architectures: int
    limits: str  # of the architectures, empty without evaluation.constraints
    min_group: int


def effect_section(run: RunData) -> EffectSection | None:
    """Return the effects of a run, None with too few architectures."""
    effects = effects_of(run)
    if not effects:
        return None
    return EffectSection(
        table=Table(_HEADER, [_row(effect) for effect in _different(effects)[:MAX_ROWS]]),
        sentence=next((_sentence(effect) for effect in effects if effect.is_certain), ""),
        num_compared=len(effects),
        num_architectures=len(run.feasible),
        limits=run.limit_words,
        min_group=MIN_GROUP,
    )


def _different(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects without complements, such as kernel = b after kernel = a, and without repeats."""
    distinct = dict[tuple[float, ...], Effect]()
    for effect in effects:
        groups = sorted((effect.num_with, effect.num_without))
        distinct.setdefault((*groups, round(abs(effect.difference), 9)), effect)
    return list(distinct.values())


def _row(effect: Effect) -> list[str]:
    return [
        effect.name,
        f"{number_text(effect.difference, 3)} ({number_text(effect.low, 3)} to {number_text(effect.high, 3)})",
        f"{effect.num_with:,}, {effect.num_without:,}",
        "yes" if effect.is_certain else "no",
    ]


def _sentence(effect: Effect) -> str:
    more = "higher" if effect.difference > 0 else "lower"
    return (
        f"{effect.name}: the {effect.num_with:,} architectures with it score {number_text(abs(effect.difference), 3)} "
        f"{more} on average than the {effect.num_without:,} without ({CAVEAT})."
    )
