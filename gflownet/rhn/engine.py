"""Continuous batching: one token of every running request per step, those that come and go sharing the batch.

Tokens of a prompt are rows like any other, so that reading a long prompt never holds up the answers beside it. The
arithmetic of a row is the same whatever the others are, and so are its tokens.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from gflownet.rhn.cache import CacheManager
from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.prefixes import PrefixCache
from gflownet.rhn.requests import ActiveRequest, Event, FinishEvent, Request, TokenEvent
from gflownet.rhn.sampling import Sampled, Sampler
from gflownet.rhn.scheduler import Phase, Scheduler, SchedulerConfig
from gflownet.rhn.serving_metrics import EngineMetrics, Tally
from gflownet.rhn.stopping import FinishReason

MIN_ROWS = 2  # one row alone is multiplied by another kernel, whose last bits differ: it goes in twice


@dataclass(frozen=True)
class EngineConfig:
    """How requests are taken on, and how much is kept for later ones.

    Raises:
        ValueError: a value out of its bounds.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_bytes: int = 64 * 2**20  # of states kept of prompts that were read; 0: none
    prefix_interval: int = 64  # tokens of a prompt between states that are kept, beside the one at its end

    def __post_init__(self) -> None:
        """Check every value."""
        if self.prefix_bytes < 0:
            raise ValueError(f"prefix_bytes: expected at least 0, got {self.prefix_bytes}")
        if self.prefix_interval < 1:
            raise ValueError(f"prefix_interval: expected at least 1 token, got {self.prefix_interval}")


def process_batch_step(
    active_requests: Sequence[ActiveRequest], cache_manager: CacheManager, *, model: LanguageModel, sampler: Sampler
) -> list[Sampled | None]:
    """Read the next token of each request and draw the one after it where the prompt is at its end.

    Args:
        active_requests: at least one, each with a slot in the cache; they are moved on by one token.
        cache_manager: holds their states, which are replaced.
        model: what reads.
        sampler: with the requests in the slots that they have in the cache.

    Returns:
        what was drawn for each request; None where its prompt goes on, and where the logits were not finite.
    """
    tokens = [request.tokens[request.num_read] for request in active_requests]
    starts = [request.starts for request in active_requests]
    request_ids = [request.request_id for request in active_requests]
    state = cache_manager.get_caches(request_ids)
    rows = len(tokens)
    if rows < MIN_ROWS:
        tokens, starts, state = tokens * MIN_ROWS, starts * MIN_ROWS, state.expand(-1, MIN_ROWS, -1).contiguous()
    logits, new_state = model.step(
        torch.tensor(tokens, device=model.device),
        state,
        torch.tensor(starts, device=model.device) if any(starts) else None,
    )
    cache_manager.update_caches(request_ids, new_state[:, :rows])
    for request in active_requests:
        request.num_read += 1
    return _sample(active_requests, logits[:rows], sampler)


def _sample(requests: Sequence[ActiveRequest], logits: Tensor, sampler: Sampler) -> list[Sampled | None]:
    """Return a token for each request whose tokens have all been read."""
    asking = [row for row, request in enumerate(requests) if request.num_read == len(request.tokens)]
    drawn: list[Sampled | None] = [None] * len(requests)
    if not asking:
        return drawn
    if len(asking) < len(requests):
        logits = logits[torch.tensor(asking, device=logits.device)]
    if not torch.isfinite(logits.sum()):
        finite = logits.isfinite().all(-1).tolist()
        logits = logits[torch.tensor(finite, device=logits.device)]
        asking = [row for row, is_finite in zip(asking, finite, strict=True) if is_finite]
        if not asking:
            return drawn
    for row, sampled in zip(asking, sampler.sample([requests[row].slot for row in asking], logits), strict=True):
        drawn[row] = sampled
    return drawn


