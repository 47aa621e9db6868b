"""The winner of a run in words: rank 0, random architectures or a standard method. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gflownet.cli.console import duration
from gflownet.errors import counted
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.rows import EvaluationRecord

PLUS_MINUS, NO_BREAK = "\N{PLUS-MINUS SIGN}", "\N{NO-BREAK SPACE}"
HYPERVOLUME = "hypervolume on new seeds"  # a measure of fronts in place of scores


@dataclass(frozen=True)
class Side:
    """Mean score of an architecture or a standard method on new seeds."""

    name: str
    mean: float
    low: float  # ends of its 95 % interval; NaN for a single seed
    high: float
    load: str = ""  # line of Python; empty: none
    measure: str = ""  # a cap, or the hypervolume; empty: of the best architectures without a cap
    own: Side | None = None  # of the run by this measure; None: its best architecture
    num: int = 0  # trainings; 0: unknown, or those of several architectures

    @property
    def words(self) -> str:
        """Return mean and interval."""
        return f"{self.mean:.4f}{_margin_words(self.half_width)}"

    @property
    def half_width(self) -> float:
        """Return half the width of the interval, NaN without one."""
        return (self.high - self.low) / 2

    def margin(self, other: Side) -> float:
        """Return half the 95 % interval of the difference of two means, NaN where one has no interval.

        The root of the sum of squares of both halves: with Student's t of each side at least as wide as the interval
        with Welch's degrees of freedom, which are not fewer than those of the smaller side (Welch 1947).
        """
        return math.hypot(self.high - self.low, other.high - other.low) / 2

    def is_apart(self, other: Side) -> bool:
        """Return whether the interval of the difference leaves out 0; an unknown one does not."""
        return abs(self.mean - other.mean) > self.margin(other)


def _short(value: float, margin: float, *, sign: str = "") -> str:
    margin_words = "" if math.isnan(margin) else f"{NO_BREAK}{PLUS_MINUS}{NO_BREAK}{margin:.3f}"
    return f"{value:{sign}.3f}{margin_words}"


def _margin_words(margin: float) -> str:
    return "" if math.isnan(margin) else f" {PLUS_MINUS} {margin:.4f}"


def side_of(name: str, entry: Mapping[str, Any]) -> Side | None:
    """Return mean and interval of an entry of references.json, or of a rank's final stage; None without a mean."""
    own = entry.get("own")
    further: dict[str, Any] = {"load": str(entry.get("load") or ""), "measure": str(entry.get("measure") or "")}
    further |= {"own": side_of(str(own.get("name")), own) if isinstance(own, Mapping) else None}
    further |= {"num": len(entry.get("scores") or ())}
    match entry.get("mean"), entry.get("interval"):
        case (int() | float() as mean, [int() | float() as low, int() | float() as high]):
            return Side(name, mean, low, high, **further)
        case (int() | float() as mean, _):
            return Side(name, mean, math.nan, math.nan, **further)
    return None


def full_name(name: str, measure: str) -> str:
    """Return the name of a reference with its measure, if it has one; `random_note` describes random search."""
    name = RANDOM if is_random(name) else name
    return f"{name}, {measure}" if measure else name


@dataclass(frozen=True)
class Comparison:
    """The run against a reference."""

    own: Side
    reference: Side

    @property
    def gain(self) -> float:
        """Return the mean of the run minus the mean of the reference."""
        return self.own.mean - self.reference.mean

    @property
    def verdict(self) -> str:
        """Return better, worse or not separated: the 95 % interval of the difference leaves out 0, or it does not."""
        if not self.own.is_apart(self.reference):
            return "not separated"
        return "better" if self.gain > 0 else "worse"

    @property
    def num_needed(self) -> int:
        """Return trainings of each side that separate a difference like this one in at least 4 of 5 runs; 0: unknown.

        Of a normal difference d with the standard error s of n trainings, n (1.96 + .84)^2 s^2 / d^2 (Lehr 1992). The
        interval of few trainings is wider than 1.96 s: fewer are enough.
        """
        num, margin = min(self.own.num, self.reference.num), self.own.margin(self.reference)
        if not num or not self.gain or math.isnan(margin) or self.own.is_apart(self.reference):
            return 0
        return math.ceil(num * _POWER * (margin / self.gain) ** 2)

    @property
    def words(self) -> str:
        """Return the verdict, with the number of trainings that would give another one."""
        if not (num := self.num_needed):
            return self.verdict
        number = f"at most {num}" if num <= _MOST_TRAININGS else f"more than {_MOST_TRAININGS}"
        return f"{self.verdict} ({number})"

    @property
    def line(self) -> str:
        """Return measure, verdict, both sides and their difference."""
        start = f"{self.reference.measure}: " if self.reference.measure else ""
        sides = " against ".join(f"{each.name} ({each.words})" for each in (self.own, self.reference))
        return f"{start}{self.verdict}: {sides}, difference {self.difference}"

    @property
    def difference(self) -> str:
        """Return the difference with its 95 % interval."""
        return f"{self.gain:+.4f}{_margin_words(self.own.margin(self.reference))}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a row under COMPARED."""
        name, margin = self.reference.measure or full_name(self.reference.name, ""), self.own.margin(self.reference)
        figures = (_short(each.mean, each.half_width) for each in (self.own, self.reference))
        return name, *figures, _short(self.gain, margin, sign="+"), self.words

    @property
    def is_random(self) -> bool:
        """Return whether the reference are random architectures."""
        return is_random(self.reference.name)


_POWER, _MOST_TRAININGS = ((1.96 + 0.84) / 1.96) ** 2, 99
RANDOM = "random search"
COMPARED = ("compared by", "this run", "reference", "difference", "this run is (seeds to separate)")


