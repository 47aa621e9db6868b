"""Admission and priority queue for requests (no tensors).

Waiting -> running -> finished. Waiting requests are ordered by arrival time + `patience` seconds * priority. An urgent
request overtakes others, but only those that arrived within this time before it, so that no request starves.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

MAX_PRIORITY = 100


class QueueFullError(Exception):
    """A request was refused because the queue is full; try again later."""


class Phase(Enum):
    """Phase of a request that is not finished."""

    WAITING = auto()
    RUNNING = auto()


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler.

    Raises:
        ValueError: a value out of its bounds.
    """

    max_slots: int = 32  # requests answered at once
    max_queue: int = 1024  # requests waiting
    max_waiting: float = 60.0  # seconds until a waiting request expires
    token_budget: int = 1_000_000  # total tokens of waiting and running requests, prompts and maximum answers
    patience: float = 1.0  # seconds of waiting equal to one step of priority

    def __post_init__(self) -> None:
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
    num_tokens: int
    arrived: float  # seconds of the scheduler's clock
    phase: Phase = Phase.WAITING


@dataclass(frozen=True)
class Schedule:
    """Result of `Scheduler.schedule`."""

    admitted: list[int]  # newly running requests, in this order
    expired: list[int]  # requests that waited too long and were removed


class Scheduler:
    """Admit requests and select the running ones. Not thread-safe."""

    def __init__(self, config: SchedulerConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without requests; `clock` returns seconds."""
        self._config = config
        self._clock = clock
        self._tickets: dict[int, _Ticket] = {}
        self._queue: list[tuple[float, int]] = []  # a heap of (due time, request); may hold finished requests
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
        """Return the phase of a request; None if it is finished or was never submitted."""
        ticket = self._tickets.get(request_id)
        return None if ticket is None else ticket.phase

    def submit(self, request_id: int, num_tokens: int, *, priority: int = 0) -> None:
        """Queue a request.

        Args:
            request_id: new, larger than all before it.
            num_tokens: of its prompt and its maximum answer.
            priority: -100 .. 100, lower is more urgent.

        Raises:
            ValueError: a priority out of bounds, or more tokens than the budget.
            QueueFullError: too many requests wait, or they have too many tokens together.
        """
        config = self._config
        if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise ValueError(f"priority: expected -{MAX_PRIORITY} .. {MAX_PRIORITY}, got {priority}")
        if num_tokens > config.token_budget:
            message = f"expected at most {config.token_budget} tokens of prompt and answer, got {num_tokens}"
            raise ValueError(f"max_tokens: {message}")
        # A request that will get a free slot at the next step does not count as queued.
        if self._num_waiting >= config.max_queue + config.max_slots - self.num_running:
            raise QueueFullError(f"{self._num_waiting} requests wait, the maximum is {config.max_queue}")
        if self._num_tokens + num_tokens > config.token_budget:
            raise QueueFullError(
                f"{self._num_tokens} tokens are requested; {num_tokens} more exceed the budget of {config.token_budget}"
            )
        assert request_id not in self._tickets, request_id
        now = self._clock()
        self._tickets[request_id] = _Ticket(num_tokens, now)
        heapq.heappush(self._queue, (now + priority * config.patience, request_id))
        self._num_waiting += 1
        self._num_tokens += num_tokens

    def finish(self, request_id: int) -> Phase | None:
        """Remove a request and return its phase; None if it was finished."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return None
        self._num_waiting -= ticket.phase is Phase.WAITING
        self._num_tokens -= ticket.num_tokens
        return ticket.phase

    def schedule(self) -> Schedule:
        """Remove requests that waited too long, and give free slots to the others, the most urgent first."""
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
        """Return the requests that waited too long; tickets are in order of arrival."""
        expired = []
        if self._num_waiting == 0:
            return expired
        for request_id, ticket in self._tickets.items():
            if now - ticket.arrived <= self._config.max_waiting:
                break
            if ticket.phase is Phase.WAITING:
                expired.append(request_id)
        return expired
