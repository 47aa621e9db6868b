"""Section about time: phases of all sessions, and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.report.page.axes import duration_text
from gflownet.report.page.bar_chart import Bar, bar_chart
from gflownet.report.page.chart import Chart
from gflownet.report.page.run_data import RunData


@dataclass(frozen=True)
class TimeSection:
    """Bars of the phases and of evaluations, and facts."""

    charts: Sequence[Chart]
    facts: Sequence[tuple[str, str]]


def time_section(run: RunData) -> TimeSection | None:
    """Return where the time went, None if nothing is known."""
    charts = [chart for chart in (_phases(run), _evaluations(run)) if chart is not None]
    facts = _facts(run)
    return TimeSection(charts, facts) if charts or facts else None


def _phases(run: RunData) -> Chart | None:
    seconds = {} if run.status is None else run.status.seconds
    total = sum(seconds.values())
    bars = [Bar(name, value, _share_text(value, total)) for name, value in seconds.items() if value > 0]
    return bar_chart("phases", "Phases of the run", bars, x_label="seconds", header=("phase", "time"))


def _evaluations(run: RunData) -> Chart | None:
    """Return the seconds of evaluations: of the search, at fewer epochs, and of new seeds."""
    kinds = {
        "search": [r.seconds for r in run.evaluations if r.seed == 0 and r.fidelity == 0],
        "other lengths of training": [r.seconds for r in run.evaluations if r.seed == 0 and r.fidelity != 0],
        "new seeds": [r.seconds for r in run.evaluations if r.seed != 0],
    }
    total = sum(sum(seconds) for seconds in kinds.values())
    bars = [
        Bar(name, sum(seconds), f"{_share_text(sum(seconds), total)}, {len(seconds):,} evaluations")
        for name, seconds in kinds.items()
        if sum(seconds) > 0
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
