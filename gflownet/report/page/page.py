"""Rendering of a run as report.html, and its section of the configuration with the commands of the run."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import PurePath
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gflownet.config import CONFIG_NAME, OPTIONS
from gflownet.errors import counted
from gflownet.evaluation.racing import MIN_SEEDS, MOST_MEASURED
from gflownet.options import leaves
from gflownet.pictures.chart import Chart, Table, number_text
from gflownet.records.status import RunState
from gflownet.report.page.best import BestSection, best_section
from gflownet.report.page.curves import curves_of
from gflownet.report.page.drawings import text_of
from gflownet.report.page.effects import effect_section
from gflownet.report.page.overview import (
    Overview,
    Progress,
    has_search_method,
    minute_text,
    overview_of,
    sampler_rows,
    searched_words,
    sentence,
)
from gflownet.report.page.run_data import RunData, number_of
from gflownet.report.page.secrets import masked_command
from gflownet.report.page.sections import (
    CertificateSection,
    ReferenceSection,
    certificate_section,
    failure_section,
    front_section,
    reference_section,
    set_section,
    time_section,
)
from gflownet.report.verdict import TOO_FEW, better_method, is_above_random, is_random, sampler_lines, side_words

_MOST_SHARE = 0.75  # of the final stage, in an advice
_MAX_FACTS = 4  # of the best architecture on the first screen
_OPTION_NAME = re.compile(r"[a-z]\w*(\.\w+)+")
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
    for key, value in leaves(config, whole=OPTIONS):
        option = OPTIONS.get(key)
        default = None if option is None else option.default
        if option is None or (value != default and text_of(value) != text_of(default)):
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

    The page of the same run is the same text; while it runs, if `written` at the same time.
    """
    written = written or run.ended or datetime.now(UTC)
    sections = sections_of(run)
    overview = _section("overview", "", "", lambda: overview_of(run, written=written))
    facts = [("overview", f"could not be written: {overview.error}")]
    contents = {section.key: section.content for section in sections if not section.error}
    return render(
        "report.html.j2",
        run=run,
        overview=overview.content or Overview("Search", "unknown", "State unknown", Progress(0, 0, "step"), facts),
        statements=_section("summary", "", "", lambda: [*statements_of(run, contents)]).content or (),
        sections=sections,
        written=minute_text(written),
    )


def render(template: str, **content: Any) -> str:
    """Return the text of a template; everything in `content` is escaped."""
    return _environment().get_template(template).render(**content)


def sections_of(run: RunData) -> Sequence[Section]:
    """Return the sections of the page that have content, in order; one with an error has the error as content."""
    certificate = partial(certificate_section, command=resume_command(run, "certify=true"))
    builders: tuple[tuple[str, str, str, Callable[[RunData], Any]], ...] = (
        ("front", "Pareto front", "Pareto front", front_section),
        ("best", "Best architectures", "Best", best_section),
        ("references", "Against references", "References", reference_section),
        ("set", "A set of networks", "Set", set_section),
        ("curves", "Progress", "Progress", curves_of),
        ("certificate", "Does it sample in proportion to the reward?", "Certificate", certificate),
        ("effects", "What distinguishes good architectures", "What matters", effect_section),
        ("data", "Data that was read", "Data", lambda run: run.summary),
        ("time", "Where the time went", "Time", time_section),
        ("failures", "Failed evaluations", "Failures", failure_section),
        ("configuration", "Configuration and commands", "Configuration", configuration_section),
    )
    sections = [_section(key, title, short, partial(build, run)) for key, title, short, build in builders]
    return [section for section in sections if section.content or section.error]


def _section(key: str, title: str, short: str, build: Callable[[], Any]) -> Section:
    try:
        return Section(key, title, short, build())
    except Exception as error:  # data of another version or a damaged file: the other sections are written
        words = f"{type(error).__name__}: {error}"
        _log.warning("section %s of the report: %s", key, words)
        return Section(key, title, short, None, error=words)


@cache
def _environment() -> Environment:
    loaders = [PackageLoader(f"gflownet.report.{package}") for package in ("page", "compared")]
    environment = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"counted": counted, "breakable": _breakable}
    return environment


def _breakable(text: str) -> str:
    """Return an option's name with places to break a line after its dots, another text unchanged."""
    return Markup(escape(text).replace(".", Markup(".<wbr>"))) if _OPTION_NAME.fullmatch(text) else text


@dataclass(frozen=True)
class Statement:
    """An answer on the first screen."""

    topic: str
    lines: Sequence[str]
    section: str = ""  # key of the section with more; empty: none
    code: str = ""  # command or Python to copy; empty: none
    table: Table | None = None
    chart: Chart | None = None


