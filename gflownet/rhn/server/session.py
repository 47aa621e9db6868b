"""Life of one request: its slots are free when it ends, and its body is bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.service import Answer, Service

STALLED_SECONDS = 5.0  # after the time limit, before the connection of a client that does not read is closed
CLIENT_CLOSED = 499  # status in the metrics for a request that the client gave up, as in nginx


class Session:
    """ASGI middleware that frees the slots of a request when it ends: answered, closed, too slow or failed."""

    def __init__(self, app: ASGIApp, *, service: Service, seconds: float) -> None:
        """Wrap an application; `seconds` is the time limit of a request, from the first byte to the last."""
        self._app, self._service, self._seconds = app, service, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status = CLIENT_CLOSED

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        answers: list[Answer] = []
        scope["state"] = {**scope.get("state", {}), "answers": answers}
        try:
            # If the client does not read, the response stays incomplete and the server closes the connection.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._app(scope, receive, watched)
        finally:
            for reply in answers:
                reply.close()
            self._service.responses.by_status[status] += 1
        return None


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body, with at most `max_body` bytes in memory.

    Raises:
        RequestError: the body is compressed, too large, or takes too long, or the client closes the connection.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = f"Content-Encoding: expected identity, got {encoding!r:.80}"
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
    max_bytes, seconds = limits.max_body, limits.body_timeout
    too_large = RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: expected at most {max_bytes} bytes, got more")
    if int(request.headers.get("content-length", 0)) > max_bytes:  # checked by the parser
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        message = f"body: expected it within {seconds:g} seconds"
        raise RequestError(HTTPStatus.REQUEST_TIMEOUT, message) from None
    except ClientDisconnect:
        raise RequestError(CLIENT_CLOSED, "the client closed the connection") from None
    return bytes(body)


async def fail_on_disconnect(request: Request, reply: Answer) -> None:
    """Stop sampling an answer when the client closes the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    reply.fail(RequestError(CLIENT_CLOSED, "the client closed the connection"))
