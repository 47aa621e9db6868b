"""Section about time: phases of all sessions, and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.errors import counted
from gflownet.pictures.bar_charts import Bar, bar_chart
from gflownet.pictures.chart import Chart, duration_text
from gflownet.report.page.run_data import RunData
from gflownet.report.verdict import spent_line, spent_on


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
