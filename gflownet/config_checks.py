"""Whether the values of a config make sense, one check of everything before anything is built or torch is imported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from gflownet.config import OPTIONS, Config, resolved
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.config import check_conditionals, check_evaluation
from gflownet.evaluation.tasks import check_task_name
from gflownet.graphs.vocabulary import ACTIVATIONS, AGGREGATIONS
from gflownet.objectives.config import OBJECTIVES, TAUGHT, num_taught
from gflownet.plugins import check_name
from gflownet.policy.config import POLICIES

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def validate(config: Config) -> None:
    """Raise for the first value that makes no sense, in one line with its full key.

    Raises:
        ValueError: what was expected and what was got.
    """
    for known in OPTIONS.values():
        known.check(resolved(config, known))
    check_task_name(config.task)
    check_name("algo.method", config.algo.method, OBJECTIVES)
    check_name("model.name", config.model.name, POLICIES)
    check_name("env.name", config.env.name, ENVIRONMENTS)
    if config.env.name in ENVIRONMENTS:
        _check_vocabulary(config)
    check_evaluation(config.evaluation)
    check_conditionals(config.cond, num_objectives=len(config.evaluation.objectives))
    _check_teacher(config)
    _check_objective(config)
    _check_combinations(config)


def _check_vocabulary(config: Config) -> None:
    _check_names("env.activations", config.env.activations, ACTIVATIONS)
    _check_names("env.aggregations", config.env.aggregations, AGGREGATIONS)
    _check_names("env.output_activation", [config.env.output_activation], ACTIVATIONS)
    _check_names("env.output_aggregation", [config.env.output_aggregation], AGGREGATIONS)


def _check_names(key: str, names: Collection[str], known: Iterable[str]) -> None:
    known = list(known)
    if not names:
        raise UserError(f"{key}: expected at least one of {', '.join(known)}, got []")
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UserError(f"{key}: expected one of {', '.join(known)}, got {name!r}; did you mean {nearest}?")


def _check_teacher(config: Config) -> None:
    algo, share = config.algo, config.algo.teacher.share
    if share and algo.method not in TAUGHT:
        raise UserError(f"algo.teacher.share: expected 0 but with one of {', '.join(TAUGHT)}, got {algo.method}")
    if share and not 0 < num_taught(algo) < algo.num_from_policy:
        raise UserError(
            "algo.teacher.share: expected a trajectory for the teacher and one for the policy with "
            f"algo.num_from_policy={algo.num_from_policy}, got {share}"
        )


_BALANCE_NOTHING = ("order_preserving", "max_likelihood", "a2c", "ppo")
_OWN_SAMPLES_ALONE = ("a2c", "ppo")


def _check_objective(config: Config) -> None:
    """Raise for an option that the objective or the backward policy would pass over in silence."""
    algo, replay = config.algo, config.replay
    beside = f"with algo.method={algo.method}"
    if algo.method in _BALANCE_NOTHING and algo.regression != "squared":
        raise UserError(
            f"algo.regression: expected squared {beside}, which penalises no balance, got {algo.regression}"
        )
    if algo.method in _OWN_SAMPLES_ALONE:
        _check_own_samples(config, beside)
    if algo.method == "max_likelihood":
        _check_imitation(config, beside)
    if algo.backward_policy == "learned" and algo.method in ("relative_tb", "max_likelihood"):
        raise UserError(f"algo.backward_policy: expected another {beside}, which teaches none, got learned")
    remembers = (replay.use and (not replay.resample or replay.num_batches > 0)) or algo.teacher.share > 0
    if algo.backward_policy == "pessimistic" and not remembers:
        raise UserError(
            "replay.resample: expected false, and replay.use=true, with algo.backward_policy=pessimistic, which else "
            "learns what tlm does, got "
            f"replay.resample={str(replay.resample).lower()} and replay.use={str(replay.use).lower()}"
        )


def _check_own_samples(config: Config, beside: str) -> None:
    """Raise for symmetries, and for what makes samples that are not the policy's own."""
    algo = config.algo
    if algo.symmetry in ("actions", "flows"):
        raise UserError(f"algo.symmetry: expected none {beside}, which knows no symmetries, got {algo.symmetry}")
    for key, value, expected in (
        ("algo.sampling_temperature", algo.sampling_temperature, 1),
        ("algo.sampling_tau", algo.sampling_tau, 0),
        ("algo.num_updates", algo.num_updates, 1),
        ("replay.num_updates", config.replay.num_updates, 0),
        ("replay.num_batches", config.replay.num_batches, 0),
        ("offline.path", config.offline.path, ""),
        ("local_search.num", config.local_search.num, 0),
    ):
        if value != expected:
            raise UserError(
                f"{key}: expected {expected!r} {beside}, which learns from its own samples alone, got {value!r}"
            )


def _check_imitation(config: Config, beside: str) -> None:
    """Raise where an objective that imitates given graphs is given none, or all that was tried."""
    replay, offline = config.replay, config.offline
    for key, value in (("local_search.num", config.local_search.num), ("replay.num_batches", replay.num_batches)):
        if value:
            raise UserError(f"{key}: expected 0 {beside}, which would imitate all that was tried, got {value}")
    if not (replay.use and replay.num_from_replay) and not (offline.path and offline.num):
        raise UserError(
            f"replay.use: expected true, or offline.path, {beside}, which learns from replayed or given graphs alone, "
            f"got replay.use={str(replay.use).lower()} with replay.num_from_replay={replay.num_from_replay}, and "
            f"offline.path={offline.path!r} with offline.num={offline.num}"
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
