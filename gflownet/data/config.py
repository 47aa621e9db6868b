"""Options of exploration, of what is learned from again, and of the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ReplayConfig:
    """Terminal states seen before, trained on again."""

    use: bool = field(default=True, metadata={"help": "train on replayed terminal states beside new ones"})
    capacity: int = field(default=2_000, metadata={"help": "terminal states kept"})
    evict: Literal["oldest", "worst"] = field(
        default="oldest", metadata={"help": "which terminal state leaves a full buffer: the oldest or the worst"}
    )
    warmup: int = field(default=32, metadata={"help": "terminal states the buffer holds before it is sampled from"})
    num_from_replay: int = field(default=32, metadata={"help": "terminal states replayed per training step"})
    num_updates: int = field(
        default=0, metadata={"help": "more optimiser steps per training step, each on so many replayed states again"}
    )
    num_batches: int = field(
        default=0, metadata={"help": "earlier batches of sampled trajectories that every update sees as well"}
    )
    batch_growth: Literal["linear", "constant"] = field(
        default="linear",
        metadata={"help": "replay.num_batches grows linearly from 0 at the first training step, or is constant"},
    )
    batch_capacity: int = field(default=1_000, metadata={"help": "earlier batches kept for replay.num_batches"})
    priority: Literal["mixed", "rank", "uniform"] = field(
        default="mixed",
        metadata={
            "help": "which states are replayed: mixed (replay.top_share of them from the best tenth), rank (the higher "
            "a state ranks the more often) or uniform"
        },
    )
    top_share: float = field(
        default=0.5, metadata={"help": "mixed: share of the replayed states drawn from the best tenth"}
    )
    resample: bool = field(
        default=True,
        metadata={
            "help": "replay a state along a fresh trajectory drawn backwards; false: along the one that found it"
        },
    )


@dataclass
class LocalSearchConfig:
    """Terminal states changed a little: some steps undone through P_B, others taken by the policy."""

    num: int = field(
        default=0, metadata={"help": "terminal states per training step that are searched around; 0: none"}
    )
    start: Literal["fresh", "replay"] = field(
        default="fresh", metadata={"help": "where a search begins: at the step's first samples, or at replayed states"}
    )
    num_iterations: int = field(default=4, metadata={"help": "changes tried one after another at each of them"})
    share_back: float = field(
        default=0.5, metadata={"help": "largest share of its construction steps that one change undoes"}
    )
    accept: Literal["better", "metropolis"] = field(
        default="better",
        metadata={"help": "where the next change begins: at the better state, or as a Metropolis-Hastings filter says"},
    )


@dataclass
class OfflineConfig:
    """Graphs whose scores are known from elsewhere."""

    path: str = field(
        default="", metadata={"help": "file of graphs with scores, JSON lines or a JSON list; empty: none"}
    )
    num: int = field(default=16, metadata={"help": "of them per training step, along trajectories drawn backwards"})


@dataclass
class WorkersConfig:
    """How worker processes are started, and what becomes of those that die or hang."""

    backend: Literal["processes", "dataloader"] = field(
        default="processes",
        metadata={"help": "processes (dead workers are replaced) or dataloader (torch's; a dead worker ends the run)"},
    )
    start_method: Literal["auto", "fork", "forkserver", "spawn"] = field(
        default="auto", metadata={"help": "auto (forkserver), fork (refused where it is not safe), forkserver or spawn"}
    )
    deadline: float | None = field(
        default=None,
        metadata={"help": "seconds a worker may take for one step's rollout before it is replaced; null: no limit"},
    )
    max_restarts: int = field(
        default=3, metadata={"help": "dead and hanging workers that a run replaces before it gives up"}
    )
