"""Connect the event loop of a server with the thread that runs its engine."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

from gflownet.rhn.server.answers import Answer, Choice
from gflownet.rhn.server.connections import Connections
from gflownet.rhn.server.errors import RequestError, from_value_error
from gflownet.rhn.server.metrics import Metrics, ResponseTally
from gflownet.rhn.server.requests import SamplingFields, Submission
from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.requests import Event, FinishEvent, Request
from gflownet.rhn.serving.scheduler import QueueFullError
from gflownet.rhn.text_codec import BYTES, TextCodec

_log = logging.getLogger(__name__)
_VALUE_NAMES = frozenset({*SamplingFields.model_fields, "prompt", "max_tokens"})


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
