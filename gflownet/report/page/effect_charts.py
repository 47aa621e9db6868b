"""Section about effects: a chart for each category of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.pictures.bar_charts import Estimate, interval_chart
from gflownet.pictures.chart import Chart, Table, number_text
from gflownet.report.page.effects import MIN_GROUP, SIZE, Effect, effects_of
from gflownet.report.page.features import Category
from gflownet.report.page.run_data import RunData

# The clearest effects of a category are drawn.
MAX_ROWS = 12
HEADER = ("architectures with", "effect", "95 % interval", "number with", "number without", "mean with", "mean without")
CATEGORIES = (*map(str, Category), SIZE)
_NUM_SENTENCES = 3


@dataclass(frozen=True)
class EffectSection:
    """Charts of effects, and what they compare."""

    charts: Sequence[Chart]
    sentences: Sequence[str]  # the clearest effects in words
    num_compared: int
    num_architectures: int
    limits: str  # of the architectures, empty without evaluation.constraints
    num_by_chance: str  # expected number of intervals that exclude 0 by chance
    min_group: int


def effect_section(run: RunData) -> EffectSection | None:
    """Return the effects of a run, None with too few architectures."""
    effects = effects_of(run)
    if not effects:
        return None
    charts = [_chart(number, category, effects) for number, category in enumerate(CATEGORIES)]
    return EffectSection(
        charts=[chart for chart in charts if chart is not None],
        sentences=[_sentence(effect) for effect in _different(effects)[:_NUM_SENTENCES]],
        num_compared=len(effects),
        num_architectures=len(run.feasible),
        limits=run.limit_words,
        num_by_chance=number_text(max(1, round(len(effects) * 0.05))),
        min_group=MIN_GROUP,
    )


def _different(effects: Sequence[Effect]) -> list[Effect]:
    """Return the certain effects without complements, such as kernel = b after kernel = a, and without repeats."""
    chosen = dict[tuple[float, ...], Effect]()
    for effect in effects:
        if effect.is_certain:
            groups = sorted((effect.num_with, effect.num_without))
            chosen.setdefault((*groups, round(abs(effect.difference), 9)), effect)
    return list(chosen.values())


def _chart(number: int, category: str, effects: Sequence[Effect]) -> Chart | None:
    every = [effect for effect in effects if effect.category == category]
    shown = sorted(every[:MAX_ROWS], key=lambda effect: -effect.difference)
    left_out = len(every) - len(shown)
    note = "" if not left_out else f"The {len(shown)} clearest of {len(every)}; the others are in the table."
    chart = interval_chart(
        f"effects-{number}",
        category[:1].upper() + category[1:],
        [_estimate(effect) for effect in shown],
        x_label="mean score with, minus mean score without",
        header=HEADER,
        zero=0.0,
        legend=("clear among all comparisons", "not clear"),
        note=note,
    )
    if chart is None or not left_out:
        return chart
    ordered = sorted(every, key=lambda effect: -effect.difference)
    return Chart(**{**vars(chart), "table": Table(HEADER, [_row(effect) for effect in ordered])})


def _estimate(effect: Effect) -> Estimate:
    return Estimate(
        name=effect.name,
        value=effect.difference,
        low=effect.low,
        high=effect.high,
        note=f"({effect.num_with:,})",
        cells=_row(effect)[3:],
        is_marked=effect.is_certain,
    )


def _row(effect: Effect) -> list[str]:
    return [
        effect.name,
        number_text(effect.difference, 3),
        f"{number_text(effect.low, 3)} to {number_text(effect.high, 3)}",
        f"{effect.num_with:,}",
        f"{effect.num_without:,}",
        number_text(effect.mean_with),
        number_text(effect.mean_without),
    ]


def _sentence(effect: Effect) -> str:
    """Return an effect in words."""
    more = "higher" if effect.difference > 0 else "lower"
    return (
        f"{effect.name}: the {effect.num_with:,} architectures with it score {number_text(abs(effect.difference), 3)} "
        f"{more} on average than the {effect.num_without:,} without."
    )
