"""Options of the replay buffer."""

from __future__ import annotations

from dataclasses import dataclass, field


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
