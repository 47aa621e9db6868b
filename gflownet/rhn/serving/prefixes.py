"""States of prompts read before: a prefix of any length is one state, so that a prompt goes on where another ended."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from torch import Tensor


@dataclass(frozen=True)
class PrefixHit:
    """The longest prefix of a prompt that was read before."""

    num_tokens: int
    state: Tensor  # [layers, width], not to be changed


class PrefixCache:
    """The states after prefixes; when there is no more room, those used longest ago are given up.

    Not safe to call from several threads at once.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty; `max_bytes` bounds the states together.

        Raises:
            ValueError: a negative bound.
        """
        if max_bytes < 0:
            raise ValueError(f"max_bytes: expected at least 0, got {max_bytes}")
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.num_evicted = 0
        # by length and digest: 128 bits identify a prefix without its tokens
        self._states: OrderedDict[tuple[int, bytes], Tensor] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return how many prefixes are kept."""
        return len(self._states)

    def put(self, tokens: Sequence[int], state: Tensor) -> None:
        """Keep the state [layers, width] after some tokens, at least one; it is not copied."""
        (key,) = _keys(tokens, [len(tokens)])
        if key in self._states:
            self._states.move_to_end(key)
            return
        self._states[key] = state
        self._lengths[key[0]] += 1
        self.num_bytes += state.nbytes
        while self.num_bytes > self._max_bytes:
            (length, _), dropped = self._states.popitem(last=False)
            self._lengths[length] -= 1
            self.num_bytes -= dropped.nbytes
            self.num_evicted += 1

    def longest(self, prompt: Sequence[int]) -> PrefixHit | None:
        """Return the longest prefix that is known and leaves at least one token to read; None when there is none."""
        lengths = sorted(length for length, count in self._lengths.items() if count and length < len(prompt))
        for key in reversed(list(_keys(prompt, lengths))):
            if key in self._states:
                self._states.move_to_end(key)
                return PrefixHit(key[0], self._states[key])
        return None


def _keys(tokens: Sequence[int], lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the keys of the prefixes of some ascending lengths."""
    digest, start = blake2b(digest_size=16), 0
    for length in lengths:
        digest.update(array("q", tokens[start:length]).tobytes())
        start = length
        yield length, digest.digest()
