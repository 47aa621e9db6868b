"""Admission and priority queue for requests (no tensors).

Waiting -> running -> finished. Those waiting come in the order of the time they arrived, plus `patience` seconds per
step of priority: an urgent one overtakes, but none is overtaken by one that arrives later than that: none starves.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

MAX_PRIORITY = 100


class QueueFullError(Exception):
    """A request was not taken because too much is waiting; to be tried again later."""


class Phase(Enum):
    """Where a request is; one that is forgotten has none."""

    WAITING = auto()
    RUNNING = auto()


@dataclass(frozen=True)
class SchedulerConfig:
    """How much is taken on.

    Raises:
        ValueError: a value out of its bounds.
    """

    max_slots: int = 32  # requests answered at once
    max_queue: int = 1024  # requests waiting
    max_waiting: float = 60.0  # seconds until a request that waits is given up
    token_budget: int = 1_000_000  # tokens that those waiting and running may ask for together, prompts and answers
    patience: float = 1.0  # seconds of waiting that one step of priority is worth

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("max_slots", "token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_queue < 0:
            raise ValueError(f"max_queue: expected at least 0, got {self.max_queue}")
        for name in ("max_waiting", "patience"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a number of seconds > 0, got {getattr(self, name)}")


@dataclass
class _Ticket:
    """One request."""

    num_tokens: int
    arrived: float  # seconds of the scheduler's clock
    phase: Phase = Phase.WAITING


@dataclass(frozen=True)
class Schedule:
    """Result of `Scheduler.schedule`."""

    admitted: list[int]  # running from now on, in this order
    expired: list[int]  # waited too long, and are forgotten


class Scheduler:
    """Admit requests and choose which of them run.

    Not safe to call from several threads at once.
    """

    def __init__(self, config: SchedulerConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without requests; `clock` returns seconds."""
        self._config = config
        self._clock = clock
        self._tickets: dict[int, _Ticket] = {}
        self._queue: list[tuple[float, int]] = []  # a heap of (when it is due, request), some of them gone
        self._num_waiting = 0
        self._num_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._tickets) - self._num_waiting

    def phase_of(self, request_id: int) -> Phase | None:
        """Return where a request is; None when it is finished or was never taken."""
        ticket = self._tickets.get(request_id)
        return None if ticket is None else ticket.phase

    def submit(self, request_id: int, num_tokens: int, *, priority: int = 0) -> None:
        """Let a request wait for a slot.

        Args:
            request_id: not waiting or running; larger than those before it.
            num_tokens: of its prompt and its longest answer.
            priority: -100 .. 100, lower is more urgent.

        Raises:
            ValueError: a priority out of bounds, or more tokens than may ever run.
            QueueFullError: too many requests wait, or they have too many tokens together.
        """
        config = self._config
        if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise ValueError(f"priority: expected -{MAX_PRIORITY} .. {MAX_PRIORITY}, got {priority}")
        if num_tokens > config.token_budget:
            message = f"expected at most {config.token_budget} tokens of prompt and answer, got {num_tokens}"
            raise ValueError(f"max_tokens: {message}")
        # A free slot is taken at the next step: a request that waits for that does not count as queued.
        if self._num_waiting >= config.max_queue + config.max_slots - self.num_running:
            raise QueueFullError(f"{self._num_waiting} requests wait, at most {config.max_queue} may")
        if self._num_tokens + num_tokens > config.token_budget:
            raise QueueFullError(
                f"{num_tokens} tokens more than the {self._num_tokens} asked for are above {config.token_budget}"
            )
        assert request_id not in self._tickets, request_id
        now = self._clock()
        self._tickets[request_id] = _Ticket(num_tokens, now)
        heapq.heappush(self._queue, (now + priority * config.patience, request_id))
        self._num_waiting += 1
        self._num_tokens += num_tokens

    def finish(self, request_id: int) -> Phase | None:
        """Forget a request; return its phase, None when it is finished already."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return None
        self._num_waiting -= ticket.phase is Phase.WAITING
        self._num_tokens -= ticket.num_tokens
        return ticket.phase

    def schedule(self) -> Schedule:
        """Give up those that waited too long, and fill the free slots with the others, the most urgent first."""
        now = self._clock()
        expired = self._expired(now)
        for request_id in expired:
            self.finish(request_id)
        admitted = []
        while self._queue and self.num_running < self._config.max_slots:
            _, request_id = heapq.heappop(self._queue)
            ticket = self._tickets.get(request_id)
            if ticket is not None:
                ticket.phase = Phase.RUNNING
                self._num_waiting -= 1
                admitted.append(request_id)
        return Schedule(admitted, expired)

    def _expired(self, now: float) -> list[int]:
        """Return those that waited too long: the first to arrive are the first of the tickets."""
        found = []
        if self._num_waiting == 0:
            return found
        for request_id, ticket in self._tickets.items():
            if now - ticket.arrived <= self._config.max_waiting:
                break
            if ticket.phase is Phase.WAITING:
                found.append(request_id)
        return found
