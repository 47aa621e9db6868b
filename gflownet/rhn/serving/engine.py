"""Continuous batching: each step reads one token of every running request, of its prompt or of its answer.

Prompts need no separate prefill, so a long prompt does not delay other answers. The logits of a row are a function of
the tokens of that row, up to rounding; each row has its own random generator.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter

import numpy as np
import torch

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.cache import CacheManager, PrefixCache
from gflownet.rhn.serving.requests import ActiveRequest, EngineMetrics, Event, FinishEvent, Request, Tally
from gflownet.rhn.serving.sampler import Draw, Sampler
from gflownet.rhn.serving.sampling import FinishReason, SamplingError
from gflownet.rhn.serving.scheduler import Phase, Scheduler, SchedulerConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineConfig:
    """Admission of requests, and the cache of prompt prefixes.

    Raises:
        ValueError: a value out of its bounds.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_bytes: int = 64 * 2**20  # size of the cached states of prompt prefixes; 0: no cache
    prefix_interval: int = 64  # tokens of a prompt between cached states; the state at its end is cached too

    def __post_init__(self) -> None:
        if self.prefix_bytes < 0:
            raise ValueError(f"prefix_bytes: expected at least 0, got {self.prefix_bytes}")
        if self.prefix_interval < 1:
            raise ValueError(f"prefix_interval: expected at least 1 token, got {self.prefix_interval}")


def process_batch_step(
    active_requests: Sequence[ActiveRequest], cache_manager: CacheManager, *, model: LanguageModel, sampler: Sampler
) -> list[Draw]:
    """Read the next token of each request, and sample the token after it for requests whose prompt is read.

    Args:
        active_requests: at least one, each with a slot in the cache; `num_read` is advanced by one.
        cache_manager: holds their states, which are replaced.
        model: the language model.
        sampler: holds the requests in the same slots as the cache.

    Returns:
        the token of each request; None if its prompt continues, an error if no token can be sampled.
    """
    device = model.device
    tokens = [request.tokens[request.num_read] for request in active_requests]
    starts = [request.num_read == 0 and request.starts for request in active_requests]
    request_ids = [request.request_id for request in active_requests]
    # Through numpy: torch reads a list at a fifth of the speed.
    logits, new_state = model.step(
        torch.from_numpy(np.array(tokens)).to(device),
        cache_manager.get_caches(request_ids),
        torch.from_numpy(np.array(starts)).to(device) if any(starts) else None,
    )
    cache_manager.update_caches(request_ids, new_state)
    for request in active_requests:
        request.num_read += 1
    slots = [request.slot for request in active_requests]
    samples = [request.num_read == len(request.tokens) for request in active_requests]
    return sampler.sample(slots, logits, samples)


