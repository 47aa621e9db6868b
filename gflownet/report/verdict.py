"""The results of a run in words: against random architectures and standard methods, and the sampler. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.racing import MIN_SEEDS, RANDOM_REPEAT
from gflownet.evaluation.statistics import LEVEL, difference_margin, standard_error
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.pictures.chart import number_text
from gflownet.report.results import Comparison, Results, SamplerResults, Side, Spent
from gflownet.terminal.console import duration

PLUS_MINUS, NO_BREAK = "\N{PLUS-MINUS SIGN}", "\N{NO-BREAK SPACE}"
HYPERVOLUME = "hypervolume on new seeds"  # a measure of fronts in place of scores
BETTER, NOT_SEPARATED, WORSE, TOO_FEW = "better", "not separated", "worse", "too few seeds"
ENDS = {BETTER: "than", NOT_SEPARATED: "from", WORSE: "than", TOO_FEW: "against"}


def compared(own: Side | None, reference: Side, *, num: int = 1) -> Comparison:
    """Return the difference of two means, and whether its interval, with those of `num` rows at 95 %, leaves out 0."""
    if own is None:
        return Comparison(reference)
    gain, margin = own.mean - reference.mean, difference_margin([*map(_error, (own, reference))], num=num)
    num_seeds, num_needed = min(len(own.scores), len(reference.scores)), 0
    verdict = verdict_of(gain, margin, num_seeds if reference.measure != HYPERVOLUME else MIN_SEEDS)
    if verdict == NOT_SEPARATED and gain and math.isfinite(margin):
        # Trainings that separate a difference like this one in at least 4 of 5 runs. Of a normal difference d with the
        # standard error s of n trainings and the quantile z of the level, n (z + .84)^2 s^2 / d^2 (Lehr 1992). The
        # interval of few trainings is wider than z s: fewer are enough.
        quantile = NormalDist().inv_cdf((1 + LEVEL ** (1 / num)) / 2)
        num_needed = math.ceil(num_seeds * ((1 + _POWER / quantile) * margin / gain) ** 2)
    return Comparison(reference, own, gain, margin, verdict, num_needed)


def _error(side: Side) -> tuple[float, float]:
    """Return the standard error of a mean and its degrees of freedom; a front has many."""
    if side.scores:
        return standard_error(side.scores)
    return side.margin / NormalDist().inv_cdf((1 + LEVEL) / 2), math.inf


def verdict_of(difference: float, margin: float, num: int) -> str:
    """Return the verdict on a difference with half its 95 % interval, of a number of seeds of each side."""
    if num < MIN_SEEDS:
        return TOO_FEW
    if not abs(difference) > margin:
        return NOT_SEPARATED
    return BETTER if difference > 0 else WORSE


_ROUNDING = 1e-6  # of a share; its square is the margin of equal scores
_POWER, _MOST_TRAININGS = 0.84, 99  # the quantile of 4 of 5 runs
RANDOM = "random search"
COMPARED = ("compared by", "this run", "reference", "difference", "this run is (seeds to separate)")


def score_text(value: float, *, digits: int = 4) -> str:
    """Return a score with a number of decimals, or four digits where it is far from 1."""
    return f"{value:.{digits}f}" if abs(value) < 10 and (round(value, 2) or not value) else number_text(value)


def side_words(side: Side, *, digits: int = 4) -> str:
    """Return a mean with half its interval, or with its ends where the range of scores cuts it."""
    if side.high - side.low < 2 * side.margin * (1 - _ROUNDING):
        low, high = (score_text(end, digits=digits) for end in (side.low, side.high))
        return f"{score_text(side.mean, digits=digits)} [{low}, {high}]"
    return score_text(side.mean, digits=digits) + _margin_words(side.margin, digits=digits)


def _margin_words(margin: float, *, digits: int) -> str:
    return "" if math.isnan(margin) else f" {PLUS_MINUS} {_small(margin, digits=digits)}"


def _small(value: float, *, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text if value < 10 and (value < _ROUNDING**2 or float(text)) else number_text(value)


def _difference_words(comparison: Comparison, *, digits: int) -> str:
    return f"{comparison.difference:+.{digits}f}{_margin_words(comparison.margin, digits=digits)}"


def full_name(side: Side) -> str:
    """Return the name of a reference with its measure, if it has one; `random_note` describes random search."""
    name = RANDOM if is_random(side) else side.name
    return f"{name}, {side.measure}" if side.measure else name


def verdict_words(comparison: Comparison) -> str:
    """Return the verdict, with the number of trainings that would give another one."""
    if comparison.verdict == TOO_FEW and comparison.own is not None:
        num = min(len(comparison.own.scores), len(comparison.reference.scores))
        return f"{TOO_FEW} ({num}; at least {MIN_SEEDS})"
    if not (num := comparison.num_needed):
        return comparison.verdict
    number = f"at most {num}" if num <= _MOST_TRAININGS else f"more than {_MOST_TRAININGS}"
    return f"{comparison.verdict} ({number})"


def verdict_line(comparison: Comparison) -> str:
    """Return measure, verdict, both sides and their difference."""
    own, reference = comparison.own, comparison.reference
    if own is None:
        return ""
    start = f"{reference.measure}: " if reference.measure else ""
    sides = " against ".join(f"{each.name} ({side_words(each)})" for each in (own, reference))
    return f"{start}{comparison.verdict}: {sides}, difference {_difference_words(comparison, digits=4)}"


def comparison_rows(comparisons: Sequence[Comparison], *, metric: str = "") -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the comparison; `metric` is the measured figure behind the score, if another."""
    rows = list[list[str]]()
    for each in comparisons:
        if (own := each.own) is None:
            continue
        figures = [*(side_words(side, digits=3) for side in (own, each.reference)), _difference_words(each, digits=3)]
        figures = [words.replace(f"{PLUS_MINUS} ", f"{PLUS_MINUS}{NO_BREAK}") for words in figures]
        rows.append([each.reference.measure or full_name(each.reference), *figures, verdict_words(each)])
        if metric and not each.reference.measure:
            values = own.metric, each.reference.metric
            differs = f"{own.metric - each.reference.metric:+.3f}"
            rows.append([f"{full_name(each.reference)}, {metric}", *(f"{value:.3f}" for value in values), differs, ""])
    return list(COMPARED), rows


