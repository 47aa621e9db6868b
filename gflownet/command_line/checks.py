"""Checks of a config before anything is built and before torch is imported."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from importlib.util import find_spec

from gflownet.command_line.extensions import choices
from gflownet.config import OPTIONS, Config, resolved, to_mapping
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.config import check_conditionals, check_evaluation, check_store_url
from gflownet.objectives.config import num_taught
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS
from gflownet.plugins import ExtensionPoint, check_name
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS

_log = logging.getLogger(__name__)
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def validate(config: Config) -> None:
    """Check all values that do not depend on the chosen classes, see `load_extensions` for the others.

    Raises:
        ValueError: the first invalid value, with its full key.
    """
    for option in OPTIONS.values():
        option.check(resolved(config, option))
    check_name(SEARCH_METHODS.key, config.search.method, {AUTO: "", GFLOWNET: "", **SEARCH_METHODS.homes})
    for point, name in choices(config):
        point.check_name(name)
        _warn_of_hidden_class(point, name)
    if config.env.name in ENVIRONMENTS:
        _check_vocabulary(config)
    check_evaluation(config.evaluation)
    check_store_url(to_mapping(config)["evaluation"]["store_url"])
    check_conditionals(config.cond, num_objectives=len(config.evaluation.objectives))
    _check_teacher(config)
    _check_backward_policy(config)
    _check_combinations(config)
    _check_asynchronous(config)
    _check_search(config)
    if config.tensorboard.use and find_spec("tensorboard") is None:
        raise UserError(
            "tensorboard.use: expected tensorboard to be installed, got true without it; "
            "pip install 'gflownet[tensorboard]'"
        )
    if config.evaluation.executor == "simulated" and config.num_workers:
        raise UserError(f"num_workers: expected 0 with evaluation.executor=simulated, got {config.num_workers}")


def _warn_of_hidden_class(point: ExtensionPoint, name: str) -> None:
    """Log that a built-in class is used although an installed package has an entry point with its name."""
    for offer in point.installed.get(name, ()) if name in point else ():
        _log.warning(
            "%s=%s: the built-in class is used; %s is that of the package %s",
            point.key,
            name,
            offer.home,
            offer.package,
        )


def _check_asynchronous(config: Config) -> None:
    if not config.asynchronous.max_in_flight:
        return
    for key, value in (("num_workers", config.num_workers), ("local_search.num", config.local_search.num)):
        if value:
            raise UserError(f"{key}: expected 0 with asynchronous.max_in_flight, got {value}")
    if not config.replay.resample:
        raise UserError(
            "replay.resample: expected true with asynchronous.max_in_flight, whose trajectories are sampled backwards, "
            "got false"
        )


def _check_search(config: Config) -> None:
    """Refuse options of the training on scores, which a search method does without."""
    if config.search.method in (GFLOWNET, AUTO):
        return
    for key, value in (("num_workers", config.num_workers), ("local_search.num", config.local_search.num)):
        if value:
            raise UserError(
                f"{key}: expected 0 with search.method={config.search.method}, got {value}; only "
                f"search.method={GFLOWNET} uses it"
            )


def _check_vocabulary(config: Config) -> None:
    _check_names("env.activations", config.env.activations, ACTIVATIONS)
    _check_names("env.aggregations", config.env.aggregations, AGGREGATIONS)
    _check_names("env.output_activation", [config.env.output_activation], ACTIVATIONS)
    _check_names("env.output_aggregation", [config.env.output_aggregation], AGGREGATIONS)


def _check_names(key: str, names: Collection[str], point: ExtensionPoint) -> None:
    if not names:
        raise UserError(f"{key}: expected at least one of {', '.join(point)}, got []")
    for name in names:
        check_name(key, name, point.homes)


def _check_teacher(config: Config) -> None:
    algo, share = config.algo, config.algo.teacher.share
    if share and not 0 < num_taught(algo) < algo.num_from_policy:
        raise UserError(
            "algo.teacher.share: expected at least one trajectory for the teacher and one for the policy with "
            f"algo.num_from_policy={algo.num_from_policy}, got {share}"
        )


def _check_backward_policy(config: Config) -> None:
    replay = config.replay
    remembers = (replay.use and (not replay.resample or replay.num_batches > 0)) or config.algo.teacher.share > 0
    if config.algo.backward_policy == "pessimistic" and not remembers:
        raise UserError(
            "replay.resample: expected false, and replay.use=true, with algo.backward_policy=pessimistic, which is "
            "otherwise the same as tlm, got "
            f"replay.resample={str(replay.resample).lower()} and replay.use={str(replay.use).lower()}"
        )


def _check_combinations(config: Config) -> None:
    if not config.log_dir.strip():
        raise UserError(f"log_dir: expected the path of a folder, got {config.log_dir!r}")
    if not _DEVICE.fullmatch(config.device):
        raise UserError(f"device: expected cpu, cuda or cuda:N, got {config.device!r}")
    if config.resume and config.overwrite_existing_exp:
        got = str(config.resume).lower()
        raise UserError(f"resume: expected false with overwrite_existing_exp=true, got {got}")
    if config.model.num_emb % config.model.num_heads:
        raise UserError(
            f"model.num_emb: expected a multiple of model.num_heads={config.model.num_heads}, "
            f"got {config.model.num_emb}"
        )
    if config.replay.warmup > config.replay.capacity:
        raise UserError(
            f"replay.warmup: expected at most replay.capacity={config.replay.capacity}, got {config.replay.warmup}"
        )
    if config.local_search.num and config.local_search.start == "replay" and not config.replay.use:
        raise UserError("local_search.start: expected fresh with replay.use=false, got replay")
    if config.local_search.start == "fresh" and config.local_search.num > config.algo.num_from_policy:
        raise UserError(
            f"local_search.num: expected at most algo.num_from_policy={config.algo.num_from_policy} with "
            f"local_search.start=fresh, got {config.local_search.num}"
        )
