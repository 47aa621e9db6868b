"""A clock for tests of the engine and the scheduler."""

from __future__ import annotations


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
