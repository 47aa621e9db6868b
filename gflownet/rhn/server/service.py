"""Connect the event loop of a server with the thread that runs its engine; answers are streams of pieces."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.requests import Submission
from gflownet.rhn.serving.engine import Engine, QueueFullError
from gflownet.rhn.serving.requests import Event, FinishEvent, Request
from gflownet.rhn.serving.sampling import FinishReason, Sampled
from gflownet.rhn.text_codec import BYTES, TextCodec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """The next part of one choice."""

    index: int  # of the choice
    text: str
    tokens: tuple[Sampled, ...]
    finish_reason: str | None  # of the last piece


class Choice:
    """Text of one choice from its tokens."""

    def __init__(self, index: int, prefix: str = "", *, codec: TextCodec = BYTES) -> None:
        """Start a choice with the text `prefix`."""
        self.index, self.num_tokens = index, 0
        self._decoder, self._unsent = codec.stream(), prefix
        self._tokens: list[Sampled] = []

    def add(self, token: Sampled) -> None:
        """Add a token."""
        self._unsent += self._decoder.text([token.token])
        self._tokens.append(token)
        self.num_tokens += 1

    def piece(self, finish_reason: str | None = None, *, cut: int = 0) -> Piece | None:
        """Return the new text since the last piece, whole characters only; None if there is none.

        With `finish_reason`, return the last piece, with any incomplete character, without the last `cut` characters.
        """
        if finish_reason is not None:
            self._unsent = (self._unsent + self._decoder.rest())[: -cut or None]
        elif not self._unsent:
            return None
        piece = Piece(self.index, self._unsent, tuple(self._tokens), finish_reason)
        self._unsent, self._tokens = "", []
        return piece


class Answer:
    """A stream of pieces, one or more choices per prompt. Used by the thread of the event loop only."""

    def __init__(self, choices: dict[int, Choice], submission: Submission, service: Service) -> None:
        """`choices` by request id of the engine."""
        self.submission, self.num_choices = submission, len(choices)
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

    def fail(self, error: RequestError) -> None:
        """End the answer with an error."""
        self._failure = error
        self._changed.set()
        self.close()

    def close(self) -> None:
        """Cancel the unfinished choices."""
        self._service.cancel(self._open)

    async def pieces(self, deadline: float) -> AsyncIterator[list[Piece]]:
        """Yield new pieces until every choice is finished; without `stream`, one piece for each choice.

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
            if not isinstance(event, FinishEvent):
                choice.add(event.sampled)
                changed[event.request_id] = choice
                continue
            changed.pop(event.request_id, None)
            del self._open[event.request_id]
            if event.finish_reason is FinishReason.ERROR:
                self._failure = self._failure or RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, event.error)
            pieces.append(choice.piece(event.finish_reason, cut=event.cut))
        if self.submission.stream:
            pieces += [choice.piece() for choice in changed.values()]
        return [piece for piece in pieces if piece is not None]


class Service:
    """Submit requests to an engine, run it in a thread, and pass its events to the answers.

    Every method except the constructor is called by the thread of the event loop.
    """

    def __init__(self, engine: Engine, name: str, *, on_failure: Callable[[], None], codec: TextCodec = BYTES) -> None:
        """Serve an engine under a model name; `on_failure` is called if the engine raises."""
        self.engine, self.codec, self._name, self._on_failure = engine, codec, name, on_failure
        self.card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "gflownet"}
        self._answers: dict[int, Answer] = {}  # unfinished answers by request id of the engine
        self._failure: RequestError | None = None  # the response to all requests after it
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._step, name="engine", daemon=True)

    @property
    def failed(self) -> bool:
        """Whether the engine raised."""
        return self._failure is not None

    def start(self) -> None:
        """Start the thread of the engine."""
        self._loop = asyncio.get_running_loop()
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
                while self.engine.has_work and not self._stopping:
                    if events := self.engine.step():
                        self._loop.call_soon_threadsafe(self._dispatch, events)
        except Exception:
            _log.exception("the engine failed")
            self._loop.call_soon_threadsafe(self._fail)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            self._answers[event.request_id].add(event)
            if isinstance(event, FinishEvent):
                del self._answers[event.request_id]

    def _fail(self) -> None:
        self._failure = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the model failed; the server ends")
        for answer in set(self._answers.values()):
            answer.fail(self._failure)
        self._on_failure()

    def check_open(self) -> None:
        """Raise RequestError after a failure of the engine."""
        if self._failure is not None:
            raise self._failure

    def check_model(self, name: str) -> None:
        """Raise RequestError for the name of another model."""
        if name != self._name:
            message = f"model: expected {self._name!r}, got {name!r:.80}"
            raise RequestError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def submit(self, submission: Submission) -> Answer:
        """Queue prompts, all or none.

        Raises:
            RequestError: the engine has failed.
            QueueFullError: the queue is full.
            ValueError: the request is invalid.
        """
        self.check_open()
        choices: dict[int, Choice] = {}
        try:
            prefixes = submission.echoes or [""] * len(submission.prompts)
            for prompt, prefix in zip(submission.prompts, prefixes, strict=True):
                for _ in range(submission.num_answers):
                    params = replace(submission.params, seed=submission.seed(len(choices)))
                    choice = Choice(len(choices), prefix, codec=self.codec)
                    choices[self.engine.submit(Request(prompt, params))] = choice
        except (QueueFullError, ValueError):
            self.cancel(choices)
            raise
        finally:
            answer = Answer(choices, submission, self)
            self._answers |= dict.fromkeys(choices, answer)
        self._wake.set()
        return answer

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests."""
        for request_id in request_ids:
            self.engine.cancel(request_id)
        self._wake.set()
