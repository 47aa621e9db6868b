"""The winner of a run in words: rank 0, random architectures or a standard method. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.cli.console import duration
from gflownet.errors import counted
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.rows import EvaluationRecord

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
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

    @property
    def words(self) -> str:
        """Return mean and interval."""
        return f"{self.mean:.4f}{_margin_words((self.high - self.low) / 2)}"

    def margin(self, other: Side) -> float:
        """Return half the 95 % interval of the difference of two means, NaN where one has no interval.

        The root of the sum of squares of both halves: with Student's t of each side at least as wide as the interval
        with Welch's degrees of freedom, which are not fewer than those of the smaller side (Welch 1947).
        """
        return math.hypot(self.high - self.low, other.high - other.low) / 2

    def is_apart(self, other: Side) -> bool:
        """Return whether the interval of the difference leaves out 0; an unknown one does not."""
        return abs(self.mean - other.mean) > self.margin(other)


def _margin_words(margin: float) -> str:
    return "" if math.isnan(margin) else f" {PLUS_MINUS} {margin:.4f}"


def side_of(name: str, entry: Mapping[str, Any]) -> Side | None:
    """Return mean and interval of an entry of references.json, or of a rank's final stage; None without a mean."""
    own = entry.get("own")
    further: dict[str, Any] = {"load": str(entry.get("load") or ""), "measure": str(entry.get("measure") or "")}
    further |= {"own": side_of(str(own.get("name")), own) if isinstance(own, Mapping) else None}
    match entry.get("mean"), entry.get("interval"):
        case (int() | float() as mean, [int() | float() as low, int() | float() as high]):
            return Side(name, mean, low, high, **further)
        case (int() | float() as mean, _):
            return Side(name, mean, math.nan, math.nan, **further)
    return None


def full_name(name: str, measure: str) -> str:
    """Return the name of a reference with its measure, if it has one."""
    return f"{name}, {measure}" if measure else name


def verdict_of(best: Side | None, references: Iterable[Side | None]) -> list[str]:
    """Return a line for every reference: those with a measure, then the others from the best to the worst."""
    known = [each for each in references if each is not None]
    known.sort(key=lambda each: (not each.measure, 0.0 if each.measure else -each.mean))
    return [] if best is None else [_line(best, reference) for reference in known]


def is_random(name: str) -> bool:
    """Return whether a reference is that of random architectures."""
    return "random architecture" in name


def is_beaten(side: Side, best: Side) -> bool:
    """Return whether the run, by default its best architecture, is clearly better than a reference."""
    best = side.own or best
    return best.mean > side.mean and best.is_apart(side)


def _line(best: Side, reference: Side) -> str:
    load = f"; in Python: {reference.load}" if reference.load and not reference.measure else ""
    best, start = reference.own or best, f"{reference.measure}: " if reference.measure else ""
    gain = best.mean - reference.mean
    first, second = (best, reference) if gain > 0 else (reference, best)
    names = f"{first.name} ({first.words})", f"{second.name} ({second.words})"
    difference = f"{abs(gain):.4f}{_margin_words(best.margin(reference))}"
    if not best.is_apart(reference):
        return f"{start}not separated: {names[0]} and {names[1]}, difference {difference}{load}"
    return f"{start}{names[0]} is better than {names[1]}, by {difference}{load if second is best else ''}"


MIN_TRAINED_ON = 20  # evaluations: fewer hardly tell one architecture from another


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
    words, range_words = f"{counted(len(scores), 'new sample')}: {_mean(scores):.3f}", ""
    if sizes:
        range_words = f" of {min(sizes):,} to {max(sizes):,} parameters"
    if not random:
        return f"{words} (random predicted {record['random_predicted']:.3f})"
    words += f" ({counted(len(random), 'random architecture')}{range_words}: {_mean(random):.3f}"
    if len(random) > len(chosen):
        words += f", the {len(chosen)} of them with the best predictions: {_mean(chosen):.3f}"
    return f"{words})"


def _preferred_words(entry: Mapping[str, Any]) -> str:
    figures = [f"{name} {utility:.3f}" for name, utility in entry["utilities"].items()]
    figures += [] if entry["parameters"] is None else [f"{entry['parameters']:,.0f} parameters"]
    return f"{entry['objective']}: {', '.join(figures)}"


def sampler_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of sampler.json as metrics `sampler/NAME`; lists of scores as their means."""
    means = {key: _mean(record[f"{key}s"]) for key in ("score", "random_score", "chosen_score") if record[f"{key}s"]}
    single = {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "format"}
    return {f"sampler/{name}": value for name, value in {**means, **single}.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


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
