"""Continuous batching: each step reads one token of every running request, of its prompt or of its answer.

Prompts need no separate prefill, so a long prompt does not delay other answers. The logits of a row are a function of
the tokens of that row, up to rounding; each row has its own random generator.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.cache import CacheManager, PrefixCache
from gflownet.rhn.serving.logprobs import with_log_probabilities
from gflownet.rhn.serving.requests import ActiveRequest, EngineMetrics, Event, Fork, Request, Tally, TokenEvent
from gflownet.rhn.serving.sampler import Draw, Sampler
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingError
from gflownet.rhn.serving.scheduler import Phase, Scheduler, SchedulerConfig
from gflownet.rhn.serving.stopping import new_answer
from gflownet.rhn.text_codec import BYTES, TextCodec

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
    codec: TextCodec = BYTES  # finds stop strings in answers

    def __post_init__(self) -> None:
        if self.prefix_bytes < 0:
            raise ValueError(f"prefix_bytes: expected at least 0, got {self.prefix_bytes}")
        if self.prefix_interval < 1:
            raise ValueError(f"prefix_interval: expected at least 1 token, got {self.prefix_interval}")


def read_tokens(requests: Sequence[ActiveRequest], cache: CacheManager, model: LanguageModel) -> Tensor:
    """Read the next token of each request and return the logits [R, V] of the token after it.

    Args:
        requests: at least one, each with a slot in the cache; `num_read` is advanced by one.
        cache: holds their states, which are replaced.
        model: the language model.
    """
    device = model.device
    tokens = [request.tokens[request.num_read] for request in requests]
    starts = [request.starts for request in requests]
    request_ids = [request.request_id for request in requests]
    # Through numpy: torch reads a list at a fifth of the speed.
    logits, new_state = model.step(
        torch.from_numpy(np.array(tokens)).to(device),
        cache.get_caches(request_ids),
        torch.from_numpy(np.array(starts)).to(device) if any(starts) else None,
    )
    cache.update_caches(request_ids, new_state)
    for request in requests:
        request.num_read += 1
    return logits


class Engine:
    """Answer requests, many at a time.

    `submit`, `submit_many`, `cancel`, `pause`, `resume`, `has_work` and `metrics` are thread-safe; `step` must not run
    in two threads at once.
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
        # Changed by `step` only. Sorted by slot, so that the states in use are contiguous.
        self._running: list[ActiveRequest] = []

    def submit(self, request: Request) -> int:
        """Queue a request and return its id.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, a state of another shape, or limits of
                `Scheduler.submit`.
            QueueFullError: too many requests or tokens are queued.
        """
        return self.submit_many(request, [request.params.seed])[0]

    def submit_many(self, request: Request, seeds: Sequence[int | None]) -> list[int]:
        """Queue one request for each seed, all or none, and return their ids; the prompt is read once.

        Raises:
            ValueError: as `submit`, or no seed.
            QueueFullError: as `submit`.
        """
        if not seeds:
            raise ValueError("seeds: expected at least one, got none")
        request.check(self._model, self._config.codec)
        requests = [replace(request, params=replace(request.params, seed=seed)) for seed in seeds]
        num_tokens = len(request.prompt) + request.params.max_tokens
        with self._lock:
            self._scheduler.check(num_tokens, count=len(requests), priority=request.priority)
            reader, *followers = [
                ActiveRequest(next(self._ids), one, new_answer(one.params, self._config.codec), self._clock())
                for one in requests
            ]
            shares = reader.num_prompt > 1  # the last token is read for each answer
            self._scheduler.submit(reader.request_id, num_tokens, priority=request.priority)
            for one in followers:
                self._scheduler.submit(one.request_id, num_tokens, priority=request.priority, held=shares)
            if shares:
                reader.followers = followers
            self._requests |= {one.request_id: one for one in (reader, *followers)}
        return [one.request_id for one in (reader, *followers)]

    def cancel(self, request_id: int) -> bool:
        """End a waiting or running request; its slot is free after one step. Return False if it had ended."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.cancelled:
                return False
            request.cancelled = True
            if self._scheduler.phase_of(request_id) is not Phase.RUNNING:
                self._scheduler.finish(request_id)
            self._cancelled.append(request)
            return True

    def pause(self, request_id: int) -> bool:
        """Let a request take no step until `resume`; it keeps its slot. Return False if it had ended."""
        return self._set_paused(request_id, paused=True)

    def resume(self, request_id: int) -> bool:
        """Let a paused request go on. Return False if it had ended."""
        return self._set_paused(request_id, paused=False)

    def _set_paused(self, request_id: int, *, paused: bool) -> bool:
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.cancelled:
                return False
            request.paused = paused
            return True

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: not if every request is paused, or waits for the slot of a paused one."""
        with self._lock:
            if self._cancelled or self._scheduler.has_work:
                return True
            return any(not request.paused for request in self._running)

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
            active = [request for request in self._running if not request.paused]
        if not active:
            return events
        logits = read_tokens(active, self._cache, self._model)
        slots = [request.slot for request in active]
        draws = self._sampler.sample(slots, logits, [request.samples for request in active])
        prompts = prompt_log_probabilities(active, logits)
        now = self._clock()
        with self._lock:
            tally = self._tally
            tally.num_steps += 1
            tally.num_rows += len(active)
            tally.step_seconds += now - start
            ended = []
            for request, sampled in zip(active, draws, strict=True):
                outcome = self._take(request, sampled, prompts.get(request.request_id, ()), now, events)
                if outcome is not None:
                    ended.append((request, *outcome))
            tally.num_tokens += sum(isinstance(event, TokenEvent) for event in events)
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
            request.slot = self._cache.allocate(request_id, self._first_state(request, events))
            request.admitted = now
            self._tally.num_admitted += 1
            self._tally.waited_seconds += now - request.submitted
            insort(self._running, request, key=attrgetter("slot"))
            self._fork(request)
            try:
                self._sampler.place(request.slot, request.request.params, request.tokens)
            except Exception as error:
                _log.exception("request %d cannot be sampled", request_id)
                message = f"sampling failed: {type(error).__name__}: {error}"
                self._end(request, FinishReason.ERROR, now, events, message)

    def _first_state(self, request: ActiveRequest, events: list[Event]) -> Tensor | None:
        """Return the state after the tokens of the prompt that were read before; None if there is none."""
        wants_prompt = request.request.params.prompt_logprobs is not None
        if request.fork is not None:
            fork, request.fork = request.fork, None
            request.num_read = request.num_cached = request.num_prompt - 1
            if wants_prompt:
                request.show_prompt(fork.sampled, events)
            return fork.state
        if wants_prompt:
            request.show_prompt([Sampled(request.tokens[0])], events)
        state = request.request.state
        if self._keeps(request) and not wants_prompt:
            hit = self._prefixes.longest(request.tokens)
            self._tally.prefix_hits += hit is not None
            self._tally.prefix_misses += hit is None
            if hit is not None:
                state, request.num_read, request.num_cached = hit.state, hit.num_tokens, hit.num_tokens
                self._tally.prefix_tokens += hit.num_tokens
        self._plan_prefix(request)
        return state

    def _take(
        self, request: ActiveRequest, sampled: Draw, prompt: Sequence[Sampled], now: float, events: list[Event]
    ) -> tuple[FinishReason, str] | None:
        """Add the tokens of a step; return reason and error if the request ends."""
        if request.cancelled:
            return None
        if prompt:
            if not all(math.isfinite(token.log_probability or 0) for token in prompt):
                return FinishReason.ERROR, "the model's logits are not finite"
            request.show_prompt(prompt, events)
        if request.num_read == request.next_kept:
            self._keep_prefix(request)
        self._fork(request)
        if isinstance(sampled, SamplingError):
            return FinishReason.ERROR, str(sampled)
        if sampled is None:
            return (FinishReason.LENGTH, "") if request.is_read else None
        reason = request.take(sampled, now, events)
        return None if reason is None else (reason, "")

    def _fork(self, request: ActiveRequest) -> None:
        """Let requests with the same prompt continue from the state before its last token."""
        if not request.followers or request.num_read != request.num_prompt - 1:
            return
        fork = Fork(self._cache.export_state(request.request_id), tuple(request.prompt_sampled))
        followers, request.followers, request.prompt_sampled = self._held(request), (), []
        for follower in followers:
            follower.fork = fork
            self._scheduler.release(follower.request_id)

    def _held(self, request: ActiveRequest) -> list[ActiveRequest]:
        """Return the requests that wait for this one to read their prompt."""
        return [one for one in request.followers if one.request_id in self._requests and not one.cancelled]

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
        if held := self._held(request):  # the first one reads the prompt instead
            held[0].followers = held[1:]
            self._scheduler.release(held[0].request_id)
        own_state = state.clone() if state is not None and options.keep_state else None
        end = request.finish(reason, now, error=error, state=own_state)
        self._tally.finish(end, len(request.output.tokens))
        events.append(end)

    def _keeps(self, request: ActiveRequest) -> bool:
        """Return whether the prefixes of a request are cached: not if it started from a state of the user."""
        return self._config.prefix_bytes > 0 and request.request.state is None


def prompt_log_probabilities(requests: Sequence[ActiveRequest], logits: Tensor) -> dict[int, list[Sampled]]:
    """Return the next token of each prompt whose log-probabilities are requested, by request id; logits [R, V]."""
    rows = [
        row
        for row, request in enumerate(requests)
        if request.request.params.prompt_logprobs is not None and request.num_read < request.num_prompt
    ]
    if not rows:
        return {}
    chosen = [requests[row] for row in rows]
    tokens = [request.tokens[request.num_read] for request in chosen]
    sampled = with_log_probabilities(tokens, logits[rows], [one.request.params.prompt_logprobs for one in chosen])
    return {request.request_id: [token] for request, token in zip(chosen, sampled, strict=True)}
