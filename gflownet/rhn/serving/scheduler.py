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
from itertools import takewhile

MAX_PRIORITY = 100
MAX_STALE = 64  # finished requests in the queue, in addition to as many as wait


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
    due: float  # place in the queue
    arrived: float  # seconds of the scheduler's clock, at the beginning of the queue


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
        # The waiting ones in order of arrival.
        self._tickets: dict[Phase, dict[int, _Ticket]] = {phase: {} for phase in Phase}
        self._queue: list[tuple[float, int]] = []  # a heap of (due time, request); may hold finished requests
        self._num_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._tickets[Phase.WAITING])

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._tickets[Phase.RUNNING])

    def phase_of(self, request_id: int) -> Phase | None:
        """Return the phase of a request; None if it is finished or was never submitted."""
        return next((phase for phase, tickets in self._tickets.items() if request_id in tickets), None)

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
        if self.num_waiting >= config.max_queue + config.max_slots - self.num_running:
            raise QueueFullError(f"{self.num_waiting} requests wait, the maximum is {config.max_queue}")
        if self._num_tokens + num_tokens > config.token_budget:
            raise QueueFullError(
                f"{self._num_tokens} tokens are requested; {num_tokens} more exceed the budget of {config.token_budget}"
            )
        assert self.phase_of(request_id) is None, request_id
        now = self._clock()
        due = now + priority * config.patience
        self._num_tokens += num_tokens
        self._tickets[Phase.WAITING][request_id] = _Ticket(num_tokens, due, now)
        heapq.heappush(self._queue, (due, request_id))

    def finish(self, request_id: int) -> Phase | None:
        """Remove a request and return its phase; None if it was finished."""
        phase = self.phase_of(request_id)
        if phase is not None:
            self._num_tokens -= self._tickets[phase].pop(request_id).num_tokens
        waiting = self._tickets[Phase.WAITING]
        if len(self._queue) > MAX_STALE + 2 * len(waiting):  # else cancelled requests fill it while all slots are taken
            self._queue = [(ticket.due, waiting_id) for waiting_id, ticket in waiting.items()]
            heapq.heapify(self._queue)
        return phase

    def schedule(self) -> Schedule:
        """Remove requests that waited too long, and give free slots to the others, the most urgent first."""
        expired = self._expired()
        for request_id in expired:
            self.finish(request_id)
        admitted = []
        waiting, running = self._tickets[Phase.WAITING], self._tickets[Phase.RUNNING]
        while self._queue and len(running) < self._config.max_slots:
            _, request_id = heapq.heappop(self._queue)
            ticket = waiting.pop(request_id, None)
            if ticket is not None:
                running[request_id] = ticket
                admitted.append(request_id)
        return Schedule(admitted, expired)

    def _expired(self) -> list[int]:
        """Return the requests that waited too long."""
        now = self._clock()
        return [
            request_id
            for request_id, _ in takewhile(
                lambda item: self._is_expired(item[1], now), self._tickets[Phase.WAITING].items()
            )
        ]

    def _is_expired(self, ticket: _Ticket, now: float) -> bool:
        return now - ticket.arrived > self._config.max_waiting
