"""Responses with answers in OpenAI's formats: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.service import Answer, Piece
from gflownet.rhn.serving.sampling import Sampled
from gflownet.rhn.text_codec import TextCodec

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


async def whole(request: Request, answer: Answer, form: AnswerFormat, deadline: float) -> Response:
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