class Engine:
    """Answers requests, many at a time.

    `submit`, `cancel` and `metrics` may be called from any thread, `step` from one at a time.
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
        self._model = model.for_rows(max_slots)
        self._clock = clock
        self._cache = CacheManager(self._model, max_slots)
        self._sampler = Sampler(max_slots, model.vocabulary_size, model.device)
        self._prefixes = PrefixCache(self._config.prefix_bytes)

        self._lock = threading.Lock()
        # Guarded by the lock.
        self._tally = Tally()
        self._scheduler = Scheduler(self._config.scheduler, clock=clock)
        self._requests: dict[int, ActiveRequest] = {}  # waiting and running
        self._cancelled: list[ActiveRequest] = []  # not yet told
        self._ids = count()
        # Of the thread that steps: by slot, so that the states in use lie side by side.
        self._running: list[ActiveRequest] = []

    def submit(self, request: Request) -> int:
        """Return the number of a request that waits from now on.

        Raises:
            ValueError: an empty prompt, a token that the model does not know, a state of another shape, or what
                `Scheduler.submit` refuses.
            QueueFullError: too much is waiting.
        """
        request.check(self._model)
        with self._lock:
            request_id = next(self._ids)
            num_tokens = len(request.prompt) + request.params.max_tokens
            self._scheduler.submit(request_id, num_tokens, priority=request.priority)
            self._requests[request_id] = ActiveRequest(request_id, request, self._clock())
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a request, waiting or running; its slot is free within one step. Return False where it had ended."""
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
        """Whether a step would do anything."""
        with self._lock:
            return bool(self._requests)

    def metrics(self) -> EngineMetrics:
        """Return what happened so far, and how much waits and runs now."""
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
        """Read one token of every running request; return what there is to tell, in order for each request."""
        events: list[Event] = []
        began = self._clock()
        with self._lock:
            self._end_cancelled(began, events)
            self._admit(began, events)
        if not self._running:
            return events
        drawn = process_batch_step(self._running, self._cache, model=self._model, sampler=self._sampler)
        now = self._clock()
        with self._lock:
            tally = self._tally
            tally.num_steps += 1
            tally.num_rows += len(self._running)
            tally.step_seconds += now - began
            ended = []
            for request, sampled in zip(self._running, drawn, strict=True):
                if request.num_read <= len(request.request.prompt):
                    self._keep_prefix(request)
                reason = self._take(request, sampled, now, events)
                if reason is not None:
                    ended.append((request, reason))
            for request, reason in ended:
                self._end(request, reason, now, events)
        return events

    def _end_cancelled(self, now: float, events: list[Event]) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for request in cancelled:
            if request.request_id in self._requests:  # not ended by the step during which it was cancelled
                self._end(request, FinishReason.CANCELLED, now, events)

    def _admit(self, now: float, events: list[Event]) -> None:
        """Seat waiting requests, each after the longest prefix of its prompt that is known."""
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
            request.slot = self._cache.allocate(request_id, state)
            self._sampler.place(request.slot, request.request.params, request.tokens)
            request.admitted = now
            self._tally.num_admitted += 1
            self._tally.waited_seconds += now - request.submitted
            insort(self._running, request, key=_slot)

    def _keep_prefix(self, request: ActiveRequest) -> None:
        """Keep the state now and then, and where the prompt is at its end, for prompts that begin likewise."""
        at_end = request.num_read == len(request.request.prompt)
        if self._keeps(request) and (at_end or request.num_read % self._config.prefix_interval == 0):
            self._prefixes.put(request.tokens[: request.num_read], self._cache.export_state(request.request_id))

    def _take(
        self, request: ActiveRequest, sampled: Sampled | None, now: float, events: list[Event]
    ) -> FinishReason | None:
        """Take what was drawn for a request and tell what may be told; return why the answer ends, if it does."""
        if sampled is None:
            return FinishReason.ERROR if request.num_read == len(request.tokens) else None
        if request.cancelled:
            return None
        tally = self._tally
        if request.last_token is None:
            request.first_token = now
            tally.num_first_tokens += 1
            tally.first_token_seconds += now - request.submitted
        else:
            tally.num_later_tokens += 1
            tally.later_token_seconds += now - request.last_token
        request.last_token = now
        request.tokens.append(sampled.token)
        request.drawn.append(sampled)
        reason = request.answer.add(sampled.token)
        num_shown = request.answer.num_shown
        tally.num_tokens += num_shown - request.num_told
        for shown in request.drawn[: num_shown - request.num_told]:
            events.append(TokenEvent(request.request_id, shown))
        del request.drawn[: num_shown - request.num_told]
        request.num_told = num_shown
        return reason

    def _end(
        self, request: ActiveRequest, reason: FinishReason, now: float, events: list[Event], error: str = ""
    ) -> None:
        """Forget a request and tell that it ended."""
        request_id, asked = request.request_id, request.request
        state = None
        if request.slot >= 0:
            if reason in (FinishReason.STOP, FinishReason.LENGTH) and (asked.keep_state or self._keeps(request)):
                state = self._cache.export_state(request_id)
                if self._keeps(request):
                    self._prefixes.put(request.tokens[: request.num_read], state)
            self._cache.free(request_id)
            self._running.remove(request)
        if reason is FinishReason.ERROR and not error:
            error = "the model's logits are not finite"
        self._scheduler.finish(request_id)
        del self._requests[request_id]
        self._tally.finished[reason] += 1
        admitted = now if request.admitted is None else request.admitted
        first = None if request.first_token is None else request.first_token - request.submitted
        events.append(
            FinishEvent(
                request_id,
                reason,
                num_prompt_tokens=len(asked.prompt),
                num_tokens=request.num_told,
                num_cached_tokens=request.num_cached,
                waited=admitted - request.submitted,
                first_token_after=first,
                took=now - request.submitted,
                error=error,
                state=state if asked.keep_state else None,
                unread=tuple(request.tokens[request.num_read :]),
            )
        )

    def _keeps(self, request: ActiveRequest) -> bool:
        """Whether the prefixes of a request are kept: what goes on from a state is none by its tokens alone."""
        return self._config.prefix_bytes > 0 and request.request.state is None


def _slot(request: ActiveRequest) -> int:
    return request.slot
