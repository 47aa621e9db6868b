"""Options of exploration, of what is learned from again, and of the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, SHARE, Interval, option


@dataclass
class ReplayConfig:
    """Terminal states seen before, trained on again."""

    use: bool = option(True, "train on replayed terminal states beside new ones")
    capacity: int = option(2_000, "terminal states kept", AT_LEAST_ONE)
    evict: Literal["oldest", "worst"] = option(
        "oldest", "which terminal state leaves a full buffer: the oldest or the worst"
    )
    warmup: int = option(32, "terminal states the buffer holds before it is sampled from", NOT_NEGATIVE)
    num_from_replay: int = option(32, "terminal states replayed per training step", NOT_NEGATIVE)
    num_updates: int = option(
        0, "more optimiser steps per training step, each on so many replayed states again", NOT_NEGATIVE
    )
    num_batches: int = option(0, "earlier batches of sampled trajectories that every update sees as well", NOT_NEGATIVE)
    batch_growth: Literal["linear", "constant"] = option(
        "linear", "replay.num_batches grows linearly from 0 at the first training step, or is constant"
    )
    batch_capacity: int = option(1_000, "earlier batches kept for replay.num_batches", AT_LEAST_ONE)
    priority: Literal["mixed", "rank", "uniform"] = option(
        "mixed",
        "which states are replayed: mixed (replay.top_share of them from the best tenth), rank (the higher "
        "a state ranks the more often) or uniform",
    )
    top_share: float = option(0.5, "mixed: share of the replayed states drawn from the best tenth", SHARE)
    resample: bool = option(
        True, "replay a state along a fresh trajectory drawn backwards; false: along the one that found it"
    )


@dataclass
class LocalSearchConfig:
    """Terminal states changed a little: some steps undone through P_B, others taken by the policy."""

    num: int = option(0, "terminal states per training step that are searched around; 0: none", NOT_NEGATIVE)
    start: Literal["fresh", "replay"] = option(
        "fresh", "where a search begins: at the step's first samples, or at replayed states"
    )
    num_iterations: int = option(4, "changes tried one after another at each of them", AT_LEAST_ONE)
    share_back: float = option(
        0.5, "largest share of its construction steps that one change undoes", Interval(0, 1, low_open=True)
    )
    accept: Literal["better", "metropolis"] = option(
        "better", "where the next change begins: at the better state, or as a Metropolis-Hastings filter says"
    )


@dataclass
class OfflineConfig:
    """Graphs whose scores are known from elsewhere."""

    path: str = option("", "file of graphs with scores, JSON lines or a JSON list; empty: none")
    num: int = option(16, "of them per training step, along trajectories drawn backwards", NOT_NEGATIVE)


@dataclass
class WorkersConfig:
    """How worker processes are started, and what becomes of those that die or hang."""

    backend: Literal["processes", "dataloader"] = option(
        "processes", "processes (dead workers are replaced) or dataloader (torch's; a dead worker ends the run)"
    )
    start_method: Literal["auto", "fork", "forkserver", "spawn"] = option(
        "auto", "auto (forkserver), fork (refused where it is not safe), forkserver or spawn"
    )
    deadline: float | None = option(
        None, "seconds a worker may take for one step's rollout before it is replaced; null: no limit", POSITIVE
    )
    max_restarts: int = option(3, "dead and hanging workers that a run replaces before it gives up", NOT_NEGATIVE)