def comparisons_of(best: Side | None, pairs: Iterable[tuple[Side, Side | None]]) -> tuple[Comparison, ...]:
    """Return a comparison for every reference: those with a measure, then the others from the best to the worst.

    A pair has the reference, and the run by its measure; None: the best architecture.
    """
    known = sorted(pairs, key=lambda pair: (not pair[0].measure, 0.0 if pair[0].measure else -pair[0].mean))
    return tuple(compared(own or best, each, num=len(known)) for each, own in known)


def summary_of(comparisons: Sequence[Comparison], *, metric: str = "") -> str:
    """Return all verdicts in a sentence, those against random search first; empty without any."""
    parts = list[str]()
    for kind, end in ENDS.items():
        alike = [each for each in comparisons if each.verdict == kind]
        random = [each.reference.measure for each in alike if is_random(each.reference)]
        sides = [f"{RANDOM}{_measure_words(random)}"] if random else []
        if names := [each.reference.name for each in alike if not is_random(each.reference)]:
            sides.append(listed(names))
        if sides:
            parts.append(f"{kind} {end} " + (f", and {end} " if any(random) else " and ").join(sides))
    found = next((each for each in comparisons if metric and is_random(each.reference) and each.own), None)
    if found is not None and found.own is not None and not found.reference.measure:
        parts.append(f"{metric} {found.own.metric:.3f}, of {RANDOM} {found.reference.metric:.3f}")
    return "; ".join(parts)


def _measure_words(measures: Sequence[str]) -> str:
    words = ["over the whole front"] if HYPERVOLUME in measures else []
    caps = [measure.removeprefix(_CAP) for measure in measures if measure.startswith(_CAP)]
    numbers, unit = [cap.partition(" ")[0] for cap in caps], caps[0].partition(" ")[2] if caps else ""
    words += [f"{_CAP}{listed(numbers)} {unit}"] if caps else []
    return f" {' and '.join(words)}" if words else ""


_CAP = "at most "


