"""The classes that a config names, one for each extension point, loaded and checked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gflownet.config import Config, with_options
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import OBJECTIVES, REGRESSIONS
from gflownet.plugins import ExtensionPoint
from gflownet.policy.config import POLICIES

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask
    from gflownet.mdp.context import GraphBuildingEnvContext
    from gflownet.objectives.base import Objective


@dataclass(frozen=True)
class Extensions:
    """The classes of a run."""

    task: type[GFNTask]
    context: type[GraphBuildingEnvContext]
    policy: Any  # a subclass of Policy; its __init__ takes (context, config.model)
    objective: type[Objective]


def choices(config: Config) -> list[tuple[ExtensionPoint, str]]:
    """Return the extension points with the class that the config chooses of each, by name or module:Class."""
    return [
        (TASKS, config.task),
        (ENVIRONMENTS, config.env.name),
        (POLICIES, config.model.name),
        (OBJECTIVES, config.algo.method),
        (REGRESSIONS, config.algo.regression),
    ]


def load_extensions(config: Config) -> tuple[Config, Extensions]:
    """Return the config completed by the options of the chosen classes, and the classes.

    Raises:
        ValueError: a class that cannot be loaded, an option of a class, or a combination that a class refuses.
    """
    classes = {point.key: point.load(name) for point, name in choices(config)}
    schemas = {point.options_key: classes[point.key].Config for point, _ in choices(config) if point.options_key}
    config = with_options(config, schemas)
    for key in ("task", "env.name", "model.name", "algo.method"):
        try:
            classes[key].check_config(config)
        except ValueError as error:
            raise UserError(str(error)) from error
    extensions = Extensions(classes["task"], classes["env.name"], classes["model.name"], classes["algo.method"])
    return config, extensions
