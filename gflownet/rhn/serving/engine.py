"""Continuous batching: each step reads one token of every running request, and a chunk of long prompts in between.

Chunks take a bounded share of the time, so that a long prompt does not stop other answers. The logits of a row are a
function of the tokens of that row, up to rounding; each row has its own random generator.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from operator import attrgetter

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.cache import CacheManager, PrefixCache
from gflownet.rhn.serving.prefill import Chunk, Prefill, PrefillConfig, read_chunk, read_tokens
from gflownet.rhn.serving.requests import ActiveRequest, Answer, EngineMetrics, Event, Request, Tally, TokenEvent
from gflownet.rhn.serving.sampler import Draw, TokenSampler
from gflownet.rhn.serving.sampling import FinishReason, SamplingError
from gflownet.rhn.text_codec import BYTES, TextCodec

_log = logging.getLogger(__name__)


class QueueFullError(Exception):
    """A request was refused because the queue is full; try again later."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the queue.

    Raises:
        ValueError: a value out of its bounds.
    """

    max_slots: int = 32  # requests answered at once
    max_queue: int = 1024  # requests waiting

    def __post_init__(self) -> None:
        for name, low in (("max_slots", 1), ("max_queue", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: expected at least {low}, got {getattr(self, name)}")


@dataclass(frozen=True)
class EngineConfig:
    """Admission of requests, reading of prompts, and the cache of their prefixes.

    Raises:
        ValueError: a value out of its bounds.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_bytes: int = 64 * 2**20  # size of the cached states of prompt prefixes; 0: no cache
    prefix_interval: int = 64  # tokens of a prompt between cached states; the state at its end is cached too
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    codec: TextCodec = BYTES  # finds stop strings in answers

    def __post_init__(self) -> None:
        if self.prefix_bytes < 0:
            raise ValueError(f"prefix_bytes: expected at least 0, got {self.prefix_bytes}")
        if self.prefix_interval < 1:
            raise ValueError(f"prefix_interval: expected at least 1 token, got {self.prefix_interval}")


