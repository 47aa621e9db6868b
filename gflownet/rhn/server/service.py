"""Connect the event loop of a server with the thread that runs its engine; metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from gflownet.rhn.bytes_text import decode
from gflownet.rhn.server.messages import Choice, Piece, RequestError, from_value_error
from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.requests import Event, FinishEvent, Request, TokenEvent
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from gflownet.rhn.serving.scheduler import QueueFullError

_log = logging.getLogger(__name__)


class Answer:
    """A stream of pieces, one choice per prompt. Used by the thread of the event loop only."""

    def __init__(self, choices: dict[int, Choice], num_prompt_tokens: int, cancel: Callable[[int], None]) -> None:
        """`choices` by request id of the engine."""
        self.num_prompt_tokens = num_prompt_tokens
        self._choices, self._open, self._cancel = choices, dict(choices), cancel
        self._events: list[Event] = []
        self._failure: RequestError | None = None
        self._changed = asyncio.Event()

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens of all choices."""
        return sum(choice.num_tokens for choice in self._choices.values())

    def add(self, event: Event) -> None:
        """Add an event of the engine."""
        self._events.append(event)
        self._changed.set()

    def fail(self, error: RequestError) -> None:
        """End the answer with an error."""
        self._failure = error
        self._changed.set()
        self.close()

    def close(self) -> None:
        """Cancel the unfinished choices."""
        for request_id in self._open:
            self._cancel(request_id)

    async def pieces(self, deadline: float) -> AsyncIterator[list[Piece]]:
        """Yield new pieces until every choice is finished.

        Raises:
            RequestError: the clock of the event loop passes `deadline`, or the engine fails.
        """
        while self._open:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                self.fail(RequestError(HTTPStatus.GATEWAY_TIMEOUT, "the answer took longer than the server allows"))
            self._changed.clear()
            events, self._events = self._events, []
            pieces = self._read(events)
            if self._failure is not None:
                raise self._failure
            if pieces:
                yield pieces

    def _read(self, events: Sequence[Event]) -> list[Piece]:
        """Return the pieces of some events, one per choice."""
        pieces: list[Piece | None] = []
        changed: dict[int, Choice] = {}
        for event in events:
            choice = self._choices[event.request_id]
            if isinstance(event, TokenEvent):
                choice.add(event.sampled)
                changed[event.request_id] = choice
            if not isinstance(event, FinishEvent):
                continue
            changed.pop(event.request_id, None)
            del self._open[event.request_id]
            pieces.append(self._last_piece(choice, event))
        pieces += [choice.piece() for choice in changed.values()]
        return [piece for piece in pieces if piece is not None]

    def _last_piece(self, choice: Choice, event: FinishEvent) -> Piece | None:
        if event.finish_reason is FinishReason.ERROR:
            self._failure = self._failure or RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, event.error)
        return choice.piece(event.finish_reason)