def comparisons_of(best: Side | None, references: Iterable[Side | None]) -> list[Comparison]:
    """Return a comparison for every reference: those with a measure, then the others from the best to the worst."""
    known = [each for each in references if each is not None]
    known.sort(key=lambda each: (not each.measure, 0.0 if each.measure else -each.mean))
    return [] if best is None else [Comparison(each.own or best, each) for each in known]


def summary_of(comparisons: Sequence[Comparison]) -> str:
    """Return all verdicts in a sentence, those against random search first; empty without any."""
    parts = list[str]()
    for kind, end in _ENDS.items():
        alike = [each for each in comparisons if each.verdict == kind]
        measures = [each.reference.measure for each in alike if each.is_random]
        sides = [f"{RANDOM}{_measure_words(measures)}"] if measures else []
        if names := [each.reference.name for each in alike if not each.is_random]:
            sides.append(listed(names))
        if sides:
            parts.append(f"{kind} {end} " + (f", and {end} " if any(measures) else " and ").join(sides))
    return "; ".join(parts)


_ENDS = {"better": "than", "not separated": "from", "worse": "than"}


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
    name = next((each.reference.name for each in comparisons if each.is_random and not _is_front(each)), "")
    return f"{RANDOM}: {name}" if name else ""


def _is_front(comparison: Comparison) -> bool:
    return comparison.reference.measure == HYPERVOLUME


def is_random(name: str) -> bool:
    """Return whether a reference are random architectures."""
    return "random architecture" in name


def is_beaten(side: Side, best: Side) -> bool:
    """Return whether the run, by default its best architecture, is clearly better than a reference."""
    best = side.own or best
    return best.mean > side.mean and best.is_apart(side)


MIN_TRAINED_ON = 20  # evaluations: fewer hardly separate architectures


def sampler_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the lines about sampler.json: trained samples against random architectures, p against R, and warnings."""
    num, num_distinct, num_trained_on = (int(record[f"num_{key}"]) for key in ("samples", "distinct", "trained_on"))
    state = "converged" if record["is_converged"] else "not converged"
    correlation, figures = record["rank_correlation"], f"flow consistency {record['flow_consistency']:.2f}"
    if correlation is not None:
        figures = f"log p against log R {correlation:.2f}; {figures}"
    known = f"{num_distinct} of {num} distinct, {record['num_known'] or 'none'} evaluated before"
    lines = [f"sampler: {_trained_words(record)}; {known}; {figures}: {state}"]
    if num_trained_on < MIN_TRAINED_ON:
        learned = counted(num_trained_on, "evaluation")
        lines.append(f"the sampler has learned from {learned}, fewer than {MIN_TRAINED_ON}: its samples are guesses")
    if 2 * num_distinct < num:
        lines.append(f"{num - num_distinct} of {num} samples repeat another one: the sampler knows few architectures")
    if preferences := record["preferences"]:
        weight = f"samples with a preference of {preferences[0]['weight']} for one objective, predicted utilities"
        lines.append(f"{weight}: {'; '.join(map(_preferred_words, preferences))}")
    return lines


def _trained_words(record: Mapping[str, Any]) -> str:
    scores, random, chosen = (record[key] for key in ("scores", "random_scores", "chosen_scores"))
    if not scores:
        return "no sample was evaluated"
    sizes = [size for size in record["parameters"] if size is not None]
    words, range_words = f"{counted(len(scores), 'new sample')}: {fmean(scores):.3f}", ""
    if sizes:
        range_words = f" of {min(sizes):,} to {max(sizes):,} parameters"
    if not random:
        return f"{words} (random predicted {record['random_predicted']:.3f})"
    words += f" ({counted(len(random), 'random architecture')}{range_words}: {fmean(random):.3f}"
    if len(random) > len(chosen):
        words += f", the {len(chosen)} of them with the best predictions: {fmean(chosen):.3f}"
    return f"{words})"


def _preferred_words(entry: Mapping[str, Any]) -> str:
    figures = [f"{name} {utility:.3f}" for name, utility in entry["utilities"].items()]
    figures += [] if entry["parameters"] is None else [f"{entry['parameters']:,.0f} parameters"]
    return f"{entry['objective']}: {', '.join(figures)}"


def sampler_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of sampler.json as metrics `sampler/NAME`; lists of scores as their means."""
    means = {key: fmean(record[f"{key}s"]) for key in ("score", "random_score", "chosen_score") if record[f"{key}s"]}
    single = {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "format"}
    return {f"sampler/{name}": value for name, value in {**means, **single}.items()}


@dataclass(frozen=True)
class Spent:
    """Evaluations of a run for one purpose."""

    num: int  # whole evaluations, or those that were stopped early
    seconds: float  # of all parts, summed over processes


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


def spent_words(records: Iterable[EvaluationRecord], plan: Mapping[str, Any]) -> str:
    """Return the trainings after the search against the plan of a run (gflownet.run.plan.Plan)."""
    planned = {"final stage": ("num_final",), "random": ("num_random", "num_random_final")}
    spent = {kind.removesuffix(" reference"): each.num for kind, each in spent_on(records).items()}
    parts = {kind: sum(int(plan.get(name, 0)) for name in names) for kind, names in planned.items()}
    return ", ".join(f"{kind} {spent.get(kind, 0):,} of {num:,}" for kind, num in parts.items() if num)


def spent_line(records: Iterable[EvaluationRecord]) -> str | None:
    """Return the evaluations of a run and their seconds by what they were for, None without any."""
    parts = [f"{kind} {spent.num:,} in {duration(spent.seconds)}" for kind, spent in spent_on(records).items()]
    return f"evaluations and their time, summed over processes: {', '.join(parts)}" if parts else None
