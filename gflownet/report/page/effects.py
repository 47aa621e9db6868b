"""Effects of features of architectures on the score, and their section with a table of the clearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gflownet.pictures.chart import Table, number_text
from gflownet.report.page.run_data import RunData

LEVEL = 0.95
# Architectures with and without a feature that an effect needs.
MIN_GROUP = 5
MAX_ROWS = 10  # of the table
# Range of equal scores relative to the largest.
_ROUNDING = 1e-12
CAVEAT = "a correlation among the sampled architectures, not a cause"
_HEADER = ("architectures with", "mean score minus that of the others", "number with, without", "clear")


@dataclass(frozen=True)
class Effect:
    """Mean score of architectures with a feature minus the mean score of the others."""

    name: str
    num_with: int
    num_without: int
    difference: float
    low: float  # of the interval of the difference
    high: float

    @property
    def is_clear(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def clearness(self) -> float:
        """Return the difference in units of its margin."""
        margin = (self.high - self.low) / 2
        return abs(self.difference) / margin if margin > 0 else math.inf

    @property
    def sentence(self) -> str:
        """Return the effect in words."""
        return (
            f"{self.name}: the {self.num_with:,} architectures with it score "
            f"{number_text(abs(self.difference), 3)} {'higher' if self.difference > 0 else 'lower'} on average than "
            f"the {self.num_without:,} without ({CAVEAT})."
        )

    @property
    def row(self) -> list[str]:
        """Return the row of the table."""
        low, difference, high = (number_text(value, 3) for value in (self.low, self.difference, self.high))
        numbers = f"{self.num_with:,}, {self.num_without:,}"
        return [self.name, f"{difference} ({low} to {high})", numbers, "yes" if self.is_clear else "no"]


def effects_of(run: RunData) -> list[Effect]:
    """Return the effects of all features and sizes of the feasible architectures of a run, the clearest first."""
    features = [set(each.features) for each in run.described]
    sizes = {
        "hidden nodes": [each.num_nodes for each in run.described],
        "edges": [each.num_edges for each in run.described],
        "parameters": [record.num_parameters or 0 for record in run.feasible],
    }
    for name, values in sizes.items():
        median = float(np.median(values)) if values else 0.0
        for one, value in zip(features, values, strict=True):
            if value > median:
                one.add(f"more than {median:,.0f} {name}")
    return effects(features, [record.score for record in run.feasible])


def effects(features: Sequence[set[str]], scores: Sequence[float]) -> list[Effect]:
    """Return the effect of each feature with enough architectures on both sides, the clearest first.

    Intervals are those of Student's test at the level of Bonferroni: with 95 % probability all hold at once. They have
    one variance for both groups: Welch's are far too narrow where a few scores are far from the others, and a small
    group has none of these.
    """
    if not scores or max(scores) - min(scores) <= _ROUNDING * max(map(abs, scores)):
        return []
    values = np.asarray(scores, dtype=float)
    places: dict[str, list[int]] = {}
    for place, one in enumerate(features):
        for name in one:
            places.setdefault(name, []).append(place)
    compared = {name: on for name, on in places.items() if MIN_GROUP <= len(on) <= len(scores) - MIN_GROUP}
    quantile = float(stdtrit(len(scores) - 2, 1 - (1 - LEVEL) / 2 / max(1, len(compared))))
    found = []
    for name, on in compared.items():
        groups = values[on], np.delete(values, on)
        squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        error = math.sqrt(squares / (len(values) - 2) * sum(1 / len(group) for group in groups))
        difference = float(groups[0].mean() - groups[1].mean())
        margin = quantile * error
        found.append(Effect(name, len(on), len(scores) - len(on), difference, difference - margin, difference + margin))
    return sorted(found, key=lambda effect: (-round(effect.clearness, 9), effect.name))


@dataclass(frozen=True)
class EffectSection:
    """The clearest effects, and what they compare."""

    table: Table
    sentence: str  # the clearest effect in words, empty if none is clear
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
        table=Table(_HEADER, [effect.row for effect in effects[:MAX_ROWS]]),
        sentence=next((effect.sentence for effect in effects if effect.is_clear), ""),
        num_compared=len(effects),
        num_architectures=len(run.feasible),
        limits=run.limit_words,
        min_group=MIN_GROUP,
    )
