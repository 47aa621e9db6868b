"""Options of the replay buffer and of the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ReplayConfig:
    """Terminal states seen before, trained on again along fresh backward trajectories."""

    use: bool = field(default=True, metadata={"help": "train on replayed terminal states beside new ones"})
    capacity: int = field(default=2_000, metadata={"help": "terminal states kept; the oldest leave first"})
    warmup: int = field(default=32, metadata={"help": "terminal states the buffer holds before it is sampled from"})
    num_from_replay: int = field(default=32, metadata={"help": "terminal states replayed per training step"})
    top_share: float = field(
        default=0.5, metadata={"help": "share of the replayed states drawn from the best tenth, the rest uniformly"}
    )


@dataclass
class WorkersConfig:
    """How worker processes are started, and what becomes of those that die or hang."""

    start_method: Literal["auto", "fork", "forkserver", "spawn"] = field(
        default="auto", metadata={"help": "auto (forkserver), fork (refused where it is not safe), forkserver or spawn"}
    )
    deadline: float | None = field(
        default=None, metadata={"help": "seconds a worker may take for one step's rollout; null waits for ever"}
    )
    max_restarts: int = field(default=3, metadata={"help": "dead workers that a run replaces before it gives up"})
