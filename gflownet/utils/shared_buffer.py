"""Messages through memory that two processes share: allocated once, written by one side, read by the other."""

from __future__ import annotations

import pickle
from typing import Any

import torch


class SharedBuffer:
    """A block of shared memory for one message at a time.

    It has no lock that a dead process could keep: the two sides agree on whose turn it is by other means.
    """

    def __init__(self, num_bytes: int) -> None:
        self._memory = torch.empty(num_bytes, dtype=torch.uint8).share_memory_()

    def write(self, payload: bytes) -> bool:
        """Return whether the payload fits, and keep it if it does."""
        if len(payload) > len(self._memory):
            return False
        self._bytes()[: len(payload)] = payload
        return True

    def read(self, num_bytes: int) -> Any:
        """Return the object whose pickled form fills the first bytes; it shares no memory with the buffer."""
        return pickle.loads(self._bytes()[:num_bytes])

    def _bytes(self) -> memoryview:
        array: Any = self._memory.numpy()
        return memoryview(array)
