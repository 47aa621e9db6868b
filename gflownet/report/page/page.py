"""Rendering of a run as report.html, and its section of the configuration with the commands of the run."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import PurePath
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from gflownet.config import CONFIG_NAME, OPTIONS
from gflownet.errors import counted
from gflownet.pictures.chart import Table
from gflownet.records.status import RunState
from gflownet.report.page.best import best_section
from gflownet.report.page.curves import curves_of, distribution_section, diversity_section
from gflownet.report.page.drawings import text_of
from gflownet.report.page.effects import effect_section
from gflownet.report.page.overview import Overview, Progress, minute_text, overview_of
from gflownet.report.page.run_data import RunData
from gflownet.report.page.secrets import masked_command
from gflownet.report.page.sections import (
    certificate_section,
    failure_section,
    front_section,
    reference_section,
    time_section,
)
from gflownet.translation.table_columns import TableColumns

TRAIN = ("python", "-m", "gflownet.train")


@dataclass(frozen=True)
class ConfigurationSection:
    """Options, versions and commands."""

    changed: Table | None
    text: str  # the whole config as YAML
    facts: Sequence[tuple[str, str]]
    started_as: str  # empty if unknown
    reproduce: str
    resume: str
    rebuild: str


def configuration_section(run: RunData) -> ConfigurationSection:
    """Return configuration, versions and commands of a run."""
    rows = list(changed_options(run.config))
    folder = str(run.folder)
    sessions = () if run.status is None else run.status.sessions
    return ConfigurationSection(
        changed=Table(("option", "value", "default"), rows) if rows else None,
        text=run.config_text,
        facts=list(_facts(run)),
        started_as=started_as(sessions[0].command) if sessions else "",
        reproduce=reproduce_command(run),
        resume=resume_command(run) if is_resumable(run) else "",
        rebuild=shlex.join(["python", "-m", "gflownet.report", folder]),
    )


def changed_options(config: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield key, value and default of the options that differ from their defaults."""
    for key, value in _leaves(config, ""):
        option = OPTIONS.get(key)
        default = None if option is None else option.default
        if option is None or text_of(value) != text_of(default):
            yield [key, text_of(value), "" if option is None else text_of(default)]


def reproduce_command(run: RunData) -> str:
    """Return the command that starts the run anew in another folder, also for a resumed run."""
    started = [f"{key}=false" for key in ("resume", "overwrite_existing_exp") if run.option(key)]
    return shlex.join([*TRAIN, "--config", f"{run.folder}/{CONFIG_NAME}", f"log_dir={run.folder}_again", *started])


def resume_command(run: RunData, *options: str) -> str:
    """Return the command that continues a run."""
    return shlex.join([*TRAIN, f"log_dir={run.folder}", "resume=true", *options])


def is_resumable(run: RunData) -> bool:
    """Return whether the run has ended before its end."""
    return run.status is None or run.status.state in (RunState.INTERRUPTED, RunState.FAILED, RunState.KILLED)


def started_as(command: Sequence[str]) -> str:
    """Return the command line of a session as it is typed: python -m gflownet.train for gflownet/train.py."""
    if not command:
        return ""
    path = PurePath(command[0])
    start = [path.name]
    if path.suffix == ".py" and "gflownet" in path.parts:
        module = path.parts[len(path.parts) - 1 - path.parts[::-1].index("gflownet") :]
        name = ".".join(module).removesuffix(".py").removesuffix(".__main__")
        start = ["python", "-m", name]
    return masked_command([*start, *command[1:]])


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in OPTIONS:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _facts(run: RunData) -> Iterator[tuple[str, str]]:
    yield "run", run.run_id or "unknown"
    yield "seed", str(run.option("seed"))
    if run.status is None or not run.status.sessions:
        return
    yield "host", run.status.sessions[-1].host
    yield from run.status.sessions[-1].versions.items()


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
