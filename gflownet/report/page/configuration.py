"""Section about the configuration: changed options, versions, and commands that reproduce and resume the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gflownet.config import CONFIG_NAME, OPTIONS
from gflownet.pictures.chart import Table
from gflownet.records.status import RunState
from gflownet.report.page.run_data import RunData
from gflownet.report.page.secrets import masked_command

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
        if option is None or _as_text(value) != _as_text(default):
            yield [key, _as_text(value), "" if option is None else _as_text(default)]


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


def _as_text(value: Any) -> str:
    """Return a value as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
