"""States of running requests: one each, all in one tensor that is allocated once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel


class CacheManager:
    """The states of requests, one slot each.

    Not safe to call from several threads at once.
    """

    def __init__(self, model: LanguageModel, num_slots: int) -> None:
        """Allocate the slots.

        Raises:
            ValueError: less than one slot.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots: expected at least 1, got {num_slots}")
        num_layers, width = model.state_shape
        self._states = torch.zeros(num_layers, num_slots, width, dtype=model.dtype, device=model.device)
        self._free = list(range(num_slots))  # a heap: the lowest slot first, so that used slots lie side by side
        self._slots: dict[int, int] = {}
        self._last: tuple[list[int], slice | Tensor] | None = None  # the requests looked up last, and where they lie

    @property
    def num_free(self) -> int:
        """Slots without a request."""
        return len(self._free)

    def slot_of(self, request_id: int) -> int:
        """Return where a request's state lies.

        Raises:
            KeyError: the request has no slot.
        """
        return self._slots[request_id]

    def allocate(self, request_id: int, state: Tensor | None = None) -> int:
        """Return the slot that a request gets, its state [layers, width] as given or zero.

        Raises:
            ValueError: the request has a slot, no slot is free, or a state of another shape.
        """
        if request_id in self._slots:
            raise ValueError(f"request {request_id}: it has a slot")
        expected = self._states.shape[0], self._states.shape[2]
        if state is not None and tuple(state.shape) != expected:
            raise ValueError(f"state: expected {expected} as (layers, width), got {tuple(state.shape)}")
        if not self._free:
            raise ValueError(f"request {request_id}: all {len(self._slots)} slots are taken")
        slot = self._slots[request_id] = heapq.heappop(self._free)
        self._states[:, slot] = 0 if state is None else state
        return slot

    def free(self, request_id: int) -> None:
        """Let another request have the slot.

        Raises:
            KeyError: the request has no slot.
        """
        heapq.heappush(self._free, self._slots.pop(request_id))
        self._last = None

    def fork(self, request_id: int, new_request_id: int) -> int:
        """Return the slot of a request that goes on from the state of another.

        Raises:
            KeyError: the other has no slot.
            ValueError: the new one has one, or no slot is free.
        """
        return self.allocate(new_request_id, self.export_state(request_id))

    def export_state(self, request_id: int) -> Tensor:
        """Return a copy [layers, width] of a request's state, which `allocate` takes again.

        Raises:
            KeyError: the request has no slot.
        """
        return self._states[:, self._slots[request_id]].clone()

    def get_caches(self, request_ids: Sequence[int]) -> Tensor:
        """Return the states [layers, R, width] of requests; to be read before the next update, not to be changed.

        Raises:
            KeyError: one has no slot.
        """
        where = self._where(request_ids)
        return self._states[:, where] if isinstance(where, slice) else self._states.index_select(1, where)

    def update_caches(self, request_ids: Sequence[int], new_caches: Tensor) -> None:
        """Take the new states [layers, R, width] of requests.

        Raises:
            KeyError: one has no slot.
        """
        where = self._where(request_ids)
        if isinstance(where, slice):
            self._states[:, where] = new_caches
        else:
            self._states.index_copy_(1, where, new_caches)

    def _where(self, request_ids: Sequence[int]) -> slice | Tensor:
        """Return the slots as an index, without a copy where they lie side by side."""
        if self._last is not None and self._last[0] == request_ids:
            return self._last[1]
        slots = [self._slots[request_id] for request_id in request_ids]
        lie_together = slots == list(range(slots[0], slots[0] + len(slots)))
        where = (
            slice(slots[0], slots[-1] + 1)
            if lie_together
            else torch.from_numpy(np.array(slots)).to(self._states.device)
        )
        self._last = list(request_ids), where
        return where
