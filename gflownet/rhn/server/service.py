"""Connect the event loop of a server with the thread that runs its engine; answers are streams of pieces."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

from gflownet.rhn.server.choices import Choice, Piece
from gflownet.rhn.server.connections import Connections
from gflownet.rhn.server.errors import RequestError, from_value_error
from gflownet.rhn.server.metrics import Metrics, ResponseTally
from gflownet.rhn.server.requests import SamplingFields, Submission
from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.requests import Event, FinishEvent, PromptEvent, Request
from gflownet.rhn.serving.sampling import FinishReason
from gflownet.rhn.serving.scheduler import QueueFullError
from gflownet.rhn.text_codec import BYTES, TextCodec

_log = logging.getLogger(__name__)
_VALUE_NAMES = frozenset({*SamplingFields.model_fields, "prompt", "max_tokens"})
MAX_UNREAD = 128  # events of one answer; more pause it, until its client has read them


class Answer:
    """A stream of pieces, one or more choices per prompt. Used by the thread of the event loop only."""

    def __init__(self, choices: dict[int, Choice], num_prompt_tokens: int, service: Service) -> None:
        """`choices` by request id of the engine."""
        self.num_prompt_tokens = num_prompt_tokens
        self.is_paused = False
        self._choices, self._open, self._service = choices, dict(choices), service
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
        if len(self._events) >= MAX_UNREAD and not self.is_paused:
            self.is_paused = True
            self._service.pause(self._open)

    def fail(self, error: RequestError) -> None:
        """End the answer with an error."""
        self._failure = error
        self._changed.set()
        self.close()

    def close(self) -> None:
        """Cancel the unfinished choices."""
        self._resume()
        self._service.cancel(self._open)

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
            self._resume()
            if self._failure is not None:
                raise self._failure
            if pieces:
                yield pieces

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._service.resume(self._open)

    def _read(self, events: Sequence[Event]) -> list[Piece]:
        """Return the pieces of some events, one per choice."""
        pieces: list[Piece | None] = []
        changed: dict[int, Choice] = {}
        for event in events:
            choice = self._choices[event.request_id]
            if isinstance(event, FinishEvent):
                changed.pop(event.request_id, None)
                del self._open[event.request_id]
                pieces.append(self._last_piece(choice, event))
                continue
            for sampled in event.sampled if isinstance(event, PromptEvent) else (event.sampled,):
                choice.add(sampled)
            changed[event.request_id] = choice
        pieces += [choice.piece() for choice in changed.values()]
        return [piece for piece in pieces if piece is not None]

    def _last_piece(self, choice: Choice, event: FinishEvent) -> Piece | None:
        if event.finish_reason is FinishReason.ERROR:
            self._failure = self._failure or RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, event.error)
        return choice.piece(event.finish_reason, cut=event.cut)


class Service:
    """Submit requests to an engine, run it in a thread, and pass its events to the answers.

    Every method except the constructor is called by the thread of the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        on_failure: Callable[[], None],
        codec: TextCodec = BYTES,
        connections: Connections | None = None,
    ) -> None:
        """Serve an engine under a model name; `on_failure` is called if the engine raises."""
        self._engine, self._name, self._on_failure, self.codec = engine, name, on_failure, codec
        self.card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "gflownet"}
        self._answers: dict[int, Answer] = {}  # unfinished answers by request id of the engine
        self._closed: RequestError | None = None  # the response to new requests after the end of service
        self.failed = False
        self._idle = asyncio.Event()
        self.responses = ResponseTally()
        self.metrics = Metrics(engine, self.responses, connections or Connections())
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
            message = f"model: expected {self._name!r}, got {name!r:.80}"
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def submit(self, submission: Submission) -> Answer:
        """Queue prompts, all or none.

        Raises:
            RequestError: service has ended, the queue is full, or the request is invalid.
        """
        self.check_open()
        choices: dict[int, Choice] = {}
        refused: RequestError | None = None
        try:
            for index in range(len(submission.prompts)):
                choices |= self._submit_prompt(submission, index)
        except QueueFullError as error:
            refused = RequestError(HTTPStatus.TOO_MANY_REQUESTS, f"{error}; try again later", retry=True)
        except ValueError as error:
            refused = from_value_error(error, _VALUE_NAMES)
        reply = Answer(choices, sum(map(len, submission.prompts)), self)
        if choices:
            self._answers |= dict.fromkeys(choices, reply)
            self._idle.clear()
            self._wake.set()
        if refused is not None:
            reply.close()
            raise refused
        return reply

    def _submit_prompt(self, submission: Submission, index: int) -> dict[int, Choice]:
        """Queue the answers to one prompt; return their choices by request id."""
        prompt, params = submission.prompts[index], submission.params
        seeds = submission.seeds(index)
        request_ids = self._engine.submit_many(Request(prompt, replace(params, seed=seeds[0])), seeds)
        with_prompt = params.prompt_logprobs is not None  # the engine sends the prompt's tokens
        prefix = self.codec.decode(prompt) if submission.echo and not with_prompt else ""
        first, num_prompt = index * len(seeds), len(prompt) if with_prompt else 0
        return {
            request_id: Choice(first + number, prefix, codec=self.codec, num_prompt=num_prompt)
            for number, request_id in enumerate(request_ids)
        }

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests."""
        for request_id in request_ids:
            self._engine.cancel(request_id)
        self._wake.set()

    def pause(self, request_ids: Iterable[int]) -> None:
        """Stop requests, which keep their slots."""
        self.responses.num_pauses += 1
        self.responses.num_paused += 1
        for request_id in request_ids:
            self._engine.pause(request_id)

    def resume(self, request_ids: Iterable[int]) -> None:
        """Continue paused requests."""
        self.responses.num_paused -= 1
        for request_id in request_ids:
            self._engine.resume(request_id)
        self._wake.set()
