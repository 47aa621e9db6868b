"""States of prompts at regular points, for later prompts with the same beginning."""

from __future__ import annotations

from torch import Tensor

from gflownet.rhn.serving.cache import PrefixCache
from gflownet.rhn.serving.requests import ActiveRequest, Tally


class PromptPrefixes:
    """Prefixes of prompts in a cache: every `interval` tokens, at the end of a prompt, and after its answer."""

    def __init__(self, cache: PrefixCache, *, interval: int, tally: Tally) -> None:
        """Count hits and misses in `tally`."""
        self.cache = cache
        self._interval, self._tally = interval, tally

    def keeps(self, request: ActiveRequest) -> bool:
        """Return whether the prefixes of a request are cached: not if it started from a state of the user."""
        return self.cache.max_bytes > 0 and request.request.state is None

    def first_state(self, request: ActiveRequest) -> Tensor | None:
        """Return the state of the longest cached prefix, whose tokens count as read; None if there is none."""
        hit = None
        if self.keeps(request) and not request.scores_prompt:
            hit = self.cache.longest(request.tokens)
            self._tally.prefix_hits += hit is not None
            self._tally.prefix_misses += hit is None
        if hit is not None:
            request.num_read = request.num_cached = hit.num_tokens
            self._tally.prefix_tokens += hit.num_tokens
        self._plan(request)
        return None if hit is None else hit.state

    def add(self, request: ActiveRequest, state: Tensor) -> None:
        """Cache the state [layers, width] after the tokens that were read; it is not copied."""
        self.cache.put(request.tokens[: request.num_read], state)
        self._plan(request)

    def _plan(self, request: ActiveRequest) -> None:
        if self.keeps(request):
            border = (request.num_read // self._interval + 1) * self._interval
            request.next_kept = min(border, request.num_prompt)
