"""Options of replay, local search, offline data and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gflownet.errors import UserError
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Interval, option


@dataclass
class ReplayConfig:
    """Replay of terminal states that were sampled before."""

    use: bool = option(True, "train on replayed terminal states in addition to new ones")
    capacity: int = option(2_000, "maximum number of terminal states in the buffer", AT_LEAST_ONE)
    evict: Literal["oldest", "worst"] = option(
        "oldest", "terminal state that a full buffer drops: the oldest or the one with the lowest score"
    )
    warmup: int = option(32, "number of terminal states in the buffer before it is sampled", NOT_NEGATIVE)
    num_from_replay: int = option(32, "terminal states replayed per training step", NOT_NEGATIVE)
    num_updates: int = option(
        0, "extra optimiser steps per training step, each on replay.num_from_replay replayed states", NOT_NEGATIVE
    )
    num_batches: int = option(0, "earlier batches of sampled trajectories added to every update", NOT_NEGATIVE)
    batch_growth: Literal["linear", "constant"] = option(
        "linear", "replay.num_batches grows linearly from 0 at the first training step, or is constant"
    )
    priority: Literal["mixed", "rank", "uniform"] = option(
        "mixed",
        "probability of a state to be replayed: mixed (half of the draws from the best tenth), "
        "rank (decreasing with the rank of its score) or uniform",
    )
    resample: bool = option(
        True, "replay a state along a new trajectory sampled backwards; false: along the original trajectory"
    )


@dataclass
class LocalSearchConfig:
    """Local search: undo some steps of a terminal state through P_B, and rebuild with the policy."""

    num: int = option(0, "terminal states per training step to search around; 0: off", NOT_NEGATIVE)
    start: Literal["fresh", "replay"] = option(
        "fresh", "start of a search: the step's first samples, or replayed states"
    )
    num_iterations: int = option(4, "consecutive changes of each state", AT_LEAST_ONE)
    share_back: float = option(
        0.5, "largest share of the construction steps that one change undoes", Interval(0, 1, low_open=True)
    )
    accept: Literal["better", "metropolis"] = option(
        "better", "accept a changed state if its reward is higher, or with the Metropolis-Hastings probability"
    )


@dataclass
class OfflineConfig:
    """Graphs with known scores from a file."""

    path: str = option("", "file of graphs with scores, JSON lines or a JSON list; empty: none")
    num: int = option(16, "offline graphs per training step, along trajectories sampled backwards", NOT_NEGATIVE)


@dataclass
class WorkersConfig:
    """Deadline of worker processes."""

    deadline: float | None = option(
        None, "maximum seconds for one rollout before its worker is killed and the run ends; null: no limit", POSITIVE
    )


def check_data(replay: ReplayConfig, local_search: LocalSearchConfig, *, num_from_policy: int) -> None:
    """Raise UserError for sizes and sources of replay and local search that contradict each other."""
    if replay.warmup > replay.capacity:
        raise UserError(f"replay.warmup: expected at most replay.capacity={replay.capacity}, got {replay.warmup}")
    if local_search.num and local_search.start == "replay" and not replay.use:
        raise UserError("local_search.start: expected fresh with replay.use=false, got replay")
    if local_search.start == "fresh" and local_search.num > num_from_policy:
        raise UserError(
            f"local_search.num: expected at most algo.num_from_policy={num_from_policy} with local_search.start=fresh, "
            f"got {local_search.num}"
        )
