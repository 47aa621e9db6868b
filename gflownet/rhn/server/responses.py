"""Responses with answers: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gflownet.rhn.server.answers import Answer
from gflownet.rhn.server.choices import joined, likeliest
from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.formats import AnswerFormat, usage_of
from gflownet.rhn.server.request_fields import Submission
from gflownet.rhn.server.session import fail_on_disconnect


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
