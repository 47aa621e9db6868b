"""HTTP application: routes, limits, streams, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gflownet.rhn.server.messages import (
    CompletionRequest,
    Envelope,
    RequestError,
    bad_request,
    joined,
    parse_request,
    usage,
)
from gflownet.rhn.server.origins import OriginCheck, Origins
from gflownet.rhn.server.service import Answer, Service

BODY_SECONDS = 30.0  # to receive a body
STALLED_SECONDS = 5.0  # after the time limit, before the connection of a client that does not read is closed
CLIENT_CLOSED = 499  # status in the metrics for a request that the client gave up, as in nginx


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    max_body: int  # bytes
    max_prompt: int  # tokens
    max_prompts: int  # in one request
    seconds: float  # until its last token
    origins: Origins = field(default_factory=Origins)  # allowed Host and Origin headers


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
            self._service.count_response(status)
        return None


def create_app(service: Service, limits: Limits, *, on_start: Callable[[], None]) -> FastAPI:
    """Return the application; `on_start` is called in the event loop before the first request."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        on_start()
        yield
        service.stop()

    app = FastAPI(title="gflownet language model", lifespan=lifespan, docs_url=None, redoc_url=None)
    seconds = BODY_SECONDS + limits.seconds + STALLED_SECONDS
    # The middleware added last runs first.
    origins = sorted(limits.origins.allowed_origins)
    app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    app.add_middleware(OriginCheck, origins=limits.origins)
    app.add_middleware(Session, service=service, seconds=seconds)
    app.add_exception_handler(RequestError, _request_error_response)
    app.add_exception_handler(Exception, _failure_response)
    app.add_exception_handler(HTTPException, _http_error_response)
    _add_state(app, service)

    @app.post("/v1/completions", openapi_extra={"requestBody": _body_schema()})
    async def completions(request: Request) -> Response:
        service.check_open()
        body = parse_request(await _read_body(request, limits.max_body))
        reply = _submit(service, body, limits)
        request.state.answers.append(reply)
        deadline = asyncio.get_running_loop().time() + limits.seconds
        envelope = Envelope(body.model, has_logprobs=body.logprobs is not None)
        if body.stream:
            include_usage = body.stream_options is not None and body.stream_options.include_usage
            events = _events(reply, envelope, deadline, include_usage=include_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return await _whole(request, reply, envelope, deadline)

    return app


def _add_state(app: FastAPI, service: Service) -> None:
    """Add the routes that describe the server: models, health, metrics."""

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [service.card]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Any:
        service.check_model(name)
        return service.card

    @app.get("/health")
    async def health() -> Any:
        service.check_open()
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics(), media_type=CONTENT_TYPE_LATEST)


def _body_schema() -> dict[str, Any]:
    return {"content": {"application/json": {"schema": CompletionRequest.model_json_schema()}}, "required": True}


async def _request_error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _failure_response(_: Request, error: Exception) -> Response:
    """Respond to an internal error; the framework logs the traceback."""
    failure = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the server failed: {type(error).__name__}")
    return JSONResponse(failure.body(), failure.status)


async def _http_error_response(request: Request, error: Exception) -> Response:
    """Respond to an unknown path or method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(RequestError(HTTPStatus(error.status_code), message).body(), error.status_code)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body, with at most `max_bytes` in memory.

    Raises:
        RequestError: the body is too large, or takes too long.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    message = f"body: expected at most {max_bytes} bytes, got more"
                    raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    except TimeoutError:
        message = f"body: expected it within {BODY_SECONDS:g} seconds"
        raise RequestError(HTTPStatus.REQUEST_TIMEOUT, message) from None
    return bytes(body)


def _submit(service: Service, body: CompletionRequest, limits: Limits) -> Answer:
    """Queue the prompts of a request, all or none.

    Raises:
        RequestError: another model, a too long prompt, a parameter out of bounds, or a full queue.
    """
    service.check_model(body.model)
    prompts = body.prompts()
    longest = max(map(len, prompts))
    if longest > limits.max_prompt:
        message = f"prompt: expected at most {limits.max_prompt} tokens, got {longest}"
        raise RequestError(HTTPStatus.BAD_REQUEST, message, param="prompt", code="context_length_exceeded")
    if len(prompts) > limits.max_prompts:
        raise bad_request("prompt", f"expected at most {limits.max_prompts} prompts, got {len(prompts)}")
    params = body.params()
    if params.seed is None:
        return service.submit(prompts, [params] * len(prompts), echo=bool(body.echo))
    seeded = [replace(params, seed=(params.seed + index) % 2**64) for index in range(len(prompts))]
    return service.submit(prompts, seeded, echo=bool(body.echo))


async def _whole(request: Request, reply: Answer, envelope: Envelope, deadline: float) -> Response:
    """Return the whole answer; stop sampling if the client closes the connection."""
    watcher = asyncio.create_task(_close_on_disconnect(request, reply))
    try:
        pieces = [piece async for pieces in reply.pieces(deadline) for piece in pieces]
    finally:
        watcher.cancel()
    return JSONResponse(envelope.message(joined(pieces), usage=usage(reply.num_prompt_tokens, reply.num_tokens)))


async def _close_on_disconnect(request: Request, reply: Answer) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    reply.fail(RequestError(CLIENT_CLOSED, "the client closed the connection"))


async def _events(reply: Answer, envelope: Envelope, deadline: float, *, include_usage: bool) -> AsyncIterator[str]:
    """Yield the answer as server-sent events; an error is the last event."""
    no_usage = {"usage": None} if include_usage else {}
    try:
        async for pieces in reply.pieces(deadline):
            yield "".join(_event(envelope.message([piece], **no_usage)) for piece in pieces)
    except RequestError as error:
        yield _event(error.body())
        return
    if include_usage:
        yield _event(envelope.message([], usage=usage(reply.num_prompt_tokens, reply.num_tokens)))
    yield "data: [DONE]\n\n"


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"
