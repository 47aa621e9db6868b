"""Between the event loop of a server and the thread in which its engine steps."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest

from gflownet.rhn.bytes_text import decode
from gflownet.rhn.server.answers import Choice, Piece
from gflownet.rhn.server.metrics import ServingCollector
from gflownet.rhn.server.schema import RequestError, from_value_error
from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.requests import Event, FinishEvent, Request, TokenEvent
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.serving.scheduler import QueueFullError
from gflownet.rhn.serving.stopping import FinishReason

_log = logging.getLogger(__name__)


class Answer:
    """The answer to a client, piece by piece: one choice per prompt. For the event loop's thread alone."""

    def __init__(self, choices: dict[int, Choice], num_prompt_tokens: int, cancel: Callable[[int], None]) -> None:
        """`choices` are by the number that the engine gave the prompt."""
        self.num_prompt_tokens = num_prompt_tokens
        self._choices, self._open, self._cancel = choices, dict(choices), cancel
        self._events: list[Event] = []
        self._failure: RequestError | None = None
        self._changed = asyncio.Event()

    @property
    def num_tokens(self) -> int:
        """Of all choices."""
        return sum(choice.num_tokens for choice in self._choices.values())

    def tell(self, event: Event) -> None:
        """Take an event of the engine."""
        self._events.append(event)
        self._changed.set()

    def fail(self, error: RequestError) -> None:
        """End the answer with an error."""
        self._failure = error
        self._changed.set()
        self.close()

    def close(self) -> None:
        """Cancel the choices that are not finished."""
        for request_id in self._open:
            self._cancel(request_id)

    async def pieces(self, deadline: float) -> AsyncIterator[list[Piece]]:
        """Yield new pieces whenever there are some, until every choice is finished.

        Raises:
            RequestError: the loop's clock passes `deadline`, or the engine cannot go on.
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
        """Return the pieces of some events: one for each choice in them."""
        pieces: list[Piece | None] = []
        touched: dict[int, Choice] = {}
        for event in events:
            choice = self._choices[event.request_id]
            if isinstance(event, TokenEvent):
                choice.add(event.sampled)
                touched[event.request_id] = choice
                continue
            touched.pop(event.request_id, None)
            del self._open[event.request_id]
            pieces.append(self._last_piece(choice, event))
        pieces += [choice.piece() for choice in touched.values()]
        return [piece for piece in pieces if piece is not None]

    def _last_piece(self, choice: Choice, event: FinishEvent) -> Piece | None:
        if event.finish_reason is FinishReason.ERROR:
            self._failure = self._failure or RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, event.error)
        return choice.piece(event.finish_reason)


class Service:
    """One model: submit requests, step the engine in a thread, and pass each event to its answer.

    All but the constructor is called by the event loop's thread.
    """

    def __init__(self, engine: Engine, name: str, *, on_failure: Callable[[], None]) -> None:
        """Serve an engine under a name; `on_failure` is called when the engine raises."""
        self._engine, self._name, self._on_failure = engine, name, on_failure
        self.card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "gflownet"}
        self._answers: dict[int, Answer] = {}  # by the engine's numbers, those that are not finished
        self._closed: RequestError | None = None  # why nothing is taken any more
        self.failed = False
        self._idle = asyncio.Event()
        self._responses: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(ServingCollector(engine, self._responses))
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._step, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
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
                        self._loop.call_soon_threadsafe(self._tell, events)
        except Exception:
            _log.exception("the engine failed")
            self._loop.call_soon_threadsafe(self._fail)

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self._answers[event.request_id].tell(event)
            if isinstance(event, FinishEvent):
                del self._answers[event.request_id]
        if not self._answers:
            self._idle.set()

    def _fail(self) -> None:
        self.failed = True
        self._end_all(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the model failed; the server ends"))
        self._on_failure()

    async def drain(self, seconds: float) -> None:
        """Take no more requests, wait until nothing runs, and after so many seconds end the running requests."""
        self._closed = RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is being stopped", retry=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._end_all(self._closed)

    def _end_all(self, error: RequestError) -> None:
        self._closed = error
        for answer in set(self._answers.values()):
            answer.fail(error)

    def check_open(self) -> None:
        """Raise RequestError if requests are not taken any more."""
        if self._closed is not None:
            raise self._closed

    def check_model(self, name: str) -> None:
        """Raise RequestError if this is another model's name."""
        if name != self._name:
            message = f"model: expected {self._name!r}, got {name!r}"
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def submit(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, echo: bool) -> Answer:
        """Put prompts into the queue, all of them or none.

        Raises:
            RequestError: nothing is taken any more, the queue is full, or the engine refuses the request.
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
        answer = Answer(choices, sum(map(len, prompts)), self._cancel)
        if choices:
            self._answers |= dict.fromkeys(choices, answer)
            self._idle.clear()
            self._wake.set()
        if refused is not None:
            answer.close()
            raise refused
        return answer

    def _cancel(self, request_id: int) -> None:
        self._engine.cancel(request_id)
        self._wake.set()

    def count_response(self, status: int) -> None:
        """Count a response for the metrics."""
        self._responses[status] += 1

    def metrics(self) -> bytes:
        """Return the figures of this moment in Prometheus' text format."""
        return generate_latest(self._registry)
