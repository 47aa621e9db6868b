"""Options of replay, local search, offline data and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gflownet.errors import UserError
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, option


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
    num_batches: int = option(
        0,
        "earlier batches of sampled trajectories added to every update; their number grows from 0 over the run",
        NOT_NEGATIVE,
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

    num: int = option(0, "terminal states, the step's first samples, to search around; 0: off", NOT_NEGATIVE)
    num_iterations: int = option(4, "consecutive changes of each state", AT_LEAST_ONE)


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
    """Raise UserError for sizes of replay and local search that contradict each other."""
    if replay.warmup > replay.capacity:
        raise UserError(f"replay.warmup: expected at most replay.capacity={replay.capacity}, got {replay.warmup}")
    if local_search.num > num_from_policy:
        raise UserError(
            f"local_search.num: expected at most algo.num_from_policy={num_from_policy}, got {local_search.num}"
        )