class Engine:
    """Answer requests, many at a time.

    `submit`, `cancel` and `metrics` are thread-safe; `step` must not run in two threads at once.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocate the slots; `clock` returns seconds."""
        self._config = config or EngineConfig()
        max_slots = self._config.scheduler.max_slots
        self._model = model
        self._clock = clock
        self._cache = CacheManager(self._model, max_slots)
        self._sampler = Sampler(max_slots, model.vocabulary_size, model.device)
        self._prefixes = PrefixCache(self._config.prefix_bytes)

        self._lock = threading.Lock()
        # Guarded by the lock.
        self._tally = Tally()
        self._scheduler = Scheduler(self._config.scheduler, clock=clock)
        self._requests: dict[int, ActiveRequest] = {}  # waiting and running
        self._cancelled: list[ActiveRequest] = []  # their finish event comes with the next step
        self._ids = count()
        # Used by `step` only. Sorted by slot, so that the states in use are contiguous.
        self._running: list[ActiveRequest] = []

    def submit(self, request: Request) -> int:
        """Queue a request and return its id.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, a state of another shape, or limits of
                `Scheduler.submit`.
            QueueFullError: too many requests or tokens are queued.
        """
        request.check(self._model)
        with self._lock:
            request_id = next(self._ids)
            num_tokens = len(request.prompt) + request.params.max_tokens
            self._scheduler.submit(request_id, num_tokens, priority=request.priority)
            self._requests[request_id] = ActiveRequest(request_id, request, self._clock())
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a waiting or running request; its slot is free after one step. Return False if it had ended."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.cancelled:
                return False
            request.cancelled = True
            if self._scheduler.phase_of(request_id) is Phase.WAITING:
                self._scheduler.finish(request_id)
            self._cancelled.append(request)
            return True

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run."""
        with self._lock:
            return bool(self._requests)

    def metrics(self) -> EngineMetrics:
        """Return sums since the start, and the present load."""
        with self._lock:
            return EngineMetrics(
                replace(self._tally, finished=self._tally.finished.copy()),
                self._scheduler.num_waiting,
                self._scheduler.num_running,
                len(self._prefixes),
                self._prefixes.num_bytes,
                self._prefixes.num_evicted,
            )

    def step(self) -> list[Event]:
        """Read one token of every running request; return the events, in order per request."""
        events: list[Event] = []
        start = self._clock()
        with self._lock:
            self._end_cancelled(start, events)
            self._admit(start, events)
        if not self._running:
            return events
        sampled = process_batch_step(self._running, self._cache, model=self._model, sampler=self._sampler)
        now = self._clock()
        with self._lock:
            tally = self._tally
            tally.num_steps += 1
            tally.num_rows += len(self._running)
            tally.step_seconds += now - start
            num_events = len(events)
            ended = self._take(sampled, now, events)
            tally.num_tokens += len(events) - num_events
            for request, reason, error in ended:
                self._end(request, reason, now, events, error)
        return events

    def _end_cancelled(self, now: float, events: list[Event]) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for request in cancelled:
            if request.request_id in self._requests:  # the step during which it was cancelled may have ended it
                self._end(request, FinishReason.CANCELLED, now, events)

    def _admit(self, now: float, events: list[Event]) -> None:
        """Give free slots to waiting requests, each from the longest cached prefix of its prompt."""
        if not self._scheduler.num_waiting:
            return
        schedule = self._scheduler.schedule()
        for request_id in schedule.expired:
            error = f"it waited longer than {self._config.scheduler.max_waiting:g} s for a slot"
            self._end(self._requests[request_id], FinishReason.ERROR, now, events, error)
        for request_id in schedule.admitted:
            request = self._requests[request_id]
            state = request.request.state
            if state is None and self._config.prefix_bytes:
                hit = self._prefixes.longest(request.tokens)
                self._tally.prefix_hits += hit is not None
                self._tally.prefix_misses += hit is None
                if hit is not None:
                    state, request.num_read, request.num_cached = hit.state, hit.num_tokens, hit.num_tokens
                    self._tally.prefix_tokens += hit.num_tokens
            self._plan_prefix(request)
            request.slot = self._cache.allocate(request_id, state)
            request.admitted = now
            self._tally.num_admitted += 1
            self._tally.waited_seconds += now - request.submitted
            insort(self._running, request, key=attrgetter("slot"))
            try:
                self._sampler.place(request.slot, request.request.params, request.tokens)
            except Exception as error:
                _log.exception("request %d cannot be sampled", request_id)
                message = f"sampling failed: {type(error).__name__}: {error}"
                self._end(request, FinishReason.ERROR, now, events, message)

    def _take(
        self, draws: Sequence[Draw], now: float, events: list[Event]
    ) -> list[tuple[ActiveRequest, FinishReason, str]]:
        """Add the token of each running request; return the requests that end, with reason and error."""
        ended = []
        for request, sampled in zip(self._running, draws, strict=True):
            if request.num_read == request.next_kept:
                self._keep_prefix(request)
            if isinstance(sampled, SamplingError):
                ended.append((request, FinishReason.ERROR, str(sampled)))
            elif sampled is not None and not request.cancelled:
                reason = request.take(sampled, now, events)
                if reason is not None:
                    ended.append((request, reason, ""))
        return ended

    def _keep_prefix(self, request: ActiveRequest) -> None:
        """Cache the state for prompts with the same beginning."""
        self._prefixes.put(request.tokens[: request.num_read], self._cache.export_state(request.request_id))
        self._plan_prefix(request)

    def _plan_prefix(self, request: ActiveRequest) -> None:
        """Set the next point to cache the state: every `prefix_interval` tokens and at the end of the prompt."""
        if self._keeps(request):
            interval = self._config.prefix_interval
            request.next_kept = min((request.num_read // interval + 1) * interval, request.num_prompt)

    def _end(
        self, request: ActiveRequest, reason: FinishReason, now: float, events: list[Event], error: str = ""
    ) -> None:
        """Remove a request and add its finish event."""
        request_id, options = request.request_id, request.request
        state = None
        if request.slot >= 0:
            if reason in (FinishReason.STOP, FinishReason.LENGTH) and (options.keep_state or self._keeps(request)):
                state = self._cache.export_state(request_id)
                if self._keeps(request):
                    self._prefixes.put(request.tokens[: request.num_read], state)
            self._cache.free(request_id)
            self._running.remove(request)
        self._scheduler.finish(request_id)
        del self._requests[request_id]
        self._tally.finished[reason] += 1
        first = None
        if request.first_token is not None:
            first = request.first_token - request.submitted
            self._tally.num_first_tokens += 1
            self._tally.first_token_seconds += first
            self._tally.num_later_tokens += len(request.output.tokens) - 1
            self._tally.later_token_seconds += now - request.first_token
        admitted = now if request.admitted is None else request.admitted
        events.append(
            FinishEvent(
                request_id,
                reason,
                num_prompt_tokens=request.num_prompt,
                num_tokens=request.output.num_shown,
                num_cached_tokens=request.num_cached,
                waited=admitted - request.submitted,
                first_token_after=first,
                took=now - request.submitted,
                error=error,
                state=state.clone() if state is not None and options.keep_state else None,
                unread=tuple(request.tokens[request.num_read :]),
            )
        )

    def _keeps(self, request: ActiveRequest) -> bool:
        """Return whether the prefixes of a request are cached: not if it started from a state of the user."""
        return self._config.prefix_bytes > 0 and request.request.state is None