def listed(words: Sequence[str]) -> str:
    """Return words with commas and an "and"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def random_note(comparisons: Sequence[Comparison]) -> str:
    """Return the description of random search, in a line; empty without one."""
    sides = (each.reference for each in comparisons)
    name = next((side.name for side in sides if is_random(side) and side.measure != HYPERVOLUME), "")
    return f"{RANDOM}: {name}" if name else ""


def better_method(comparisons: Sequence[Comparison]) -> Side | None:
    """Return the best of the standard methods that are clearly better than the run, None without one."""
    sides = [each.reference for each in comparisons if each.verdict == WORSE and not is_random(each.reference)]
    return max(sides, key=lambda side: side.mean, default=None)


def is_above_random(comparisons: Sequence[Comparison]) -> bool:
    """Return whether the run is clearly better than random search as a whole, or there was none."""
    sides = [each for each in comparisons if is_random(each.reference)]
    return all(each.verdict == BETTER for each in sides if each.reference.measure in ("", HYPERVOLUME))


def is_random(side: Side) -> bool:
    """Return whether a reference are random architectures."""
    return "random architecture" in side.name


MIN_TRAINED_ON = 20  # evaluations: fewer hardly separate architectures


def sampler_lines(sampler: SamplerResults) -> list[str]:
    """Return the lines about a sampler: trained samples against random architectures, p against R, and warnings."""
    num, num_distinct = sampler.num_samples, sampler.num_distinct
    state = "converged" if sampler.is_converged else "not converged"
    figures = f"flow consistency {sampler.flow_consistency:.2f}"
    if sampler.rank_correlation is not None:
        figures = f"log p against log R {sampler.rank_correlation:.2f}; {figures}"
    known = f"{num_distinct} of {num} distinct, {sampler.num_known or 'none'} evaluated before"
    lines = [f"sampler: {_trained_words(sampler)}; {known}; {figures}: {state}"]
    if sampler.num_trained_on < MIN_TRAINED_ON:
        learned = counted(sampler.num_trained_on, "evaluation")
        lines.append(f"the sampler has learned from {learned}, fewer than {MIN_TRAINED_ON}: its samples are guesses")
    if 2 * num_distinct < num:
        lines.append(f"{num - num_distinct} of {num} samples repeat another one: the sampler knows few architectures")
    return lines


def _trained_words(sampler: SamplerResults) -> str:
    scores, random, chosen = sampler.scores, sampler.random_scores, sampler.chosen_scores
    if not scores:
        return "no sample was evaluated"
    sizes = [size for size in sampler.parameters if size is not None]
    words, range_words = f"{counted(len(scores), 'new sample')}: {fmean(scores):.3f}", ""
    if sizes:
        ends = dict.fromkeys(f"{size:,}" for size in (min(sizes), max(sizes)))
        range_words = f" of {' to '.join(ends)} parameters"
    if not random:
        return f"{words} (random predicted {sampler.random_predicted:.3f})"
    words += f" ({counted(len(random), 'random architecture')}{range_words}: {fmean(random):.3f}"
    if len(random) > len(chosen):
        words += f", the {len(chosen)} of them with the best predictions: {fmean(chosen):.3f}"
    return f"{words})"


def summary_figures(results: Results) -> dict[str, Any]:
    """Return the figures of a run by the keys of wandb's summary; lists of scores as their means."""
    figures: dict[str, Any] = dict(results.certificate)
    for finalist in results.finalists[:1]:
        best = finalist.final or Side(f"rank {finalist.rank}", finalist.score)
        figures |= {"best/words": finalist.shown or None, "best/load": finalist.load}
        figures |= _figures_of("best", best) | {
            "best/test_score": finalist.test_score,
            "best/num_parameters": finalist.num_parameters,
        }
    for each in results.comparisons:
        side = each.reference
        group = "random" if is_random(side) else f"reference/{side.name}"
        group += f"/{side.measure}" if side.measure else ""
        figures |= _figures_of(group, side) | {f"{group}/test_score": side.test_score}
        figures |= {f"{group}/num_parameters": side.num_parameters, f"{group}/verdict": verdict_line(each) or None}
    for row in results.set:
        figures |= {f"set/{row['key']}/{name}": value for name, value in row.items() if isinstance(value, float)}
    if results.set:
        figures["set/num_parameters"] = results.set[0]["num_parameters"]
    if (sampler := results.sampler) is not None:
        named = {"score": sampler.scores, "random_score": sampler.random_scores, "chosen_score": sampler.chosen_scores}
        figures |= {f"sampler/{name}": fmean(values) for name, values in named.items() if values}
        single = {name: value for name, value in vars(sampler).items() if isinstance(value, int | float)}
        figures |= {f"sampler/{name}": float(value) for name, value in single.items()}
    return {key: value for key, value in figures.items() if value is not None and value == value}


def _figures_of(group: str, side: Side) -> dict[str, Any]:
    return {f"{group}/{name}": value for name, value in (("score", side.mean), ("low", side.low), ("high", side.high))}


def spent_on(records: Iterable[EvaluationRecord]) -> dict[str, Spent]:
    """Return the evaluations of a run by what they were for."""
    groups: dict[str, list[EvaluationRecord]] = {"search": [], "final stage": [], "random reference": []}
    for record in records:
        kind = "search" if not record.seed else "final stage" if record.seed < RANDOM_REPEAT else "random reference"
        groups[kind].append(record)
    return {
        kind: Spent(
            num=sum(bool(row.seed or not row.fidelity or row.metrics.get("is_stopped")) for row in rows),
            seconds=math.fsum(row.seconds for row in rows),
        )
        for kind, rows in groups.items()
        if rows
    }


def spent_words(spent: Mapping[str, Spent], plan: Mapping[str, Any]) -> str:
    """Return the trainings after the search against the plan of a run (gflownet.run.plan.RunPlan)."""
    planned = {"final stage": ("num_final",), "random": ("num_random", "num_random_final")}
    done = {kind.removesuffix(" reference"): each.num for kind, each in spent.items()}
    parts = {kind: sum(int(plan.get(name, 0)) for name in names) for kind, names in planned.items()}
    return ", ".join(f"{kind} {done.get(kind, 0):,} of {num:,}" for kind, num in parts.items() if num)


def spent_line(spent: Mapping[str, Spent]) -> str:
    """Return the evaluations of a run and their seconds by what they were for, empty without any."""
    parts = [f"{kind} {each.num:,} in {duration(each.seconds)}" for kind, each in spent.items()]
    return f"evaluations and their time, summed over processes: {', '.join(parts)}" if parts else ""
