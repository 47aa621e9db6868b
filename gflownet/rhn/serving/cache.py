"""States of running requests in one preallocated tensor, and states of prompt prefixes for later requests."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.requests import ActiveRequest


class CacheManager:
    """States of requests, one slot each. Not thread-safe.

    Methods raise KeyError for a request without a slot.
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
        self._free = list(range(num_slots))  # a heap: the lowest slot first, so that used slots are contiguous
        self._slots: dict[int, int] = {}
        self._last: tuple[list[int], slice | Tensor] | None = None  # latest request ids, and the index of their slots

    def allocate(self, request_id: int, state: Tensor | None = None) -> int:
        """Give a request a slot with a state [layers, width], default zeros, and return the slot.

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
        """Free the slot of a request."""
        heapq.heappush(self._free, self._slots.pop(request_id))
        self._last = None

    def export_state(self, request_id: int) -> Tensor:
        """Return a copy [layers, width] of a request's state, an argument of `allocate`."""
        return self._states[:, self._slots[request_id]].clone()

    def get_caches(self, request_ids: Sequence[int]) -> Tensor:
        """Return the states [layers, R, width] of requests: read-only, valid until the next update."""
        index = self._index(request_ids)
        return self._states[:, index] if isinstance(index, slice) else self._states.index_select(1, index)

    def update_caches(self, request_ids: Sequence[int], new_caches: Tensor) -> None:
        """Replace the states of requests by [layers, R, width]."""
        index = self._index(request_ids)
        if isinstance(index, slice):
            self._states[:, index] = new_caches
        else:
            self._states.index_copy_(1, index, new_caches)

    def _index(self, request_ids: Sequence[int]) -> slice | Tensor:
        """Return the slots as an index; a slice, which needs no copy, if they are contiguous."""
        if self._last is not None and self._last[0] == request_ids:
            return self._last[1]
        slots = [self._slots[request_id] for request_id in request_ids]
        if slots == list(range(slots[0], slots[0] + len(slots))):
            index = slice(slots[0], slots[-1] + 1)
        else:
            index = torch.from_numpy(np.array(slots)).to(self._states.device)
        self._last = list(request_ids), index
        return index


class PrefixCache:
    """States after prefixes of prompts, with LRU eviction. Not thread-safe.

    Of a request, they are cached every `interval` tokens, at the end of its prompt, and after its answer.
    """

    def __init__(self, max_bytes: int, *, interval: int = 1) -> None:
        """Start empty; `max_bytes` bounds the total size of the states.

        Raises:
            ValueError: a negative bound.
        """
        if max_bytes < 0:
            raise ValueError(f"max_bytes: expected at least 0, got {max_bytes}")
        self.max_bytes, self._interval = max_bytes, interval
        self.num_bytes = 0
        # by length and digest: 128 bits identify a prefix without its tokens
        self._states: OrderedDict[tuple[int, bytes], Tensor] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of cached prefixes."""
        return len(self._states)

    def put(self, tokens: Sequence[int], state: Tensor) -> None:
        """Cache the state [layers, width] after at least one token; the state is not copied."""
        (key,) = _keys(tokens, [len(tokens)])
        if key in self._states:
            self._states.move_to_end(key)
            return
        self._states[key] = state
        self._lengths[key[0]] += 1
        self.num_bytes += state.nbytes
        while self.num_bytes > self.max_bytes:
            (length, _), dropped = self._states.popitem(last=False)
            self._lengths[length] -= 1
            self.num_bytes -= dropped.nbytes

    def longest(self, prompt: Sequence[int]) -> tuple[int, Tensor] | None:
        """Return tokens and read-only state of the longest cached prefix that leaves a token to read; None without."""
        lengths = sorted(length for length, count in self._lengths.items() if count and length < len(prompt))
        for key in reversed(list(_keys(prompt, lengths))):
            if key in self._states:
                self._states.move_to_end(key)
                return key[0], self._states[key]
        return None

    def keeps(self, request: ActiveRequest) -> bool:
        """Return whether the prefixes of a request are cached: not if it started from a state of the user."""
        return self.max_bytes > 0 and request.request.state is None

    def first_state(self, request: ActiveRequest) -> Tensor | None:
        """Return the state of the longest cached prefix, whose tokens count as read; None if there is none."""
        hit = self.longest(request.tokens) if self.keeps(request) else None
        if hit is not None:
            request.num_read = request.num_cached = hit[0]
        self._plan(request)
        return None if hit is None else hit[1]

    def add(self, request: ActiveRequest, state: Tensor) -> None:
        """Cache the state [layers, width] after the tokens that were read; it is not copied."""
        self.put(request.tokens[: request.num_read], state)
        self._plan(request)

    def _plan(self, request: ActiveRequest) -> None:
        if self.keeps(request):
            border = (request.num_read // self._interval + 1) * self._interval
            request.next_kept = min(border, request.num_prompt)


def _keys(tokens: Sequence[int], lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the keys of the prefixes of some ascending lengths."""
    digest, start = blake2b(digest_size=16), 0
    for length in lengths:
        digest.update(array("q", tokens[start:length]).tobytes())
        start = length
        yield length, digest.digest()
