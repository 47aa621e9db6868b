"""Rendering of a comparison as one offline page."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gflownet.pictures.chart import Chart, Table, duration_text, number_text
from gflownet.pictures.line_charts import Line, line_chart
from gflownet.report.compared.comparison import Comparison, state_of
from gflownet.report.compared.curves import CURVES
from gflownet.report.compared.figures import FIGURES, Estimate, FigureKind, best_score, final_score
from gflownet.report.compared.groups import SEED, num_unknown_seeds, repeated_seeds, unknown_options
from gflownet.report.page import PAGE_NAME
from gflownet.report.page.best import Ranked, best_section
from gflownet.report.page.overview import minute_text
from gflownet.report.page.page import render
from gflownet.report.page.run_data import RunData

COMPARISON_NAME = "comparison.html"
# Maximum number of drawings.
MAX_CARDS = 12


@dataclass(frozen=True)
class RunRow:
    """A run in the list of runs."""

    name: str
    href: str  # of its page, relative; empty without one
    group: str
    seed: str
    state: str
    figures: tuple[str, ...]


def comparison_page(comparison: Comparison, *, folder: Path, written: datetime | None = None) -> str:
    """Return the page: one HTML document without links to other files but the pages of the runs.

    Args:
        comparison: of the runs.
        folder: of the page, for relative links.
        written: time of writing; None: now.
    """
    written = datetime.now(UTC) if written is None else written
    return render(
        "comparison.html.j2",
        comparison=comparison,
        num_runs=len(comparison.runs),
        num_groups=len(comparison.groups),
        verdict=verdict_of(comparison),
        figures=figure_table(comparison),
        charts=charts_of(comparison),
        differences=difference_table(comparison),
        architectures=top_architectures(comparison),
        runs=run_rows(comparison, folder=folder),
        run_header=[kind.title for kind in FIGURES],
        warnings=list(_warnings(comparison)),
        written=minute_text(written),
    )


def figure_table(comparison: Comparison) -> Table:
    """Return the final figures, a row per group."""
    rows = []
    for group, figures in zip(comparison.groups, comparison.figures, strict=True):
        cells = [estimate_text(figures[kind.key], unit=kind.unit) for kind in FIGURES]
        rows.append([group.name, str(len(group.runs)), *cells])
    return Table(["group", "runs", *(kind.title for kind in FIGURES)], rows)


def difference_table(comparison: Comparison) -> Table | None:
    """Return the options that differ, a row per option; None without one."""
    if not comparison.differences:
        return None
    rows = [[difference.key, *difference.values] for difference in comparison.differences]
    return Table(["option", *(group.name for group in comparison.groups)], rows)


def charts_of(comparison: Comparison) -> list[Chart]:
    """Return the charts with curves."""
    charts = []
    for kind in CURVES:
        lines = [
            Line(group.name, curve.x, curve.mean, low=curve.low, high=curve.high, colour=index)
            for index, (group, curve) in enumerate(zip(comparison.groups, comparison.curves[kind.key], strict=True))
            if curve is not None
        ]
        charts.append(line_chart(kind.key, kind.title, lines, x_label=kind.x_label, y_label="score"))
    return [chart for chart in charts if chart is not None]


def top_architectures(comparison: Comparison) -> list[Ranked]:
    """Return the best architecture of each run; of more than MAX_CARDS runs, of the best run of each group."""
    runs = comparison.runs
    if len(runs) > MAX_CARDS:
        runs = [(group, max(group.runs, key=_score_of)) for group in comparison.groups][:MAX_CARDS]
    cards = []
    for number, (group, run) in enumerate(runs):
        section = best_section(run)
        if section is not None:
            title = f"{group.name}, seed {run.option(SEED)}"
            best = section.ranked[0]
            load_note = (
                best.load_note if best.load else "The run has no final stage yet: the best of its search so far."
            )
            cards.append(replace(best, key=f"best-{number}", title=title, load_note=load_note))
    return cards


def _score_of(run: RunData) -> float:
    scores = [score for score in (final_score(run), best_score(run)) if math.isfinite(score)]
    return scores[0] if scores else -math.inf


def run_rows(comparison: Comparison, *, folder: Path) -> list[RunRow]:
    """Return the list of runs."""
    rows = []
    for group, run in comparison.runs:
        page = run.folder / PAGE_NAME
        values = [
            duration_text(kind.read(run)) if kind.key == "seconds" else number_text(kind.read(run)) for kind in FIGURES
        ]
        href = Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix() if page.is_file() else ""
        rows.append(RunRow(str(run.folder), href, group.name, str(run.option(SEED)), state_of(run), tuple(values)))
    return rows


def _warnings(comparison: Comparison) -> Iterator[str]:
    for group in comparison.groups:
        for seed in repeated_seeds(group):
            yield f"{group.name}: several runs have seed {seed}; intervals over seeds are too narrow."
        if (num := num_unknown_seeds(group)) > 1:
            yield f"{group.name}: the seeds of {num} runs are unknown; if equal, intervals over seeds are too narrow."
    for _, run in comparison.runs:
        if names := unknown_options(run):
            yield f"{run.folder.name}: a separate group, as the config lacks the value of {', '.join(names)}."
        if (state := state_of(run)) not in ("completed", "unknown"):
            yield f"{run.folder.name} is {state}: its figures are of the evaluations so far."
        for problem in run.problems:
            yield f"{run.folder.name}: {problem}"


# The first of these that two groups have is compared.
_COMPARED = ("test_score", "final_score", "best_score")


def verdict_of(comparison: Comparison) -> str:
    """Return the sentence, empty with less than two comparable groups."""
    for key in _COMPARED:
        kind = next(kind for kind in FIGURES if kind.key == key)
        estimates = [figures[key] for figures in comparison.figures]
        order = sorted(_known(estimates), key=lambda index: -estimates[index].mean)
        if len(order) > 1:
            names = [comparison.groups[index].name for index in order[:2]]
            return _sentence(kind, names, [estimates[index] for index in order[:2]])
    return ""


def estimate_text(estimate: Estimate, *, unit: str = "") -> str:
    """Return a mean with its interval as text."""
    suffix = f" {unit}" if unit else ""
    if math.isnan(estimate.low):
        return number_text(estimate.mean) + (suffix if math.isfinite(estimate.mean) else "")
    low, high = number_text(estimate.low, 3), number_text(estimate.high, 3)
    return f"{number_text(estimate.mean)} [{low}, {high}]{suffix}"


def _known(estimates: Sequence[Estimate]) -> list[int]:
    return [index for index, estimate in enumerate(estimates) if math.isfinite(estimate.mean)]


def _sentence(kind: FigureKind, names: Sequence[str], estimates: Sequence[Estimate]) -> str:
    first, second = estimates
    start = (
        f"Highest {kind.title}: {estimate_text(first)} of {names[0]}; next is {estimate_text(second)} of {names[1]}."
    )
    if math.isnan(first.low) or math.isnan(second.low):
        return f"{start} Without two seeds of each, the order may be chance."
    if first.low > second.high:
        return f"{start} Their 95 % intervals over seeds do not overlap."
    return f"{start} Their 95 % intervals over seeds overlap: the order may be chance."
