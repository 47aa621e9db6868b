"""Sections about the certificate, references, the Pareto front, failures and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.certificate.words import sentence, table
from gflownet.errors import counted
from gflownet.evaluation.store_rows import EvaluationRecord, EvaluationStatus, failure_kind, first_line
from gflownet.pictures.bar_charts import Bar, Estimate, bar_chart, interval_chart
from gflownet.pictures.chart import Chart, Table, duration_text, number_text
from gflownet.pictures.line_charts import Highlight, scatter_chart
from gflownet.report.page.best import Ranked, score_words
from gflownet.report.page.drawings import drawing_of
from gflownet.report.page.overview import has_search_method
from gflownet.report.page.run_data import RunData, figure_of, mapping_of, number_of
from gflownet.report.page.secrets import masked
from gflownet.report.verdict import Side, spent_line, spent_on, verdict_of

NUM_RANKS = 5


@dataclass(frozen=True)
class ReferenceSection:
    """A chart, and the comparison in words."""

    chart: Chart
    sentences: Sequence[str]


def reference_section(run: RunData) -> ReferenceSection | None:
    """Return the references of a run with the best ranks, None without references."""
    ranks = [
        (side, _estimate(side, entry, href=f"#rank-{place}"))
        for place, entry in enumerate(run.top[:NUM_RANKS])
        if (side := _side(f"rank {entry.get('rank')}", mapping_of(entry.get("final")))) is not None
    ]
    references = [
        (side, _estimate(side, entry))
        for entry in run.references
        if (side := _side(str(entry.get("name")), entry)) is not None
    ]
    chart = interval_chart(
        "references-chart",
        "Score on new seeds, with 95 % intervals",
        [estimate for _, estimate in (*ranks, *references)],
        x_label="score",
        header=("architecture", "score", "95 % interval", "test score", "parameters"),
        legend=("found by this run", "reference"),
    )
    if chart is None or not references:
        return None
    return ReferenceSection(chart, verdict_of(ranks[0][0], [side for side, _ in references]) if ranks else ())


def _side(name: str, entry: Mapping[str, Any]) -> Side | None:
    """Return mean and interval of an entry, None without a mean."""
    mean, ends = number_of(entry.get("mean")), entry.get("interval")
    low, high = map(figure_of, ends) if isinstance(ends, list) and len(ends) == 2 else (math.nan, math.nan)
    return None if mean is None else Side(name, mean, low, high, str(entry.get("load") or ""))


def _estimate(side: Side, entry: Mapping[str, Any], *, href: str = "") -> Estimate:
    """Return a row of the chart; those with a link are ranks."""
    low, high = (side.mean, side.mean) if math.isnan(side.low + side.high) else (side.low, side.high)
    num_parameters = entry.get("num_parameters")
    size = f"{num_parameters:,}" if isinstance(num_parameters, int) else number_text(None)
    cells = [score_words(entry.get("test_score"), None), size]
    name = side.name.capitalize() if href else side.name
    return Estimate(name, side.mean, low, high, cells=cells, is_marked=bool(href), href=href)


# Architectures of the front that are drawn.
MAX_DRAWN = 24


@dataclass(frozen=True)
class FrontSection:
    """Scatter charts and the drawn front, best in the first objective first."""

    charts: Sequence[Chart]
    ranked: Sequence[Ranked]
    num_front: int
    objectives: str


def front_section(run: RunData) -> FrontSection | None:
    """Return the front of a run with several objectives; before its end only the points; None with one objective."""
    objectives = run.option("evaluation.objectives")
    names = [str(name) for name in objectives] if isinstance(objectives, list | tuple) else []
    if len(names) < 2 or not run.feasible:
        return None
    front = run.front[:MAX_DRAWN]
    charts = [_chart(run, names[0], other, front) for other in names[1:]]
    return FrontSection(
        charts=[chart for chart in charts if chart is not None],
        ranked=[_card(entry, rank, names) for rank, entry in enumerate(front)],
        num_front=len(run.front),
        objectives=" and ".join(names) if len(names) == 2 else ", ".join(names),
    )


def _chart(run: RunData, first: str, other: str, front: Sequence[Mapping[str, Any]]) -> Chart | None:
    points = [(record.metrics.get(other, math.nan), record.metrics.get(first, math.nan)) for record in run.feasible]
    highlights = [
        Highlight(x, y, f"front {rank}: {first} {number_text(y)}, {other} {number_text(x)}", f"#front-{rank}")
        for rank, entry in enumerate(front)
        if math.isfinite(x := _metric(entry, other)) and math.isfinite(y := _metric(entry, first))
    ]
    return scatter_chart(
        f"front-{other}-chart".replace("_", "-").replace(" ", "-"),
        f"{first} against {other}",
        points,
        highlights,
        x_label=other,
        y_label=first,
        names=(f"evaluated{run.limit_words}", "on the front"),
        is_joined=True,
        note="A point of the front is a link to its drawing." if highlights else "",
    )


def _card(entry: Mapping[str, Any], rank: int, names: Sequence[str]) -> Ranked:
    facts = [(name, number_text(_metric(entry, name))) for name in names]
    return Ranked(f"front-{rank}", f"Front {rank}", facts, drawing_of(mapping_of(entry.get("graph"))))


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
    kinds = [_kind(group, len(failed)) for group in ordered[:MAX_KINDS]]
    return FailureSection(len(failed), len(run.evaluations), kinds, len(ordered) - len(kinds))


def _kind(group: Sequence[EvaluationRecord], num_failed: int) -> FailureKind:
    first = group[0]
    text = masked(first.error or "")
    return FailureKind(
        status=first.status.words,
        error=first_line(text) or "no message",
        num=len(group),
        share=f"{len(group) / num_failed:.0%} of the failures",
        example=text if len(text) <= MAX_EXAMPLE else f"…{text[-MAX_EXAMPLE:]}",
        where=f"step {first.step:,}, architecture {first.hash[:16]}",
    )


@dataclass(frozen=True)
class TimeSection:
    """Bars of the phases and of evaluations, and facts."""

    charts: Sequence[Chart]
    facts: Sequence[tuple[str, str]]
    spent: str = ""  # evaluations by what they were for; empty: there is no final stage


def time_section(run: RunData) -> TimeSection | None:
    """Return where the time went, None if nothing is known."""
    charts = [chart for chart in (_phases(run), _evaluations(run)) if chart is not None]
    facts = _facts(run)
    spent = spent_line(run.evaluations) if any(record.seed for record in run.evaluations) else None
    return TimeSection(charts, facts, spent or "") if charts or facts else None


def _phases(run: RunData) -> Chart | None:
    seconds = {} if run.status is None else run.status.seconds
    total = sum(seconds.values())
    bars = [Bar(name, value, _share_text(value, total)) for name, value in seconds.items() if value > 0]
    return bar_chart("phases", "Phases of the run", bars, x_label="seconds", header=("phase", "time"))


def _evaluations(run: RunData) -> Chart | None:
    """Return the seconds of evaluations: of the search, the final stage and the random reference."""
    kinds = spent_on(run.evaluations)
    total = sum(spent.seconds for spent in kinds.values())
    bars = [
        Bar(name, spent.seconds, f"{_share_text(spent.seconds, total)}, {counted(spent.num, 'evaluation')}")
        for name, spent in kinds.items()
        if spent.seconds > 0
    ]
    title = "Evaluations, in all evaluator processes"
    return bar_chart("evaluation-time", title, bars, x_label="seconds", header=("evaluations", "time"))


def _facts(run: RunData) -> list[tuple[str, str]]:
    facts = []
    if run.searched:
        seconds = sorted(record.seconds for record in run.searched)
        facts += [
            ("median evaluation", duration_text(seconds[len(seconds) // 2])),
            ("slowest evaluation", duration_text(seconds[-1])),
        ]
    if run.status is not None and len(run.status.sessions) > 1:
        facts.append(("sessions, resumed ones included", str(len(run.status.sessions))))
    return facts


def _share_text(value: float, total: float) -> str:
    return f"{duration_text(value)}, {value / total:.0%}" if total else duration_text(value)


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
            words += " A certificate compares its sampler with measured and predicted scores."
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
