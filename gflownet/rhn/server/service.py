"""Connect the event loop of a server with the thread that runs its engine; answers in OpenAI's formats.

An answer is a stream of pieces, sent whole or as server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from operator import attrgetter
from typing import Any, ClassVar

from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gflownet.rhn.server.requests import RequestError, Submission
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


LEAST_LOG_PROBABILITY = -9999.0  # as OpenAI; JSON has no infinity
_ESCAPED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")  # name of bytes that are no characters


@dataclass(frozen=True)
class AnswerFormat(ABC):
    """Format of the messages of one answer."""

    prefix: ClassVar[str]  # of the id
    kinds: ClassVar[tuple[str, str]]  # values of `object`: whole, event of a stream

    model: str
    codec: TextCodec
    has_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @abstractmethod
    def choice(self, piece: Piece, *, is_event: bool) -> dict[str, Any]:
        """Return a whole choice or, as an event of a stream, the next piece of one."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the first event's choice, by default none."""
        return None

    def message(self, choices: Sequence[dict[str, Any]], *, is_event: bool, **more: Any) -> dict[str, Any]:
        """Return a message with some choices."""
        head = {"id": f"{self.prefix}-{self.number}", "object": self.kinds[is_event], "created": self.created}
        return {**head, "model": self.model, "choices": choices, **more}


@dataclass(frozen=True)
class CompletionFormat(AnswerFormat):
    """Format of the completions endpoint."""

    prefix = "cmpl"
    kinds = ("text_completion", "text_completion")

    def choice(self, piece: Piece, *, is_event: bool) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self.has_logprobs else None
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        name = self.codec.token_name
        own = [(sampled.token, sampled.log_probability) for sampled in piece.tokens]
        return {
            "tokens": [name(token) for token, _ in own],
            "token_logprobs": [_finite(value) for _, value in own],
            # The sampled token is among them, also if others are likelier: up to logprobs + 1.
            "top_logprobs": [
                {name(token): _finite(value) for token, value in (*sampled.likeliest, pair)}
                for sampled, pair in zip(piece.tokens, own, strict=True)
            ],
        }


@dataclass(frozen=True)
class ChatFormat(AnswerFormat):
    """Format of the chat endpoint."""

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")

    def opening(self, index: int) -> dict[str, Any]:
        """Return the role of a choice."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def choice(self, piece: Piece, *, is_event: bool) -> dict[str, Any]:
        content = {"delta": {"content": piece.text} if piece.text or piece.tokens else {}}
        if not is_event:
            content = {"message": {"role": "assistant", "content": piece.text, "refusal": None}}
        entries = [
            {**self._entry(one), "top_logprobs": [self._entry(Sampled(*pair)) for pair in one.likeliest]}
            for one in piece.tokens
        ]
        logprobs = {"content": entries, "refusal": None} if self.has_logprobs else None
        return {"index": piece.index, **content, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _entry(self, sampled: Sampled) -> dict[str, Any]:
        name = self.codec.token_name(sampled.token)
        return {"token": name, "logprob": _finite(sampled.log_probability), "bytes": _bytes_of(name)}


def _finite(log_probability: float | None) -> float | None:
    return None if log_probability is None else max(log_probability, LEAST_LOG_PROBABILITY)


def _bytes_of(name: str) -> list[int] | None:
    """Return the bytes of a token by its name; None for a part of a character whose bytes are not known."""
    if _ESCAPED.fullmatch(name):
        return list(bytes.fromhex(name.removeprefix("bytes:").replace("\\x", "")))
    return None if "\N{REPLACEMENT CHARACTER}" in name else list(name.encode(errors="replace"))


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the token counts in OpenAI's format."""
    read, sampled = sum(map(len, answer.submission.prompts)), answer.num_tokens
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


async def whole(request: HTTPRequest, answer: Answer, form: AnswerFormat, deadline: float) -> Response:
    """Return the whole answer; stop sampling if the client closes the connection."""

    async def close_on_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        answer.close()

    watcher = asyncio.create_task(close_on_disconnect())
    try:
        pieces = [piece async for finished in answer.pieces(deadline) for piece in finished]
    finally:
        watcher.cancel()
        answer.close()
    choices = [form.choice(piece, is_event=False) for piece in sorted(pieces, key=attrgetter("index"))]
    return JSONResponse(form.message(choices, is_event=False, usage=_usage(answer)))


class AnswerStream(StreamingResponse):
    """An answer as server-sent events; an error is the last one. The slots are free when the client closes it."""

    def __init__(self, answer: Answer, form: AnswerFormat, deadline: float, *, includes_usage: bool) -> None:
        """`includes_usage`: whether the last event has the token counts."""
        events = _events(answer, form, deadline, includes_usage=includes_usage)
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _events(answer: Answer, form: AnswerFormat, deadline: float, *, includes_usage: bool) -> AsyncIterator[str]:
    no_usage = {"usage": None} if includes_usage else {}
    for choice in filter(None, map(form.opening, range(answer.num_choices))):
        yield _event(form.message([choice], is_event=True, **no_usage))
    try:
        async for pieces in answer.pieces(deadline):
            for piece in pieces:
                yield _event(form.message([form.choice(piece, is_event=True)], is_event=True, **no_usage))
    except RequestError as error:
        yield _event(error.body())
        return
    if includes_usage:
        yield _event(form.message([], is_event=True, usage=_usage(answer)))
    yield "data: [DONE]\n\n"


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"