def statements_of(run: RunData, contents: Mapping[str, Any]) -> Iterator[Statement]:
    """Yield comparisons and results, the state of the sampler, the next step, and what was searched."""
    best, references, front = (contents.get(key) for key in ("best", "references", "front"))
    table = references.table if references is not None and references.table.rows else None
    compared = Statement(
        "Compared",
        [*_compared(run, references)],
        "references" if references else "",
        table=table,
        chart=references.fronts if references else None,
    )
    if table is not None:
        yield compared
    sentences = [] if best is None else _found(run, best)
    yield Statement("Found", sentences or ["Nothing yet: no evaluation has succeeded."], "front" if front else "best")
    if table is None:
        yield compared
    yield Statement("Sampler", [_sampler_words(run, contents.get("certificate"))], "certificate")
    yield _next(run)
    search = run.results.search
    begun = list[str]()
    if search is not None:
        begun += [f"Started {search.start}."] * bool(search.start)
        begun += [f"{search.inherited[:1].upper()}{search.inherited[1:]}."] * bool(search.inherited)
        begun += [f"Taken over {each.line}." for each in search.taken_over]
    yield Statement("Searched", [searched_words(run), *begun])
    if (effects := contents.get("effects")) is not None and effects.sentence:
        yield Statement("What matters", [effects.sentence], "effects")
    if (failures := contents.get("failures")) is not None and failures.num_failed:
        words = f"{failures.num_failed:,} of {counted(failures.num_evaluated, 'evaluation')}, most often: "
        yield Statement("Failures", [words + failures.kinds[0].error], "failures")


def _found(run: RunData, best: BestSection) -> list[str]:
    """Return the score of the best architecture: on new seeds if there are any."""
    first = best.ranked[0]
    (name, score), *others = first.facts
    facts = "".join(f"; {key} {value}" for key, value in others[:_MAX_FACTS])
    if name == f"{run.score_name} in the search":
        return [f"{first.title}: {run.score_name} {score} in the search (higher is better{facts}).", best.source]
    final = run.results.finalists[0].final
    num_seeds = counted(len(final.scores) if final else 0, "training")
    return [
        f"{first.title}: {run.score_name} {score}, mean of {num_seeds} on new seeds (higher is better{facts}). The "
        "score in the search is too high on average: the best were chosen by it."
    ]


def _compared(run: RunData, references: ReferenceSection | None) -> Iterator[str]:
    """Yield the comparison with random architectures and standard methods, or why there is none."""
    if references is not None:
        if references.summary:
            yield f"{sentence(references.summary)}"
        num = {kind: spent.num for kind, spent in run.spent.items()}
        own, random = num.get("search", 0) + num.get("final stage", 0), num.get("random reference", 0)
        yield f"Trainings: {own:,} of the search and its final stage, {random:,} of random architectures."
    else:
        is_open = run.status is not None and run.status.state is not RunState.COMPLETED
        yield (
            "Nothing yet: random architectures and standard methods are trained after the search."
            if is_open
            else "Nothing: this run trained neither random architectures nor a standard method (final.num_random)."
        )


def _sampler_words(run: RunData, certificate: CertificateSection | None) -> str:
    """Return the verdict of the certificate, or the check of the sampler of a search, or the change of the loss."""
    if certificate is not None and certificate.verdicts:
        return certificate.verdicts[0].words
    if (sampler := run.results.sampler) is not None:
        return " ".join(sentence(line.removeprefix("sampler: ")) for line in sampler_lines(sampler))
    rows = sampler_rows(run) if has_search_method(run) else run.metrics
    losses = [value for row in rows if (value := number_of(row.get("loss"))) is not None]
    if not losses:
        return "No sampler has been trained."
    first, last = number_text(losses[0]), number_text(losses[-1])
    return (
        "Whether it has converged is not measured, as there is no certificate. "
        f"Its loss was {first} in the first of {counted(len(losses), 'step')} and {last} in the last."
    )


def advice(run: RunData) -> list[str]:
    """Return the next step after a run in lines, the last one to be pasted; none where that is to load the best."""
    statement = _next(run)
    if statement.section == "best":
        return []
    return [*statement.lines, *(f"  {line}" for line in [statement.code] if line)]


def _next(run: RunData) -> Statement:
    """Return the next step: wait, resume, use a better method, search longer, or load the best architecture."""
    comparisons, finalists = run.results.comparisons, run.results.finalists
    if run.is_running:
        return Statement("Next", ["Wait for the end of the run: the best architectures are measured again there."])
    if is_resumable(run):
        return Statement("Next", ["Continue the run:"], code=resume_command(run))
    if not finalists:
        return Statement("Next", ["See the failures, and change the space or the evaluation."], "failures")
    if (better := better_method(comparisons)) is not None:
        words = f"Use {better.name} ({side_words(better)}), which is clearly better, or widen the space"
        return Statement("Next", [f"{words}:" if better.load else f"{words}."], code=better.load)
    if not is_above_random(comparisons):
        if any(each.verdict == TOO_FEW and is_random(each.reference) for each in comparisons):
            words = "Train the best again on more seeds, as these are too few for a verdict against random search:"
            return Statement("Next", [words], code=resume_command(run, *_more_seeds(run)))
        key = "budget.evaluations" if run.number("budget.evaluations") else "num_training_steps"
        longer = resume_command(run, f"{key}={2 * int(run.number(key) or 0)}")
        return Statement(
            "Next", ["Search longer, as the search is not clearly better than random architectures:"], code=longer
        )
    return Statement("Next", ["Load the best architecture:"], "best", finalists[0].load)


def _more_seeds(run: RunData) -> Iterator[str]:
    """Yield the options with which a resumed run has more final trainings, of itself and of random architectures."""
    yield f"final.share={min(2 * (run.number('final.share') or 0.0), _MOST_SHARE):g}"
    if MOST_MEASURED * (run.number("final.num_seeds") or 0) < MIN_SEEDS:
        yield f"final.num_seeds={MIN_SEEDS}"
    if run.option("final.num_random") is not None:
        yield "final.num_random=null"
