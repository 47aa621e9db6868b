"""Everything that a run folder says about its run, read from disk. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gflownet.config import CONFIG_NAME, OPTIONS
from gflownet.errors import UserError, counted
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.files import parse_json, read_entries, read_rows, read_yaml
from gflownet.records.marker import RunMarker, read_marker
from gflownet.records.status import STATUS_NAME, RunState, RunStatus, read_status
from gflownet.records.trust import is_trusted
from gflownet.report.page.features import Description, described
from gflownet.report.page.secrets import masked, masked_options
from gflownet.report.results import RESULTS_NAME, Results, Spent, read_results
from gflownet.report.verdict import spent_on
from gflownet.search.config import AUTO, GFLOWNET

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's is ten times faster


@dataclass(frozen=True)
class RunData:
    """A run, finished or not. Missing files give empty fields."""

    folder: Path
    run_id: str
    config: Mapping[str, Any]  # nested, unresolved: secrets stay ${oc.env:NAME}
    config_text: str  # the same as YAML
    status: RunStatus | None  # None: a run of an earlier version
    metrics: Sequence[Mapping[str, Any]]  # a row per step, in order of steps
    evaluations: Sequence[EvaluationRecord]  # finished rows of this run, oldest first
    top: Sequence[Mapping[str, Any]]  # top_architectures.json, best first; empty before the end
    results: Results  # results.json
    front: Sequence[Mapping[str, Any]]  # pareto_front.json; empty with one objective, or before the end
    certificate: Mapping[str, Any] | None
    summary: Sequence[str] = ()  # data.txt: lines about the data that was read
    problems: Sequence[str] = field(default=())  # missing and damaged files, a line each

    def option(self, key: str) -> Any:
        """Return an option by its full key, its default where the config lacks it."""
        value: Any = self.config
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return OPTIONS[key].default if key in OPTIONS else None
            value = value[name]
        return value

    def number(self, key: str) -> float | None:
        """Return a numeric option, None where its value is unknown, such as ${oc.env:STEPS}."""
        return number_of(self.option(key))

    @property
    def ended(self) -> datetime | None:
        """The end of the last session, None for a run without a known one."""
        if self.status is None or self.status.state in (RunState.RUNNING, RunState.KILLED):
            return None
        session = self.status.sessions[-1]
        return time_of(session.started) + timedelta(seconds=sum(session.seconds.values()))

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan of the run (gflownet.run.plan.RunPlan), empty for a run of an earlier version."""
        return {} if self.status is None else self.status.plan

    @property
    def method(self) -> str:
        """The search method, that of search.method=auto in its place; runs without the option trained on scores."""
        method = str(self.plan.get("method", self.option("search.method")))
        return GFLOWNET if method == AUTO else method

    @property
    def num_planned(self) -> int:
        """The evaluations of the search and of its sampler in the budget, 0 without a limit."""
        budget = int(self.number("budget.evaluations") or 0)
        return int(self.plan.get("num_search", budget)) + int(self.plan.get("num_verified", 0)) if budget else 0

    @property
    def is_running(self) -> bool:
        """Whether a process works on the run."""
        return self.status is not None and self.status.state is RunState.RUNNING

    @cached_property
    def searched(self) -> list[EvaluationRecord]:
        """Evaluations of the search at full length, without new seeds of the final stage."""
        return [record for record in self.evaluations if record.fidelity == 0 and record.seed == 0]

    @cached_property
    def successes(self) -> list[EvaluationRecord]:
        """Successful ones of `searched`."""
        return [record for record in self.searched if record.status is EvaluationStatus.OK]

    @property
    def score_name(self) -> str:
        """The name of the score of an architecture."""
        return self.results.score if self.results.final else str(self.plan.get("score") or "score")

    @property
    def num_evaluated(self) -> int:
        """The evaluations of the search that count to its budget: whole ones, and trainings that were stopped early."""
        spent = self.spent.get("search")
        return 0 if spent is None else spent.num

    @cached_property
    def spent(self) -> Mapping[str, Spent]:
        """The evaluations so far by what they were for; at the end those of the results."""
        final = None if self.is_running else self.results.final
        return (final and final.spent) or spent_on(self.evaluations)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Known limits of evaluation.constraints, by metric."""
        limits = mapping_of(self.option("evaluation.constraints"))
        numbers = {name: number_of(limit) for name, limit in limits.items()}
        return {name: limit for name, limit in numbers.items() if limit is not None}

    @property
    def limit_words(self) -> str:
        """Words after "architectures" that name the limits of `feasible`, empty without limits."""
        return " within evaluation.constraints" if self.limits else ""

    @cached_property
    def feasible(self) -> list[EvaluationRecord]:
        """Those of `successes` within evaluation.constraints; the others have the floor score in the search."""
        return [
            record
            for record in self.successes
            if all(record.metrics.get(name, math.inf) <= limit for name, limit in self.limits.items())
        ]

    @property
    def best_score(self) -> float | None:
        """Best score of the search, None without a feasible evaluation."""
        return max((record.score for record in self.feasible), default=None)

    @cached_property
    def described(self) -> list[Description]:
        """Features and sizes of `feasible`."""
        return [described(parse_json(record.graph)) for record in self.feasible]


def time_of(text: str) -> datetime:
    """Return a time of a file, 1970 for another text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def number_of(value: object) -> float | None:
    """Return a finite number, also one written as text such as 1e-5; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def figure_of(value: object) -> float:
    """Return a finite number like `number_of`, NaN for anything else."""
    number = number_of(value)
    return math.nan if number is None else number


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def read_run(folder: Path) -> RunData:
    """Return the data of the run in a folder, which may be running.

    Raises:
        UserError: no run in the folder.
    """
    problems = list[str]()
    marker: RunMarker | None = None
    try:
        marker = read_marker(folder)
    except UserError as error:
        problems.append(f"{error}; {CONFIG_NAME} is used")
    if marker is None and not (folder / CONFIG_NAME).is_file():
        raise UserError(f"{folder}: expected the log_dir of a run, got a folder without one")
    tree: Mapping[str, Any] = {}
    try:
        tree = read_yaml(folder / CONFIG_NAME) if marker is None else marker.config
    except UserError:
        problems.append(f"{CONFIG_NAME} is damaged: the options are unknown, defaults are shown.")
    run_id = "" if marker is None else marker.run
    is_after_end = (status := read_status(folder)) is not None and status.state is RunState.COMPLETED
    if status is None and (folder / STATUS_NAME).exists():
        problems.append(f"{STATUS_NAME} is damaged: state and times are unknown.")

    def listed(name: str, *, is_needed: bool) -> Sequence[Mapping[str, Any]]:
        try:
            entries, num_damaged = read_entries(folder / name)
        except OSError:
            problems.extend([f"{name} is missing."] * is_needed)
        except (ValueError, RecursionError):
            problems.append(f"{name} is damaged.")
        else:
            if num_damaged:
                problems.append(f"{name}: {num_damaged} damaged {'entry' if num_damaged == 1 else 'entries'} left out.")
            return entries
        return []

    problems += _unknown_limits(tree)
    certificate = _json(folder / "certificate.json", problems)
    return RunData(
        folder=folder,
        run_id=run_id,
        config=masked_options(tree),
        config_text=yaml.dump(masked_options(tree), Dumper=_DUMPER, sort_keys=False, allow_unicode=True),
        status=status,
        metrics=_metric_rows(folder / "metrics.jsonl", problems),
        evaluations=_evaluations(folder, _store_url(folder, tree, problems), run=run_id, problems=problems),
        top=listed("top_architectures.json", is_needed=is_after_end),
        results=_results(folder, problems, is_needed=is_after_end),
        front=listed("pareto_front.json", is_needed=False),
        certificate=certificate if isinstance(certificate, dict) else None,
        summary=path.read_text(errors="replace").splitlines() if (path := folder / "data.txt").is_file() else (),
        problems=[masked(problem) for problem in problems],
    )


def _unknown_limits(tree: Mapping[str, Any]) -> list[str]:
    """Return a line for each limit of evaluation.constraints without a known value, such as ${oc.env:LIMIT}."""
    group = tree.get("evaluation")
    limits = group.get("constraints") if isinstance(group, Mapping) else None
    if isinstance(limits, str):
        return [f"evaluation.constraints is {limits}, whose value is unknown: architectures above are not left out."]
    return [
        f"evaluation.constraints.{name} is {limit}, whose value is unknown: architectures above are not left out."
        for name, limit in (limits.items() if isinstance(limits, Mapping) else ())
        if number_of(limit) is None
    ]


def _store_url(folder: Path, tree: Mapping[str, Any], problems: list[str]) -> str | None:
    """Return evaluation.store_url with interpolations replaced, None if impossible or not trusted."""
    group = tree.get("evaluation")
    text = str((group.get("store_url") if isinstance(group, Mapping) else "") or "")
    if text and not is_trusted(folder):
        problems.append("evaluation.store_url is not read, as another user's run wrote it; --trust connects to it.")
        return None
    if "${" not in text:
        return text
    try:
        return str(cast(Any, OmegaConf.create(dict(tree))).evaluation.store_url)
    except OmegaConfBaseException as error:
        problems.append(f"evaluation.store_url: {str(error).splitlines()[0]}; evaluations are missing.")
        return None


def _metric_rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the complete rows; a killed process may leave half a line."""
    try:
        rows, damaged = read_rows(path)
    except OSError:
        problems.append(f"{path.name} is missing: there are no curves.")
        return []
    if damaged:
        problems.append(f"{path.name}: {counted(len(damaged), 'damaged line')} left out (line {damaged[0]}).")
    return sorted(rows, key=lambda row: row["step"])


def _evaluations(folder: Path, url: str | None, *, run: str, problems: list[str]) -> list[EvaluationRecord]:
    """Return the finished rows of the run; of a run without id, all rows."""
    path = folder / STORE_NAME
    if url is None:
        return []
    if not url and not path.exists():
        problems.append(f"{STORE_NAME} is missing: there are no evaluations.")
        return []
    try:
        with StoreOverview(url or str(path)) as overview:
            return overview.records(run=run or None)
    except (UserError, ValueError, KeyError, TypeError) as error:
        problems.append(f"The evaluations cannot be read: {error}")
        return []


def _results(folder: Path, problems: list[str], *, is_needed: bool) -> Results:
    """Return the results of a run; no parts where they are damaged."""
    if is_needed and not (folder / RESULTS_NAME).exists():
        problems.append(f"{RESULTS_NAME} is missing.")
    try:
        return read_results(folder)
    except UserError as error:
        problems.append(str(error))
        return Results()


def _json(path: Path, problems: list[str]) -> Any:
    try:
        return parse_json(path.read_bytes())
    except OSError:
        pass
    except (ValueError, RecursionError):
        problems.append(f"{path.name} is damaged.")
    return None
