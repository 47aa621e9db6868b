"""Rendering of a run as report.html."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from gflownet.errors import counted
from gflownet.report.page.best import best_section
from gflownet.report.page.certificate_section import certificate_section
from gflownet.report.page.configuration import configuration_section, resume_command
from gflownet.report.page.curves import curves_of
from gflownet.report.page.diversity import distribution_section, diversity_section
from gflownet.report.page.effects import effect_section
from gflownet.report.page.overview import Overview, Progress, minute_text, overview_of
from gflownet.report.page.run_data import RunData
from gflownet.report.page.sections import failure_section, front_section, reference_section, time_section
from gflownet.translation.table_columns import TableColumns

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    short: str  # in the list of sections
    content: Any  # for the template sections/KEY.html.j2
    error: str = ""  # why there is no content


def page_of(run: RunData, *, written: datetime | None = None) -> str:
    """Return the page of a run: one HTML document without links to other files.

    Args:
        run: data of the run.
        written: time of writing; None: now. The page of the same run at the same time is the same text.
    """
    written = datetime.now(UTC) if written is None else written
    sections = sections_of(run)
    return render(
        "report.html.j2",
        run=run,
        overview=_overview(run, written=written),
        sentences=_sentences(sections),
        sections=sections,
        written=minute_text(written),
    )


def render(template: str, **content: Any) -> str:
    """Return the text of a template; everything in `content` is escaped."""
    return _environment().get_template(template).render(**content)


def sections_of(run: RunData) -> Sequence[Section]:
    """Return the sections of the page that have content, in order; one with an error has the error as content."""
    certify = resume_command(run, "certify=true")
    builders: tuple[tuple[str, str, str, Callable[[RunData], Any]], ...] = (
        ("best", "Best architectures", "Best", best_section),
        ("references", "Against references", "References", reference_section),
        ("curves", "Progress", "Progress", curves_of),
        (
            *("certificate", "Does it sample in proportion to the reward?", "Certificate"),
            lambda run: certificate_section(run, command=certify),
        ),
        ("effects", "What distinguishes good architectures", "What matters", effect_section),
        ("front", "Pareto front", "Pareto front", front_section),
        ("diversity", "Diversity and novelty", "Diversity", diversity_section),
        ("distribution", "Scores: sampled and evaluated", "Scores", distribution_section),
        ("columns", "Columns of the table", "Columns", _columns),
        ("time", "Where the time went", "Time", time_section),
        ("failures", "Failed evaluations", "Failures", failure_section),
        ("configuration", "Configuration and commands", "Configuration", configuration_section),
    )
    sections = [_section(run, *row) for row in builders]
    return [section for section in sections if section.content or section.error]


def _columns(run: RunData) -> list[tuple[str, str]]:
    """Return the columns of a table with the words about each; empty for other runs, and before the end."""
    columns = run.top[0].get("columns") if run.top else None
    return TableColumns.from_dict(columns).words() if columns else []


def _overview(run: RunData, *, written: datetime) -> Overview:
    """Return the overview; one with an error has the error as facts."""
    try:
        return overview_of(run, written=written)
    except Exception as error:  # as for a section
        words = _logged("overview", error)
        return Overview(
            title="Search",
            searched="",
            state="unknown",
            state_words="State unknown",
            progress=Progress(0, 0, "step"),
            facts=[("overview", f"could not be written: {words}")],
        )


def _sentences(sections: Sequence[Section]) -> Sequence[Sentence]:
    """Return the main sentences, none if they cannot be formed."""
    try:
        return list(summary_of({section.key: section.content for section in sections if not section.error}))
    except Exception as error:  # as for a section
        _logged("summary", error)
        return ()


def _section(run: RunData, key: str, title: str, short: str, build: Callable[[RunData], Any]) -> Section:
    try:
        return Section(key, title, short, build(run))
    except Exception as error:  # data of another version or a damaged file: the other sections are written
        return Section(key, title, short, None, error=_logged(key, error))


def _logged(key: str, error: Exception) -> str:
    """Log the error of a section and return it in words."""
    words = f"{type(error).__name__}: {error}"
    _log.warning("section %s of the report: %s", key, words)
    return words


@cache
def _environment() -> Environment:
    loaders = [PackageLoader(f"gflownet.report.{package}") for package in ("page", "compared")]
    environment = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["counted"] = counted
    return environment


@dataclass(frozen=True)
class Sentence:
    """A sentence about a section."""

    section: str  # key
    topic: str
    words: str


def summary_of(contents: Mapping[str, Any]) -> Iterator[Sentence]:
    """Yield the main sentences of the sections, by key of their content."""
    if (references := contents.get("references")) is not None:
        yield from (Sentence("references", "Result", words) for words in references.sentences)
    if (best := contents.get("best")) is not None:
        first = best.ranked[0]
        name, score = first.facts[0]
        yield Sentence("best", "Best", f"{first.title.lower()}: {score} ({name}).")
    if (time := contents.get("time")) is not None and time.spent:
        yield Sentence("time", "Spent", f"{time.spent}.")
    if (certificate := contents.get("certificate")) is not None and certificate.verdicts:
        yield Sentence("certificate", "Certificate", certificate.verdicts[0].words)
    if (effects := contents.get("effects")) is not None and effects.sentences:
        yield Sentence("effects", "What matters", effects.sentences[0])
    if (failures := contents.get("failures")) is not None and failures.num_failed:
        kind = failures.kinds[0]
        words = f"{failures.num_failed:,} of {counted(failures.num_evaluated, 'evaluation')}, most often: {kind.error}"
        yield Sentence("failures", "Failures", words)
