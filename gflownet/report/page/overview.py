"""Overview of a run: what was searched, its state in words, how far it is, and the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import counted
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import OBJECTIVES
from gflownet.pictures.chart import duration_text
from gflownet.plugins import ExtensionPoint
from gflownet.records.status import RunState
from gflownet.report.page.run_data import RunData, mapping_of, time_of
from gflownet.report.page.secrets import masked
from gflownet.report.verdict import spent_words
from gflownet.search.config import GFLOWNET, SEARCH_METHODS

_SAMPLER_UNIT = "step of the sampler"


@dataclass(frozen=True)
class Progress:
    """How much is done of a number of units, such as steps."""

    done: int
    total: int  # 0: unlimited, or unknown
    unit: str

    @property
    def words(self) -> str:
        """Progress as text: step 3 of 20."""
        return f"{self.unit} {self.done:,} of {self.total:,}" if self.total else f"{self.unit} {self.done:,}"


@dataclass(frozen=True)
class Overview:
    """Texts at the top of the page."""

    title: str
    state: str  # a RunState, or unknown
    state_words: str
    progress: Progress
    facts: list[tuple[str, str]]


def overview_of(run: RunData, *, written: datetime) -> Overview:
    """Return the overview of a run at the time of writing."""
    progress = progress_of(run)
    state = "unknown" if run.status is None else run.status.state.value
    return Overview(
        title=f"Search of {str(run.option('task')).rpartition(':')[2]}",
        state=state,
        state_words=_state_words(run, progress),
        progress=progress,
        facts=list(_facts(run, progress, written=written)),
    )


def has_search_method(run: RunData) -> bool:
    """Return whether a search method chooses the candidates, instead of the policy alone."""
    return run.method != GFLOWNET


def progress_of(run: RunData) -> Progress:
    """Return how far the run is: evaluations of a search method, then steps of its sampler; steps of other runs."""
    last = int(run.metrics[-1]["step"]) if run.metrics else 0
    num_steps = int(run.number("num_training_steps") or 0)  # 0: none, or an unknown one
    if not has_search_method(run):
        return Progress(last, num_steps, "step")
    if num_sampler := len(sampler_rows(run)):
        return Progress(num_sampler, int(run.plan.get("num_steps", 0)), _SAMPLER_UNIT)
    return Progress(run.num_evaluated, run.num_planned, "evaluation")


def seconds_used(run: RunData, *, written: datetime) -> float | None:
    """Return the seconds of all sessions; of a running one up to the time of writing; None if unknown."""
    if run.status is None:
        return None
    total = sum(run.status.seconds.values())
    if run.status.state not in (RunState.RUNNING, RunState.KILLED) or not run.status.sessions:
        return total
    session = run.status.sessions[-1]
    signs = [time_of(record.created) for record in run.evaluations if record.created]
    end = written if run.is_running else max(signs, default=time_of(session.started))
    since = (end - time_of(session.started)).total_seconds()
    return total + max(0.0, since - sum(session.seconds.values()))


def sampler_rows(run: RunData) -> Sequence[Mapping[str, Any]]:
    """Return the updates of the sampler that a search method trains at its end: those of its last training."""
    rows = list(run.metrics)
    if rows and "score_mean" in rows[-1]:  # its samples were evaluated
        rows.pop()
    num_before = max((place for place, row in enumerate(rows, start=1) if "score_mean" in row), default=0)
    return [row for row in rows[num_before:] if {"loss", "likelihood_loss"} & row.keys()]


def summary_of(point: ExtensionPoint, name: str) -> str:
    """Return the words for a built-in name, the name itself for another class."""
    return point.built_in[name].summary if name in point.built_in else name


def sentence(text: str) -> str:
    """Return a text with a capital letter, unless it starts with a name of code, and a full stop."""
    first, *_ = text.split(" ")
    start = text[:1] if ":" in first.rstrip(":") or "_" in first else text[:1].upper()
    return f"{start}{text[1:]}".rstrip(".") + "."


def searched_words(run: RunData) -> str:
    """Return task, space and method of a run; a task of the user in the words of its docstring."""
    task, env = str(run.option("task")), str(run.option("env.name"))
    space, about = summary_of(ENVIRONMENTS, env), summary_of(TASKS, task)
    if task not in TASKS:
        about = str(run.plan.get("about") or task)
    if task == "choices" and (score := mapping_of(run.option("task_options")).get("score")):
        about += f", scored by {score}"
    if places := mapping_of(run.option("env.choices.places")):
        space = f"{space}: {', '.join(map(str, places))}"
    words, method = f"{sentence(about)} Space: {space}{_size_words(run, env)}", run.method
    learned, number = summary_of(OBJECTIVES, str(run.option("algo.method"))), counted(run.num_evaluated, "evaluation")
    if not has_search_method(run):
        return f"{words}; {number} by a GFlowNet, which samples in proportion to the reward, trained with {learned}."
    sampler = f"; then a sampler, trained with {learned}" if run.option("search.train_sampler") else ""
    return f"{words}; {number}, chosen by {summary_of(SEARCH_METHODS, method)}{sampler}."


def _size_words(run: RunData, env: str) -> str:
    """Return the limits of a space of networks of operations, as its options name them."""
    options = mapping_of(run.option(f"env.{env}"))
    nodes, kinds, most = (options.get(name) for name in ("max_hidden_nodes", "operations", "max_parameters"))
    kinds = f" of {counted(len(kinds), 'kind')}" if kinds else ""
    return (f", up to {nodes}{kinds}" if nodes else "") + (f", at most {most:,} parameters" if most else "")


def _state_words(run: RunData, progress: Progress) -> str:
    if run.status is None:
        return f"State unknown, {progress.words}"
    match run.status.state:
        case RunState.RUNNING:
            phase = run.status.sessions[-1].phase
            return f"Running: {phase}, {progress.words}"
        case RunState.COMPLETED:
            return "Completed"
        case RunState.INTERRUPTED:
            return f"Interrupted by {run.status.message or 'a signal'} at {progress.words}"
        case RunState.FAILED:
            return f"Failed at {progress.words}: {masked(run.status.message)}"
        case RunState.KILLED:
            return f"Killed at {progress.words}: the process ended without a final state"


def _facts(run: RunData, progress: Progress, *, written: datetime) -> Iterator[tuple[str, str]]:
    yield "time used", duration_text(seconds_used(run, written=written))
    num_failed = sum(record.status is not EvaluationStatus.OK for record in run.searched)
    num, planned = f"{run.num_evaluated:,}", f" of {run.num_planned:,}" if run.num_planned else ""
    num_stopped = sum(bool(row.metrics.get("is_stopped")) for row in run.evaluations if not row.seed)
    ends = [
        f", {count:,} {word}" for count, word in ((num_stopped, "stopped early"), (num_failed, "failed")) if count > 0
    ]
    yield "evaluations of the search", "".join([num, planned, *ends])
    if others := spent_words(run.spent, run.plan):
        yield "trainings on new seeds", others
    if not has_search_method(run) or progress.unit == _SAMPLER_UNIT:
        name = "steps of the sampler" if has_search_method(run) else "training steps"
        yield name, f"{progress.done:,} of {progress.total:,}" if progress.total else f"{progress.done:,}"
    if run.status is not None and run.status.sessions:
        yield "started", minute_text(time_of(run.status.sessions[0].started))
    yield "seed", str(run.option("seed"))


def minute_text(time: datetime) -> str:
    """Return a time in UTC to the minute."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
