"""Checks of a config without torch, and the classes that it names: one for each extension point, loaded together."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gflownet.config import (
    DEFAULT_CONFIG,
    OPTIONS,
    Config,
    check_values,
    load_config,
    resolved,
    to_mapping,
    with_options,
)
from gflownet.envs.config import ENVIRONMENTS, check_env
from gflownet.errors import UserError
from gflownet.evaluation.config import check_conditionals, check_evaluation, check_store_url
from gflownet.evaluation.executors.machine import check_device
from gflownet.evaluation.tasks import TASKS
from gflownet.learning.config import check_data
from gflownet.objectives.config import OBJECTIVES, REGRESSIONS, check_algo
from gflownet.options import leaves
from gflownet.plugins import ExtensionPoint, check_name
from gflownet.policy.config import POLICIES, check_model
from gflownet.records.marker import check_folder_options, check_run_folder
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS, SURROGATES

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask
    from gflownet.mdp.context import GraphBuildingEnvContext
    from gflownet.objectives.base import Objective
    from gflownet.search.method import SearchMethod


@dataclass(frozen=True)
class Extensions:
    """The classes of a run."""

    task: type[GFNTask]
    context: type[GraphBuildingEnvContext]
    policy: Any  # a subclass of Policy; its __init__ takes (context, config.model)
    objective: type[Objective]
    method: type[SearchMethod]
    surrogate: Any  # a subclass of Surrogate; None where the policy is trained on scores


_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
# Options that name a file. A task of a user may have others of these names.
_FILES = ("offline.path", "env.catalogue.graphs")
_TASK_FILES = ("task_options.table", "task_options.text", "task_options.data", "task_options.data_test")
_log = logging.getLogger(__name__)
# The methods of search.method=auto for scores that depend on a training, and with the checks of its sampler.
_TRAINED_METHOD, _SAMPLING_METHOD = "surrogate", "surrogate_gflownet"
_OF_METHOD = (SEARCH_METHODS, SURROGATES)  # whose options wait for the method
EXTENSION_POINTS = (TASKS, ENVIRONMENTS, POLICIES, OBJECTIVES, REGRESSIONS, *_OF_METHOD)


def validate(config: Config) -> None:
    """Check all values that do not depend on the chosen classes, see `load_extensions` for the others.

    Raises:
        ValueError: the first invalid value, with its full key.
    """
    check_values(config)
    check_name(SEARCH_METHODS.key, config.search.method, {AUTO: "", **SEARCH_METHODS.homes})
    for point, name in choices(config):
        point.check_name(name)
        for offer in point.installed.get(name, ()) if name in point else ():
            message = "%s=%s: the built-in class is used; %s is that of the package %s"
            _log.warning(message, point.key, name, offer.home, offer.package)
    check_env(config.env)
    check_model(config.model)
    check_data(config.replay, config.local_search, num_from_policy=config.algo.num_from_policy)
    check_evaluation(config.evaluation)
    check_store_url(to_mapping(cast(Any, config.evaluation))["store_url"])
    check_conditionals(config.cond, num_objectives=len(config.evaluation.objectives))
    check_algo(config.algo)
    replay = config.replay
    remembers = (replay.use and (not replay.resample or replay.num_batches > 0)) or config.algo.teacher.share > 0
    if config.algo.backward_policy == "pessimistic" and not remembers:
        raise UserError(
            "replay.resample: expected false, and replay.use=true, with algo.backward_policy=pessimistic, which is "
            "otherwise the same as tlm, got "
            f"replay.resample={str(replay.resample).lower()} and replay.use={str(replay.use).lower()}"
        )
    check_folder_options(config.log_dir, resume=config.resume, overwrite=config.overwrite_existing_exp)
    if not _DEVICE.fullmatch(config.device):
        raise UserError(f"device: expected cpu, cuda or cuda:N, got {config.device!r}")
    _check_main_process_only(config)
    if config.tensorboard.use and find_spec("tensorboard") is None:
        raise UserError(
            "tensorboard.use: expected tensorboard to be installed, got true without it; "
            "pip install 'gflownet[tensorboard]'"
        )


def _check_main_process_only(config: Config) -> None:
    """Refuse options of the training on scores where something else proposes or trains."""
    if config.search.method not in (GFLOWNET, AUTO):
        option, end = f"search.method={config.search.method}", f"; only search.method={GFLOWNET} uses it"
    elif config.asynchronous.max_in_flight:
        option, end = "asynchronous.max_in_flight", ""
    else:
        return
    for key, value in (("num_workers", config.num_workers), ("local_search.num", config.local_search.num)):
        if value:
            raise UserError(f"{key}: expected 0 with {option}, got {value}{end}")
    if config.asynchronous.max_in_flight and not config.replay.resample:
        raise UserError(
            "replay.resample: expected true with asynchronous.max_in_flight, whose trajectories are sampled backwards, "
            "got false"
        )


# Options of the training of a policy on scores, which a search method does without.
_OF_SCORES = ("num_training_steps", "algo.num_from_policy", "algo.train_random_action_prob")
_OF_SCORES += ("algo.sampling_temperature", "algo.sampling_tau", "validate_every")
_GROUPS_OF_SCORES = ("replay.", "offline.", "local_search.")
# Options of the optimiser that the training of a sampler sets itself (Builder.build_sampler_learners).
SAMPLER_OPTIMISER = {"schedule": "linear", "warmup": 0, "learning_rate": math.nan}


def unused_line(config: Config) -> str:
    """Return the chosen options that a search method does not use, in a line; empty for none."""
    needed = () if config.budget.evaluations else _OF_SCORES[:2]  # they are the number of evaluations
    unused = {*_OF_SCORES, *(f"opt.{name}" for name in SAMPLER_OPTIMISER)}.difference(needed)
    keys = [
        option.key
        for option in OPTIONS.values()
        if option.key in unused or option.key.startswith(_GROUPS_OF_SCORES)
        if resolved(config, option) != option.default
    ]
    if config.search.method in (GFLOWNET, AUTO) or not keys:
        return ""
    return f"not used with search.method={config.search.method}: {', '.join(keys)}"


def check_start(config: Config) -> None:
    """Check what a run needs.

    Raises:
        UserError: the run folder is in use, cannot be written or holds another run, or a file or the device is missing.
    """
    check_resources(config)
    check_run_folder(Path(config.log_dir), resume=config.resume, overwrite=config.overwrite_existing_exp)


def check_resources(config: Config) -> None:
    """Raise UserError for a file or a device that is missing."""
    check_device(config.device)
    values = dict(leaves(to_mapping(config)))
    for key in (*_FILES, *(_TASK_FILES if config.task in TASKS else ())):
        value = str(values.get(key) or "")
        is_path = key != "task_options.data" or (bool(Path(value).suffix) and ":" not in value)
        if value and is_path and not Path(value).exists():
            raise UserError(f"{key}: no such file: {value}")


def choices(config: Config) -> list[tuple[ExtensionPoint, str]]:
    """Return the extension points with the class that the config chooses of each, by name or module:Class.

    The search method is missing before `auto` is resolved.
    """
    names = (config.task, config.env.name, config.model.name, config.algo.method, config.algo.regression)
    chosen = list(zip(EXTENSION_POINTS, names, strict=False))
    if config.search.method != AUTO:
        chosen.append((SEARCH_METHODS, config.search.method))
    return chosen


def automatic_method(config: Config, task: GFNTask) -> tuple[str, str]:
    """Return the search method of search.method=auto, and the reason."""
    reason = _reason_for_scores(config, task)
    if reason is not None:
        return GFLOWNET, reason
    unused = f"; num_workers is not used, workers sample for search.method={GFLOWNET}" if config.num_workers else ""
    return _TRAINED_METHOD, f"scores depend on a training{unused}"


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
        SEARCH_METHODS.load(_SAMPLING_METHOD).check_config(config)
    except ValueError:
        return f"a surrogate does not work with algo.method={algo.method}"
    return None


def load_extensions(config: Config) -> tuple[Config, Extensions]:
    """Return the config completed by the options of the chosen classes, and the classes.

    Raises:
        ValueError: a class that cannot be loaded, an option of a class, or a combination that a class refuses.
    """
    classes = {point.key: point.load(name) for point, name in choices(config)}
    method: Any = classes.get(SEARCH_METHODS.key)  # none before auto is resolved
    if method is not None and not method.trains_policy:  # the search ends with a sampler, which learns from predictions
        classes[SURROGATES.key] = SURROGATES.load(config.search.surrogate.name)
    unresolved = _OF_METHOD if config.search.method == AUTO else ()
    points = [point for point in EXTENSION_POINTS if point.options_key and point not in unresolved]
    schemas = {point.options_key: getattr(classes.get(point.key), "Config", None) for point in points}
    config = with_options(config, schemas)
    for loaded in classes.values():
        try:
            getattr(loaded, "check_config", lambda config: None)(config)
        except ValueError as error:
            raise UserError(str(error)) from error
    extensions = Extensions(
        *(classes[key] for key in ("task", "env.name", "model.name", "algo.method")),
        method=cast(Any, method),
        surrogate=classes.get(SURROGATES.key),
    )
    return config, extensions


def option_schemas(config: Config) -> dict[str, type | None]:
    """Return the dataclass of each group of options that belongs to a chosen class other than those of DEFAULT_CONFIG.

    Raises:
        ValueError: a class that cannot be loaded.
    """
    defaults = dict(choices(load_config(DEFAULT_CONFIG)))
    names = {point: name for point, name in choices(config) if point.options_key and name != defaults[point]}
    return {point.options_key: point.load(name).Config for point, name in names.items()}
