"""Sections about the certificate, references, the Pareto front, failures and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.certificate.words import sentence, table
from gflownet.errors import counted
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus, failure_kind, first_line
from gflownet.pictures.bar_charts import Bar, Estimate, bar_chart, interval_chart
from gflownet.pictures.chart import Chart, Table, duration_text, number_text
from gflownet.pictures.line_charts import Highlight, Line, front_chart, line_chart, scatter_chart
from gflownet.report.page.best import Ranked, table_of
from gflownet.report.page.drawings import drawing_of
from gflownet.report.page.overview import has_search_method
from gflownet.report.page.run_data import RunData, figure_of, mapping_of
from gflownet.report.page.secrets import masked
from gflownet.report.results import Results, Side
from gflownet.report.verdict import HYPERVOLUME, RANDOM, comparison_rows, full_name, random_note, score_text, summary_of


@dataclass(frozen=True)
class ReferenceSection:
    """A chart, the comparison in a sentence and a table, and how to load the references."""

    chart: Chart
    fronts: Chart | None  # of a score and a cost, on new seeds
    summary: str
    table: Table
    note: str  # what random search is
    loads: Sequence[tuple[str, str]]  # name and line of Python


def reference_section(run: RunData) -> ReferenceSection | None:
    """Return the references of a run with all ranks, None without references."""
    results, comparisons = run.results, run.results.comparisons
    ranks = [_estimate(each.final, href=f"#rank-{each.rank}") for each in results.finalists if each.final is not None]
    sides = [each.reference for each in comparisons]
    name = results.score
    chart = interval_chart(
        "references-chart",
        f"{name[:1].upper()}{name[1:]} on new seeds, with 95 % intervals",
        [*ranks, *(_estimate(side) for side in sides if side.measure != HYPERVOLUME)],
        x_label=f"{name} (higher is better)",
        header=("architecture", name, "95 % interval", f"test {name}", "parameters"),
        legend=("found by this run", "reference"),
    )
    if chart is None or not comparisons:
        return None
    header, rows = comparison_rows(comparisons, metric=results.metric)
    return ReferenceSection(
        chart,
        _fronts(results),
        summary=summary_of(comparisons, metric=results.metric),
        table=Table(header, rows),
        note=random_note(comparisons),
        loads=[(full_name(side), side.load) for side in sides if side.load],
    )


def _fronts(results: Results) -> Chart | None:
    """Return the mean scores on new seeds of the finalists and of the random ones over their cost; None without one."""
    if (final := results.final) is None or not final.cost:
        return None
    groups = {"this run": final.finalists, RANDOM: final.random}
    fronts = [
        (name, [(each.metrics[final.cost], each.final) for each in group if each.final is not None and not each.errors])
        for name, group in groups.items()
    ]
    return front_chart(
        "fronts-chart",
        f"{results.score} on new seeds over {final.cost.replace('_', ' ')}, with 95 % intervals",
        [(name, [(cost, side.mean, side.low, side.high) for cost, side in points]) for name, points in fronts],
        x_label=final.cost.replace("_", " "),
        y_label=results.score,
    )


def _estimate(side: Side, *, href: str = "") -> Estimate:
    """Return a row of the chart; those with a link are ranks."""
    low, high = (side.mean, side.mean) if math.isnan(side.low) else (side.low, side.high)
    size = number_text(None) if side.num_parameters is None else f"{side.num_parameters:,}"
    test = number_text(None) if side.test_score is None else score_text(side.test_score)
    name = side.name.capitalize() if href else full_name(side)
    return Estimate(name, side.mean, low, high, cells=[test, size], is_marked=bool(href), href=href)


def set_section(run: RunData) -> tuple[Table, Sequence[Chart], str] | None:
    """Return test figures of the set of networks and of others, its reliability, and how to load it; None without."""
    if not (rows := run.results.set):
        return None
    shown = [name for name, value in rows[0].items() if isinstance(value, float)]
    cells = [[row["name"], f"{row['num_parameters']:,}", *(number_text(row[name]) for name in shown)] for row in rows]
    curves = [(row["name"], row["calibration"]) for row in rows[:2] if "calibration" in row]
    lines = [Line(name, [sure for sure, *_ in bins], [right for _, right, _ in bins]) for name, bins in curves]
    chart = line_chart(
        "set-reliability",
        "Reliability: accuracy of the predictions with a confidence",
        [*lines, Line("a calibrated network", (0.0, 1.0), (0.0, 1.0))] if lines else (),
        x_label="confidence",
        y_label="accuracy",
    )
    table = Table(("of the test data", "parameters", *(name.replace("_", " ") for name in shown)), cells)
    load = f'import gflownet; model = gflownet.load("{run.folder}", set=True)'
    return table, [] if chart is None else [chart], load


# Architectures of the front that are listed and drawn.
MAX_SHOWN = 24


@dataclass(frozen=True)
class FrontSection:
    """Scatter charts, and the front as a table and as drawings, best in the first objective first."""

    charts: Sequence[Chart]
    ranked: Sequence[Ranked]
    table: Table
    num_front: int
    objectives: str  # with their directions, where known


def front_section(run: RunData) -> FrontSection | None:
    """Return the front of a run with several objectives; before its end only the points; None with one objective."""
    objectives = run.option("evaluation.objectives")
    names = [str(name) for name in objectives] if isinstance(objectives, list | tuple) else []
    if len(names) < 2 or not run.feasible:
        return None
    front = run.front[:MAX_SHOWN]
    directions = mapping_of(run.plan.get("directions"))
    words = [f"{name} ({_DIRECTIONS[directions[name]]})" if name in directions else name for name in names]
    charts = [_chart(run, names, place, front) for place in range(1, len(names))]
    ranked = [_card(entry, rank, names) for rank, entry in enumerate(front)]
    return FrontSection(
        charts=[chart for chart in charts if chart is not None],
        ranked=ranked,
        table=table_of(ranked),
        num_front=len(run.front),
        objectives=" and ".join(words) if len(words) == 2 else ", ".join(words),
    )


_DIRECTIONS = {"min": "lower is better", "max": "higher is better"}


def _chart(run: RunData, names: Sequence[str], place: int, front: Sequence[Mapping[str, Any]]) -> Chart | None:
    first, other = names[0], names[place]
    evaluated = [(record.metrics.get(other, math.nan), record.metrics.get(first, math.nan)) for record in run.feasible]
    highlights = [
        Highlight(x, y, f"front {rank}: {first} {number_text(y)}, {other} {number_text(x)}", f"#front-{rank}")
        for rank, entry in enumerate(front)
        if math.isfinite(x := _metric(entry, other)) and math.isfinite(y := _metric(entry, first))
    ]
    return scatter_chart(
        f"front-{other}-chart".replace("_", "-").replace(" ", "-"),
        f"{first} against {other}",
        evaluated,
        highlights,
        x_label=other,
        y_label=first,
        names=(f"evaluated{run.limit_words}", "on the front, one training"),
        is_joined=len(names) == 2,
        note="A point of the front is a link to its drawing." if highlights else "",
    )


def _card(entry: Mapping[str, Any], rank: int, names: Sequence[str]) -> Ranked:
    facts = [(name, number_text(_metric(entry, name))) for name in names]
    choices = text if isinstance(text := entry.get("choices"), str) else ""
    drawing = drawing_of(mapping_of(entry.get("graph")), num_parameters=entry.get("num_parameters"))
    return Ranked(f"front-{rank}", f"Front {rank}", facts, drawing, choices=choices)


def _metric(entry: Mapping[str, Any], name: str) -> float:
    return figure_of(mapping_of(entry.get("metrics")).get(name))


MAX_KINDS = 12
MAX_EXAMPLE = 1_500


@dataclass(frozen=True)
class FailureKind:
    """Failures with one status and one error, numbers aside."""

    status: str
    error: str  # first line of the first example
    num: int
    share: str
    example: str  # whole error text
    where: str


@dataclass(frozen=True)
class FailureSection:
    """Failed evaluations by kind, the most frequent first."""

    num_failed: int
    num_evaluated: int
    kinds: Sequence[FailureKind]
    num_other_kinds: int


def failure_section(run: RunData) -> FailureSection | None:
    """Return the failures of all evaluations of a run, None without evaluations."""
    failed = [record for record in run.evaluations if record.status is not EvaluationStatus.OK]
    if not run.evaluations:
        return None
    groups: dict[str, list[EvaluationRecord]] = {}
    for record in failed:
        groups.setdefault(failure_kind(record.status, record.error), []).append(record)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    kinds = [
        FailureKind(
            status=group[0].status.words,
            error=first_line(text) or "no message",
            num=len(group),
            share=f"{len(group) / len(failed):.0%} of the failures",
            example=text if len(text) <= MAX_EXAMPLE else f"…{text[-MAX_EXAMPLE:]}",
            where=f"step {group[0].step:,}, architecture {group[0].hash[:16]}",
        )
        for group, text in ((group, masked(group[0].error or "")) for group in ordered[:MAX_KINDS])
    ]
    return FailureSection(len(failed), len(run.evaluations), kinds, len(ordered) - len(kinds))


@dataclass(frozen=True)
class TimeSection:
    """Bars of the phases and of evaluations, and facts."""

    charts: Sequence[Chart]
    facts: Sequence[tuple[str, str]]


def time_section(run: RunData) -> TimeSection | None:
    """Return where the time went, None if nothing is known."""
    phases = {} if run.status is None else {name: (seconds, "") for name, seconds in run.status.seconds.items()}
    kinds = {name: (spent.seconds, f", {counted(spent.num, 'evaluation')}") for name, spent in run.spent.items()}
    built = [
        _times("phases", "Phases of the run", "phase", phases),
        _times("evaluation-time", "Evaluations, in all evaluator processes", "evaluations", kinds),
    ]
    charts, facts = [chart for chart in built if chart is not None], list[tuple[str, str]]()
    if run.searched:
        seconds = sorted(record.seconds for record in run.searched)
        facts += [
            ("median evaluation", duration_text(seconds[len(seconds) // 2])),
            ("slowest evaluation", duration_text(seconds[-1])),
        ]
    if run.status is not None and len(run.status.sessions) > 1:
        facts.append(("sessions, resumed ones included", str(len(run.status.sessions))))
    return TimeSection(charts, facts) if charts or facts else None


def _times(key: str, title: str, name: str, times: Mapping[str, tuple[float, str]]) -> Chart | None:
    """Return bars of seconds with their shares, and further words."""
    total = sum(seconds for seconds, _ in times.values())
    bars = [
        Bar(each, seconds, f"{duration_text(seconds)}, {seconds / total:.0%}{words}")
        for each, (seconds, words) in times.items()
        if seconds > 0
    ]
    return bar_chart(key, title, bars, x_label="seconds", header=(name, "time"))


@dataclass(frozen=True)
class Verdict:
    """The verdict under one conditioning."""

    words: str
    tone: str  # good, bad or open
    findings: Sequence[str]
    figures: Table


@dataclass(frozen=True)
class CertificateSection:
    """Verdicts, or how to get a certificate."""

    verdicts: Sequence[Verdict]
    errors: Sequence[str]
    note: str
    command: str  # that writes a certificate; empty with one


def certificate_section(run: RunData, *, command: str) -> CertificateSection:
    """Return the certificate in words; without one, the command that certifies the run."""
    content = run.certificate
    if content is None:
        words = "This run has no certificate: whether it samples in proportion to the reward is not measured."
        if has_search_method(run):
            words += " A certificate compares its sampler with predicted scores."
        return CertificateSection((), (), words, command)
    parts = [part for part in content.get("certificates") or () if isinstance(part, Mapping)]
    errors = [str(error) for error in content.get("errors") or ()]
    rules = [str(line) for line in mapping_of(content.get("rules")).get("verdict") or ()]
    verdicts = [_verdict(part, errors, rules if number == 0 else []) for number, part in enumerate(parts)]
    return CertificateSection(verdicts, errors, "" if verdicts else "certificate.json has no verdict.", "")


def _verdict(part: Mapping[str, Any], errors: Sequence[str], rules: Sequence[str]) -> Verdict:
    words, tone = sentence(part, errors)
    if part.get("kind") == "exact":
        num = part.get("num_terminal")
        if isinstance(num, int):
            words += f" Exact: all {num:,} terminal states are compared."
    findings = [*rules, *(str(line) for line in part.get("verdict") or ())]
    return Verdict(words, tone, findings, Table(("figure", "if right", "found"), [list(row) for row in table(part)]))
