"""The classes that a config names, one for each extension point, loaded and checked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gflownet.config import DEFAULT_CONFIG, Config, load_config, with_options
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import OBJECTIVES, REGRESSIONS
from gflownet.plugins import ExtensionPoint
from gflownet.policy.config import POLICIES
from gflownet.search.config import ACQUISITIONS, AUTO, GFLOWNET, SEARCH_METHODS, SURROGATES

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask
    from gflownet.mdp.context import GraphBuildingEnvContext
    from gflownet.objectives.base import Objective
    from gflownet.search.method import SearchMethod
    from gflownet.search.surrogate import Surrogate


@dataclass(frozen=True)
class Extensions:
    """The classes of a run."""

    task: type[GFNTask]
    context: type[GraphBuildingEnvContext]
    policy: Any  # a subclass of Policy; its __init__ takes (context, config.model)
    objective: type[Objective]
    method: type[SearchMethod] | None = None  # None: the training of the policy on scores
    surrogate: type[Surrogate] | None = None  # None: the method uses none


# The method of search.method=auto for scores that depend on a training.
TRAINED_METHOD = "surrogate_gflownet"
_OF_METHOD = (SEARCH_METHODS, SURROGATES, ACQUISITIONS)  # whose options wait for the method
EXTENSION_POINTS = (TASKS, ENVIRONMENTS, POLICIES, OBJECTIVES, REGRESSIONS, *_OF_METHOD)


def choices(config: Config) -> list[tuple[ExtensionPoint, str]]:
    """Return the extension points with the class that the config chooses of each, by name or module:Class.

    The search method is missing where the policy is trained on the scores, and before `auto` is resolved.
    """
    names = (config.task, config.env.name, config.model.name, config.algo.method, config.algo.regression)
    chosen = list(zip(EXTENSION_POINTS, names, strict=False))
    if config.search.method not in (GFLOWNET, AUTO):
        chosen.append((SEARCH_METHODS, config.search.method))
    return chosen


def automatic_method(config: Config, task: GFNTask) -> tuple[str, str]:
    """Return the search method of search.method=auto, and the reason."""
    reason = _reason_for_scores(config, task)
    if reason is not None:
        return GFLOWNET, reason
    unused = f"; num_workers is not used, workers sample for search.method={GFLOWNET}" if config.num_workers else ""
    return TRAINED_METHOD, f"scores depend on a training{unused}"


def _reason_for_scores(config: Config, task: GFNTask) -> str | None:
    """Return why the policy is to be trained on the scores themselves, None where a surrogate is."""
    cond, algo = config.cond, config.algo
    reasons = {
        "scores do not depend on a training": not task.is_noisy,
        "the policy is conditioned on sampled temperatures": cond.temperature.sample_dist != "constant",
        "the policy is conditioned on a focus": cond.focus.use,
        "only it uses local_search.num": config.local_search.num > 0,
        "only it uses asynchronous.updates_per_reward": config.asynchronous.updates_per_reward is not None,
        "only it uses algo.teacher": algo.teacher.share > 0,
        "only it uses algo.qgfn": algo.qgfn.use,
        "only it uses offline.path": bool(config.offline.path),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    try:
        SEARCH_METHODS.load(TRAINED_METHOD).check_config(config)
    except ValueError:
        return f"a surrogate does not work with algo.method={algo.method}"
    return None


def load_extensions(config: Config) -> tuple[Config, Extensions]:
    """Return the config completed by the options of the chosen classes, and the classes.

    Raises:
        ValueError: a class that cannot be loaded, an option of a class, or a combination that a class refuses.
    """
    classes = {point.key: point.load(name) for point, name in choices(config)}
    method = classes.get(SEARCH_METHODS.key)
    if method is not None and method.uses_surrogate:
        classes[SURROGATES.key] = SURROGATES.load(config.search.surrogate.name)
        classes[ACQUISITIONS.key] = ACQUISITIONS.load(config.search.acquisition.name)
    unresolved = _OF_METHOD if config.search.method == AUTO else ()
    points = [point for point in EXTENSION_POINTS if point.options_key and point not in unresolved]
    schemas = {point.options_key: getattr(classes.get(point.key), "Config", None) for point in points}
    config = with_options(config, schemas)
    for loaded in classes.values():
        try:
            getattr(loaded, "check_config", _unchecked)(config)
        except ValueError as error:
            raise UserError(str(error)) from error
    extensions = Extensions(
        *(classes[key] for key in ("task", "env.name", "model.name", "algo.method")),
        method=method,
        surrogate=classes.get(SURROGATES.key),
    )
    return config, extensions


def _unchecked(config: Config) -> None:
    """Check nothing: classes that restrict no other options."""


def option_schemas(config: Config) -> dict[str, type | None]:
    """Return the dataclass of each group of options that belongs to a chosen class other than those of DEFAULT_CONFIG.

    Raises:
        ValueError: a class that cannot be loaded.
    """
    defaults = dict(choices(load_config(DEFAULT_CONFIG)))
    names = {point: name for point, name in choices(config) if point.options_key and name != defaults[point]}
    return {point.options_key: point.load(name).Config for point, name in names.items()}