class Service:
    """Submit requests to an engine, run it in a thread, and pass its events to the answers.

    Every method except the constructor is called by the thread of the event loop.
    """

    def __init__(self, engine: Engine, name: str, *, on_failure: Callable[[], None]) -> None:
        """Serve an engine under a model name; `on_failure` is called if the engine raises."""
        self._engine, self._name, self._on_failure = engine, name, on_failure
        self.card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "gflownet"}
        self._answers: dict[int, Answer] = {}  # unfinished answers by request id of the engine
        self._closed: RequestError | None = None  # the response to new requests after the end of service
        self.failed = False
        self._idle = asyncio.Event()
        self._responses: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(ServingCollector(engine, self._responses))
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._step, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread of the engine."""
        self._loop = asyncio.get_running_loop()
        self._idle.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _step(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait()
                self._wake.clear()
                while self._engine.has_work and not self._stopping:
                    events = self._engine.step()
                    if events:
                        self._loop.call_soon_threadsafe(self._dispatch, events)
        except Exception:
            _log.exception("the engine failed")
            self._loop.call_soon_threadsafe(self._fail)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            self._answers[event.request_id].add(event)
            if isinstance(event, FinishEvent):
                del self._answers[event.request_id]
        if not self._answers:
            self._idle.set()

    def _fail(self) -> None:
        self.failed = True
        self._end_all(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the model failed; the server ends"))
        self._on_failure()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and end running ones after `seconds` at most."""
        self._closed = RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is being stopped", retry=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._end_all(self._closed)

    def _end_all(self, error: RequestError) -> None:
        self._closed = error
        for reply in set(self._answers.values()):
            reply.fail(error)

    def check_open(self) -> None:
        """Raise RequestError after the end of service."""
        if self._closed is not None:
            raise self._closed

    def check_model(self, name: str) -> None:
        """Raise RequestError for the name of another model."""
        if name != self._name:
            message = f"model: expected {self._name!r}, got {name!r}"
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def submit(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, echo: bool) -> Answer:
        """Queue prompts, all or none.

        Raises:
            RequestError: service has ended, the queue is full, or the request is invalid.
        """
        self.check_open()
        choices: dict[int, Choice] = {}
        refused: RequestError | None = None
        try:
            for index, (prompt, of_choice) in enumerate(zip(prompts, params, strict=True)):
                choice = Choice(index, decode(prompt) if echo else "")
                choices[self._engine.submit(Request(prompt, of_choice))] = choice
        except QueueFullError as error:
            refused = RequestError(HTTPStatus.TOO_MANY_REQUESTS, f"{error}; try again later", retry=True)
        except ValueError as error:
            refused = from_value_error(error)
        reply = Answer(choices, sum(map(len, prompts)), self._cancel)
        if choices:
            self._answers |= dict.fromkeys(choices, reply)
            self._idle.clear()
            self._wake.set()
        if refused is not None:
            reply.close()
            raise refused
        return reply

    def _cancel(self, request_id: int) -> None:
        self._engine.cancel(request_id)
        self._wake.set()

    def count_response(self, status: int) -> None:
        """Count a response for the metrics."""
        self._responses[status] += 1

    def metrics(self) -> bytes:
        """Return the present metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class ServingCollector(Collector):
    """Metrics of the engine, with Prometheus' names and units, read at every scrape."""

    def __init__(self, engine: Engine, responses: Mapping[int, int]) -> None:
        """`responses`: a live mapping from status to number of responses."""
        self._engine, self._responses = engine, responses

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._engine.metrics()
        sums = now.sums
        finished = CounterMetricFamily("gflownet_requests_finished", "Finished prompts by reason", labels=["reason"])
        for reason in FinishReason:
            finished.add_metric([reason], sums.finished[reason])
        responses = CounterMetricFamily("gflownet_http_responses", "Responses by status", labels=["status"])
        for status, count in sorted(self._responses.items()):
            responses.add_metric([str(status)], count)
        yield from (finished, responses)
        for name, text, value in (
            ("requests_waiting", "Prompts in the queue", now.num_waiting),
            ("requests_running", "Prompts that hold a slot", now.num_running),
            ("prefix_states", "Cached states", now.prefix_entries),
            ("prefix_bytes", "Size of the cached states", now.prefix_bytes),
        ):
            yield GaugeMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, value in (
            ("steps", "Steps of the engine", sums.num_steps),
            ("step_rows", "Tokens read, of prompts and answers", sums.num_rows),
            ("step_seconds", "Time in steps", sums.step_seconds),
            ("tokens", "Tokens of answers", sums.num_tokens),
            ("prefix_hits", "Prompts that started from a cached state", sums.prefix_hits),
            ("prefix_misses", "Prompts that did not", sums.prefix_misses),
            ("prefix_tokens", "Tokens of prompts skipped by cached states", sums.prefix_tokens),
            ("prefix_evictions", "Evicted cached states", now.prefix_evicted),
        ):
            yield CounterMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, number, seconds in (
            ("queue", "From arrival to a slot", sums.num_admitted, sums.waited_seconds),
            ("first_token", "From arrival to the first token", sums.num_first_tokens, sums.first_token_seconds),
            ("next_token", "Between tokens of one answer", sums.num_later_tokens, sums.later_token_seconds),
        ):
            yield SummaryMetricFamily(f"gflownet_{name}_seconds", text, count_value=number, sum_value=seconds)
