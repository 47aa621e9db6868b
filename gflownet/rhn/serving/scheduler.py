"""Admission and queue of requests, first come, first served (no tensors): waiting -> running -> finished."""

from __future__ import annotations

from dataclasses import dataclass


class QueueFullError(Exception):
    """A request was refused because the queue is full; try again later."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler.

    Raises:
        ValueError: a value out of its bounds.
    """

    max_slots: int = 32  # requests answered at once
    max_queue: int = 1024  # requests waiting

    def __post_init__(self) -> None:
        if self.max_slots < 1:
            raise ValueError(f"max_slots: expected at least 1, got {self.max_slots}")
        if self.max_queue < 0:
            raise ValueError(f"max_queue: expected at least 0, got {self.max_queue}")


class Scheduler:
    """Admit requests and select the running ones. Not thread-safe."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Start without requests."""
        self._config = config
        self._waiting: dict[int, None] = {}  # in order of arrival
        self._running: set[int] = set()

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    def submit(self, request_id: int) -> None:
        """Queue a new request. Raises QueueFullError where too many wait."""
        # A request that will get a free slot at the next step does not count as queued.
        if self.num_waiting >= self._config.max_queue + self._config.max_slots - self.num_running:
            raise QueueFullError(f"{self.num_waiting} requests wait, the maximum is {self._config.max_queue}")
        self._waiting[request_id] = None

    def withdraw(self, request_id: int) -> None:
        """Remove a request unless it runs."""
        self._waiting.pop(request_id, None)

    def finish(self, request_id: int) -> None:
        """Remove a request; one that was removed before changes nothing."""
        self.withdraw(request_id)
        self._running.discard(request_id)

    def schedule(self) -> list[int]:
        """Give free slots to the requests that wait longest, and return them."""
        admitted = list(self._waiting)[: self._config.max_slots - self.num_running]
        for request_id in admitted:
            del self._waiting[request_id]
        self._running.update(admitted)
        return admitted
