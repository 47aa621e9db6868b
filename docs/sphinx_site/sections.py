"""Sections appended to the pages of objectives, backward policies, tasks, environments and configs, and references."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import yaml

from gflownet.config import config_names, find_config
from gflownet.envs.config import ENVIRONMENTS
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import BACKWARD_NAMES, OBJECTIVES
from gflownet.plugins import ExtensionPoint
from gflownet.policy.config import POLICIES
from sphinx_site.reference import reference_section


def generated_section(docname: str) -> str:
    """Return what is appended to a page, as Markdown; empty for most pages."""
    folder, _, name = docname.rpartition("/")
    if folder == "objectives":
        return _table(objective_facts(name))
    if folder == "backward-policies" and name in BACKWARD_NAMES:
        return _table(backward_policy_facts(name))
    if folder == "tasks" and name in TASKS:
        return _table(task_facts(name))
    if folder == "environments" and name in ENVIRONMENTS:
        return _table(environment_facts(name))
    if folder == "reference":
        return reference_section(name)
    if docname == "configs":
        return configs_section()
    if docname == "policies":
        return _table(
            (f"`{policy}`", f"{row.summary}: {_class(POLICIES, policy)}") for policy, row in POLICIES.built_in.items()
        )
    return ""


def objective_facts(name: str) -> list[tuple[str, str]]:
    """Return the properties that an objective declares, as (property, value)."""
    objective: Any = OBJECTIVES.load(name)
    return [
        ("samples in proportion to the reward where the loss is zero", _yes(objective.samples_reward)),
        ("learns from replayed and other off-policy trajectories", _yes(not objective.is_on_policy)),
        ("scores intermediate states that may stop", _yes(objective.needs_state_rewards)),
        ("learns only from replayed or offline objects", _yes(objective.imitates)),
        ("can train with an [adaptive teacher](../exploration-teacher.md)", _yes(objective.supports_teacher)),
        ("`algo.backward_policy`", _backward_links(objective.backward_policies)),
        ("`algo.symmetry`", _codes(objective.symmetries)),
        ("`algo.regression`", "any" if objective.uses_regression else "only the default"),
        ("class", _class(OBJECTIVES, name)),
    ]


def backward_policy_facts(name: str) -> list[tuple[str, str]]:
    """Return the objectives that accept a backward policy, and those that do not."""
    accepted = [o for o in OBJECTIVES if name in OBJECTIVES.load(o).backward_policies]
    refused = [o for o in OBJECTIVES if o not in accepted]
    return [("accepted by", _objective_links(accepted)), ("refused by", _objective_links(refused) or "none")]


def task_facts(name: str) -> list[tuple[str, str]]:
    """Return environment, config and class of a task."""
    task: Any = TASKS.load(name)
    space = task.environment
    rows = [("environment", f"[`{space}`](../environments/{space}.md)" if space else "any, by `env.name`")]
    configs = [config for config in config_names() if _task_of(config) == name]
    rows.append(("[configs](../configs.md)", _codes(configs) or "none"))
    rows.append(("class", _class(TASKS, name)))
    return rows


def environment_facts(name: str) -> list[tuple[str, str]]:
    """Return the class of an environment, and the configs that use it."""
    configs = [config for config in config_names() if _environment_of(config) == name]
    return [("[configs](../configs.md)", _codes(configs) or "none"), ("class", _class(ENVIRONMENTS, name))]


def configs_section() -> str:
    """Return every file of configs/, as Markdown."""
    texts = {name: find_config(name).read_text(encoding="utf-8").strip() for name in config_names()}
    return "".join(f"\n\n## {name}\n\n```yaml\n{text}\n```" for name, text in texts.items()) + "\n"


def _task_of(config: str) -> str:
    return _read(config).get("task", "digits")


def _environment_of(config: str) -> str:
    task: Any = TASKS.load(_task_of(config))
    return _read(config).get("env", {}).get("name", task.environment or "computation_graph")


def _read(config: str) -> dict[str, Any]:
    return yaml.safe_load(find_config(config).read_text(encoding="utf-8"))


def _class(point: ExtensionPoint, name: str) -> str:
    """Return the home of a built-in class and the first line of its docstring."""
    loaded = point.load(name)
    module, _, class_name = point.homes[name].partition(":")
    return f"`{module}.{class_name}`: {(inspect.getdoc(loaded) or '').partition(chr(10))[0]}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {name} | {value} |" for name, value in ((n, v.replace("|", r"\|")) for n, v in rows)]
    return "\n".join(["", "", "## Facts", "", "| | |", "|---|---|", *lines, ""])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _backward_links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](../backward-policies/{name}.md)" for name in names)


def _objective_links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](../objectives/{name}.md)" for name in names)
