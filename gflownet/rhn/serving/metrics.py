"""Figures of an engine: sums since it began, from which rates and means follow, and the present state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gflownet.rhn.serving.stopping import FinishReason


@dataclass
class Tally:
    """Sums since the engine began; seconds are of its clock."""

    finished: Counter[FinishReason] = field(default_factory=Counter)  # requests
    num_steps: int = 0  # with at least one row
    num_rows: int = 0  # tokens read, of prompts and answers
    num_tokens: int = 0  # of answers, without held back ones
    step_seconds: float = 0.0
    num_admitted: int = 0
    waited_seconds: float = 0.0  # in the queue, of those admitted
    num_first_tokens: int = 0  # of answers that ended
    first_token_seconds: float = 0.0  # from submission to the first token, of answers that ended
    num_later_tokens: int = 0  # drawn after the first, of answers that ended
    later_token_seconds: float = 0.0  # from the first to the end, of answers that ended
    prefix_hits: int = 0  # requests that began from a state that was kept
    prefix_misses: int = 0
    prefix_tokens: int = 0  # of prompts, that were not read again


@dataclass(frozen=True)
class EngineMetrics:
    """Figures of one moment."""

    sums: Tally  # a copy
    num_waiting: int
    num_running: int
    prefix_entries: int
    prefix_bytes: int
    prefix_evicted: int  # since the engine began

    @property
    def batch_size(self) -> float:
        """Mean rows per step."""
        return self.sums.num_rows / max(1, self.sums.num_steps)

    @property
    def tokens_per_second(self) -> float:
        """Of answers, over the time that steps took."""
        return self.sums.num_tokens / self.sums.step_seconds if self.sums.step_seconds else 0.0

    @property
    def first_token_seconds(self) -> float:
        """Mean time from submission to the first token."""
        return self.sums.first_token_seconds / max(1, self.sums.num_first_tokens)

    @property
    def seconds_per_token(self) -> float:
        """Mean time between tokens of one answer."""
        return self.sums.later_token_seconds / max(1, self.sums.num_later_tokens)
