"""Responses with answers in OpenAI's formats: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gflownet.rhn.server.choices import Piece, joined, likeliest
from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.requests import Submission
from gflownet.rhn.server.service import Answer
from gflownet.rhn.server.session import fail_on_disconnect
from gflownet.rhn.serving.sampling import Sampled
from gflownet.rhn.text_codec import TextCodec

LEAST_LOG_PROBABILITY = -9999.0  # as OpenAI; JSON has no infinity
_CHUNK = "chat.completion.chunk"
_ESCAPED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")  # name of bytes that are no characters


@dataclass(frozen=True)
class AnswerFormat(ABC):
    """Format of the messages of one answer."""

    prefix: ClassVar[str]  # of the id

    model: str
    codec: TextCodec
    has_logprobs: bool
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        """Choose an id."""
        object.__setattr__(self, "id", f"{self.prefix}-{uuid.uuid4().hex}")

    @abstractmethod
    def whole(self, pieces: Sequence[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """Return a whole answer, with one piece for each choice."""

    def opening(self, num_choices: int, **more: Any) -> Iterator[dict[str, Any]]:
        """Yield the events before the first piece, by default none."""
        yield from ()

    @abstractmethod
    def event(self, pieces: Sequence[Piece], **more: Any) -> dict[str, Any]:
        """Return an event of a stream, with some pieces."""

    def _message(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": choices, **more}


@dataclass(frozen=True)
class CompletionFormat(AnswerFormat):
    """Format of the completions endpoint."""

    prefix = "cmpl"

    def whole(self, pieces: Sequence[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """See AnswerFormat."""
        return self.event(pieces, usage=usage)

    def event(self, pieces: Sequence[Piece], **more: Any) -> dict[str, Any]:
        """See AnswerFormat."""
        return self._message("text_completion", [self._choice(piece) for piece in pieces], **more)

    def _choice(self, piece: Piece) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self.has_logprobs else None
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        name = self.codec.token_name
        return {
            "tokens": [name(sampled.token) for sampled in piece.tokens],
            "token_logprobs": [_finite(sampled.log_probability) for sampled in piece.tokens],
            # The sampled token is among them, also if others are likelier: up to logprobs + 1.
            "top_logprobs": [
                None
                if sampled.log_probability is None
                else {name(token): _finite(value) for token, value in _with_sampled(sampled)}
                for sampled in piece.tokens
            ],
            "text_offset": list(piece.offsets),
        }


@dataclass(frozen=True)
class ChatFormat(AnswerFormat):
    """Format of the chat endpoint."""

    prefix = "chatcmpl"

    def whole(self, pieces: Sequence[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """See AnswerFormat."""
        choices = [
            {
                "index": piece.index,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._logprobs(piece),
                "finish_reason": piece.finish_reason,
            }
            for piece in pieces
        ]
        return self._message("chat.completion", choices, usage=usage)

    def opening(self, num_choices: int, **more: Any) -> Iterator[dict[str, Any]]:
        """Yield the role of each choice."""
        for index in range(num_choices):
            yield self._message(_CHUNK, [_delta(index, {"role": "assistant", "content": ""})], **more)

    def event(self, pieces: Sequence[Piece], **more: Any) -> dict[str, Any]:
        """See AnswerFormat."""
        choices = [
            _delta(
                piece.index,
                {"content": piece.text} if piece.text or piece.tokens else {},
                self._logprobs(piece),
                piece.finish_reason,
            )
            for piece in pieces
        ]
        return self._message(_CHUNK, choices, **more)

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        content = [
            {
                **self._entry(sampled.token, sampled.log_probability),
                "top_logprobs": [self._entry(*pair) for pair in sampled.likeliest],
            }
            for sampled in piece.tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, log_probability: float | None) -> dict[str, Any]:
        name = self.codec.token_name(token)
        return {"token": name, "logprob": _finite(log_probability), "bytes": _bytes_of(name)}


def usage_of(num_prompt_tokens: int, num_tokens: int) -> dict[str, Any]:
    """Return the token counts in OpenAI's format."""
    total = num_prompt_tokens + num_tokens
    return {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens, "total_tokens": total}


def _delta(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _with_sampled(sampled: Sampled) -> list[tuple[int, float]]:
    """Return the likeliest tokens, and the sampled one if it is not among them."""
    assert sampled.log_probability is not None
    if any(token == sampled.token for token, _ in sampled.likeliest):
        return list(sampled.likeliest)
    return [*sampled.likeliest, (sampled.token, sampled.log_probability)]


def _finite(log_probability: float | None) -> float | None:
    return None if log_probability is None else max(log_probability, LEAST_LOG_PROBABILITY)


def _bytes_of(name: str) -> list[int] | None:
    """Return the bytes of a token by its name; None for a part of a character whose bytes are not known."""
    if _ESCAPED.fullmatch(name):
        return list(bytes.fromhex(name.removeprefix("bytes:").replace("\\x", "")))
    return None if "\N{REPLACEMENT CHARACTER}" in name else list(name.encode(errors="replace"))


async def whole(
    request: Request, reply: Answer, form: AnswerFormat, submission: Submission, deadline: float
) -> Response:
    """Return the whole answer; stop sampling if the client closes the connection."""
    watcher = asyncio.create_task(fail_on_disconnect(request, reply))
    try:
        pieces = joined([piece async for pieces in reply.pieces(deadline) for piece in pieces])
    finally:
        watcher.cancel()
    num_answers, num_choices = submission.num_answers, submission.num_choices
    if num_answers > num_choices:
        pieces = likeliest(pieces, num_answers=num_answers, num_choices=num_choices)
    return JSONResponse(form.whole(pieces, usage_of(reply.num_prompt_tokens, reply.num_tokens)))


def stream(
    reply: Answer, form: AnswerFormat, submission: Submission, deadline: float, *, includes_usage: bool
) -> Response:
    """Return the answer as server-sent events; an error is the last event."""
    num_choices = len(submission.prompts) * submission.num_choices
    events = _events(reply, form, num_choices, deadline, includes_usage=includes_usage)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(
    reply: Answer, form: AnswerFormat, num_choices: int, deadline: float, *, includes_usage: bool
) -> AsyncIterator[str]:
    no_usage = {"usage": None} if includes_usage else {}
    for message in form.opening(num_choices, **no_usage):
        yield _event(message)
    try:
        async for pieces in reply.pieces(deadline):
            yield "".join(_event(form.event([piece], **no_usage)) for piece in pieces)
    except RequestError as error:
        yield _event(error.body())
        return
    if includes_usage:
        yield _event(form.event([], usage=usage_of(reply.num_prompt_tokens, reply.num_tokens)))
    yield "data: [DONE]\n\n"


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"