class Engine:
    """Answer requests, many at a time.

    `submit`, `cancel`, `has_work` and `metrics` are thread-safe; `step` must not run in two threads at once.
    """

    def __init__(
        self, model: LanguageModel, config: EngineConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Allocate the slots; `clock` returns seconds."""
        self._config = config or EngineConfig()
        max_slots = self._config.scheduler.max_slots
        self._model = model
        self._clock = clock
        self._cache = CacheManager(self._model, max_slots)
        self._sampler = TokenSampler(max_slots, model.vocabulary_size, model.device)
        self._tally = Tally()  # guarded by the lock below, as are the prefixes
        self._prefixes = PrefixCache(self._config.prefix_bytes, interval=self._config.prefix_interval)
        self._prefill = Prefill(self._config.prefill, interval=self._config.prefix_interval)

        self._lock = threading.Lock()
        # Guarded by the lock.
        self._waiting: dict[int, ActiveRequest] = {}  # in order of arrival
        self._cancelled: list[ActiveRequest] = []  # their finish event comes with the next step
        self._ids = count()
        # Changed by `step` only. Sorted by slot, so that the states in use are contiguous.
        self._running: list[ActiveRequest] = []

    def check(self, request: Request) -> None:
        """Raise ValueError for a request that the model cannot answer."""
        if not request.prompt:
            raise ValueError("prompt: expected at least one token, got none")
        size, state_shape, state = self._model.vocabulary_size, self._model.state_shape, request.state
        if min(request.prompt) < 0 or max(request.prompt) >= size:
            wrong = next(token for token in request.prompt if not 0 <= token < size)
            raise ValueError(f"prompt: expected tokens of 0 .. {size - 1}, got {wrong}")
        request.params.check_vocabulary(size, self._config.codec)
        if state is not None and tuple(state.shape) != state_shape:
            raise ValueError(f"state: expected {state_shape} as (layers, width), got {tuple(state.shape)}")

    def submit(self, request: Request) -> int:
        """Queue a request and return its id.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, or a state of another shape.
            QueueFullError: too many requests are queued.
        """
        self.check(request)
        answer, limits = Answer(request.params, self._config.codec), self._config.scheduler
        with self._lock:
            # A request that will get a free slot at the next step does not count as queued.
            if len(self._waiting) >= limits.max_queue + limits.max_slots - len(self._running):
                raise QueueFullError(f"{len(self._waiting)} requests wait, the maximum is {limits.max_queue}")
            request_id = next(self._ids)
            self._waiting[request_id] = ActiveRequest(request_id, request, answer, self._clock())
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a waiting or running request; its slot is free after one step. Return False if it had ended."""
        with self._lock:
            running = (one for one in self._running if one.request_id == request_id)
            request = self._waiting.pop(request_id, None) or next(running, None)
            if request is None or request.cancelled:
                return False
            request.cancelled = True
            self._cancelled.append(request)
            return True

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        with self._lock:
            return bool(self._cancelled or self._waiting or self._running)

    def metrics(self) -> EngineMetrics:
        """Return sums since the start, and the present load."""
        with self._lock:
            sums = replace(self._tally, finished=self._tally.finished.copy())
            num_bytes = self._prefixes.num_bytes
            return EngineMetrics(sums, len(self._waiting), len(self._running), num_bytes)

    def step(self) -> list[Event]:
        """Read a chunk of long prompts if it is due, and one token of every other running request.

        Returns:
            the events, in order per request.
        """
        events: list[Event] = []
        start = self._clock()
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
            for request in cancelled:
                self._end(request, FinishReason.CANCELLED, start, events)
            self._admit(start, events)
            rows, chunk = self._prefill.plan(self._running)
        chunk_seconds = 0.0 if chunk is None else self._read_chunk(chunk, events)
        step_seconds = self._read_rows(rows, events) if rows else 0.0
        self._prefill.ran(chunk_seconds=chunk_seconds, step_seconds=step_seconds, had_rows=bool(rows))
        return events

    def _read_chunk(self, chunk: Chunk, events: list[Event]) -> float:
        """Read a chunk, add its events, and return its seconds."""
        start = self._clock()
        read_chunk(chunk, self._cache, self._model)
        now = self._clock()
        with self._lock:
            self._tally.num_chunk_tokens += len(chunk.requests) * chunk.num_tokens
            self._take_all(chunk.requests, [None] * len(chunk.requests), now, events)
        return now - start

    def _read_rows(self, rows: Sequence[ActiveRequest], events: list[Event]) -> float:
        """Read one token of each request, sample the tokens after them, add the events, and return the seconds."""
        start = self._clock()
        logits = read_tokens(rows, self._cache, self._model)
        slots = [request.slot for request in rows]
        draws = self._sampler.sample(slots, logits, [request.samples for request in rows])
        now = self._clock()
        with self._lock:
            self._tally.num_steps += 1
            self._tally.num_rows += len(rows)
            self._take_all(rows, draws, now, events)
        return now - start

    def _take_all(
        self, requests: Sequence[ActiveRequest], draws: Sequence[Draw], now: float, events: list[Event]
    ) -> None:
        """Add the tokens of a step or a chunk, and end requests."""
        ended, num_events = [], len(events)
        for request, sampled in zip(requests, draws, strict=True):
            end = self._take(request, sampled, now, events)
            if end is not None:
                ended.append((request, *end))
        self._tally.num_tokens += sum(isinstance(event, TokenEvent) for event in events[num_events:])
        for request, reason, error in ended:
            self._end(request, reason, now, events, error)

    def _admit(self, now: float, events: list[Event]) -> None:
        """Give free slots to waiting requests, each from the longest cached prefix of its prompt."""
        for request_id in [*islice(self._waiting, self._config.scheduler.max_slots - len(self._running))]:
            request = self._waiting.pop(request_id)
            prefix = self._prefixes.first_state(request)
            if self._prefixes.keeps(request):
                self._tally.prefix_hits += prefix is not None
                self._tally.prefix_misses += prefix is None
            request.slot = self._cache.allocate(request_id, request.request.state if prefix is None else prefix)
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
        self, request: ActiveRequest, sampled: Draw, now: float, events: list[Event]
    ) -> tuple[FinishReason, str] | None:
        """Add the next token of an answer; return reason and error if the request ends."""
        if request.cancelled:
            return None
        if request.num_read == request.next_kept:
            self._prefixes.add(request, self._cache.export_state(request.request_id))
        if isinstance(sampled, SamplingError):
            return FinishReason.ERROR, str(sampled)
        if sampled is None:
            return (FinishReason.LENGTH, "") if request.is_read else None
        reason = request.take(sampled, now, events)
        return None if reason is None else (reason, "")

    def _end(
        self, request: ActiveRequest, reason: FinishReason, now: float, events: list[Event], error: str = ""
    ) -> None:
        """Remove a request and add its finish event."""
        request_id, options = request.request_id, request.request
        state = None
        if request.slot >= 0:
            keeps = self._prefixes.keeps(request)
            if reason in (FinishReason.STOP, FinishReason.LENGTH) and (options.keep_state or keeps):
                state = self._cache.export_state(request_id)
                if keeps:
                    self._prefixes.add(request, state)
            self._cache.free(request_id)
            self._running.remove(request)
        own_state = state.clone() if state is not None and options.keep_state else None
        end = request.finish(reason, now, error=error, state=own_state)
        self._tally.finish(end, len(request.output.sampled))
        events.append(end)
