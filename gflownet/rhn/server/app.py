"""HTTP application: routes, limits, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gflownet.rhn.server.limits import ServerLimits
from gflownet.rhn.server.requests import (
    ChatRequest,
    ChatTemplate,
    CompletionRequest,
    RequestError,
    SamplingFields,
    Submission,
    bad_request,
    error_response,
    from_value_error,
)
from gflownet.rhn.server.service import AnswerFormat, AnswerStream, ChatFormat, CompletionFormat, Service, whole
from gflownet.rhn.serving.engine import Engine, QueueFullError
from gflownet.rhn.serving.sampling import FinishReason

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


@dataclass(frozen=True)
class Access:
    """Host names and keys of allowed requests."""

    hosts: Sequence[str] = ()  # besides the loopback names; without port
    keys: Sequence[str] = ()  # without any, requests need none
    origins: Sequence[str] = ()  # of pages that get CORS headers

    def check(self, request: Request, bearer: _Bearer) -> None:
        """Raise RequestError for another host name, or without a key of the server; a dependency of routes."""
        host = request.url.hostname or ""
        if host not in (*LOOPBACK, *map(str.lower, self.hosts)):
            message = f"Host: expected a name of this server (option --allow-host), got {host!r:.80}"
            raise RequestError(HTTPStatus.FORBIDDEN, message)
        # Each key is compared in constant time.
        key = (bearer.credentials if bearer else "").encode(errors="replace")
        if self.keys and not any(hmac.compare_digest(key, valid.encode()) for valid in self.keys):
            message = "Authorization: expected 'Bearer' and a key of this server (option --api-key)"
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key", headers=headers)


def create_app(
    service: Service,
    limits: ServerLimits,
    *,
    on_start: Callable[[], None],
    access: Access | None = None,
    template: ChatTemplate | None = None,
) -> FastAPI:
    """Return the application; `on_start` is called in the event loop before the first request."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        on_start()
        yield
        service.stop()

    access = access or Access()
    # A request to another path is an error, not a redirection.
    app = FastAPI(
        title="gflownet language model", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(BodyLimit, max_body=limits.max_body)
    origins = list(access.origins)
    app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, error_response)
    router = APIRouter(dependencies=[Depends(access.check)])
    _add_answer_routes(router, service, limits, template or ChatTemplate())
    _add_state_routes(router, service)
    app.include_router(router)

    @app.get("/health")  # for supervisors, which have no key and any Host
    @app.head("/health", include_in_schema=False)
    async def health() -> Any:
        service.check_open()
        return {"status": "ok"}

    return app


def _add_answer_routes(router: APIRouter, service: Service, limits: ServerLimits, template: ChatTemplate) -> None:
    """Add the routes of completions and chats."""

    async def respond(request: Request, fields: SamplingFields, kind: type[AnswerFormat]) -> Response:
        service.check_model(fields.model)
        # In a thread: a tokenizer takes a while for a long text.
        try:
            submission = await asyncio.to_thread(partial(fields.submission, service.codec, template))
            _check_limits(submission, limits)
            answer = service.submit(submission)
        except QueueFullError as error:
            message = f"{error}; try again later"
            raise RequestError(HTTPStatus.TOO_MANY_REQUESTS, message, headers={"Retry-After": "1"}) from None
        except ValueError as error:
            raise from_value_error(error, type(fields).model_fields) from None
        deadline = asyncio.get_running_loop().time() + limits.timeout
        form = kind(fields.model, service.codec, submission.params.logprobs is not None)
        if fields.stream:
            includes_usage = fields.stream_options is not None and fields.stream_options.include_usage
            return AnswerStream(answer, form, deadline, includes_usage=includes_usage)
        return await whole(request, answer, form, deadline)

    @router.post("/v1/completions")
    async def completions(request: Request, fields: CompletionRequest) -> Response:
        return await respond(request, fields, CompletionFormat)

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request, fields: ChatRequest) -> Response:
        return await respond(request, fields, ChatFormat)


def _add_state_routes(router: APIRouter, service: Service) -> None:
    """Add the routes that describe the server: models and metrics."""
    registry = CollectorRegistry()
    registry.register(Metrics(service.engine))

    @router.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [service.card]}

    @router.get("/v1/models/{name}")
    async def model(name: str) -> Any:
        service.check_model(name)
        return service.card

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _check_limits(submission: Submission, limits: ServerLimits) -> None:
    """Raise RequestError for too long or too many prompts, or too long answers."""
    longest = max(map(len, submission.prompts))
    if longest > limits.max_prompt:
        message = f"prompt: expected at most {limits.max_prompt} tokens, got {longest}"
        raise RequestError(HTTPStatus.BAD_REQUEST, message, param="prompt", code="context_length_exceeded")
    num_answers = len(submission.prompts) * submission.num_answers
    if num_answers > limits.max_queue:
        raise bad_request("prompt", f"expected at most {limits.max_queue} prompts (times n), got {num_answers}")
    if submission.params.max_tokens > limits.max_tokens_limit:
        message = f"expected at most {limits.max_tokens_limit} (option --max-tokens-limit), got"
        raise bad_request("max_tokens", f"{message} {submission.params.max_tokens}")


class BodyLimit:
    """ASGI middleware: status 413 for longer bodies, 400 for two lengths. Starlette's own error is plain text."""

    def __init__(self, app: ASGIApp, *, max_body: int) -> None:
        """Wrap an application; `max_body` is a number of bytes."""
        self._app, self._max_body = app, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request."""
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                message = f"body: expected at most {self._max_body} bytes, got more"
                raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
            return message

        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:  # proxies in front may read another one
            error = RequestError(HTTPStatus.BAD_REQUEST, "expected Content-Length or Transfer-Encoding, got both")
            await JSONResponse(error.body(), error.status_code)(scope, receive, send)
            return
        await self._app(scope, limited, send)


class Metrics(Collector):
    """Metrics of an engine, with Prometheus' names and units."""

    def __init__(self, engine: Engine) -> None:
        """Read them at every scrape."""
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._engine.metrics()
        sums = now.sums
        finished = CounterMetricFamily("gflownet_requests_finished", "Finished prompts by reason", labels=["reason"])
        for reason in FinishReason:
            finished.add_metric([reason], sums.finished[reason])
        yield finished
        yield GaugeMetricFamily("gflownet_requests_waiting", "Prompts in the queue", value=now.num_waiting)
        yield GaugeMetricFamily("gflownet_requests_running", "Prompts that hold a slot", value=now.num_running)
        yield GaugeMetricFamily("gflownet_prefix_bytes", "Size of the cached states of prompts", value=now.prefix_bytes)
        for name, text, value in (
            ("steps", "Steps of the engine", sums.num_steps),
            ("step_rows", "Tokens read in steps, of prompts and answers", sums.num_rows),
            ("tokens", "Tokens of answers", sums.num_tokens),
            ("prefix_hits", "Prompts that started from a cached state", sums.prefix_hits),
            ("prefix_misses", "Prompts that did not", sums.prefix_misses),
        ):
            yield CounterMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, number, seconds in (
            ("queue", "From arrival to a slot", sums.num_admitted, sums.waited_seconds),
            ("first_token", "From arrival to the first token", sums.num_first_tokens, sums.first_token_seconds),
            ("next_token", "Between tokens of one answer", sums.num_later_tokens, sums.later_token_seconds),
        ):
            yield SummaryMetricFamily(f"gflownet_{name}_seconds", text, count_value=number, sum_value=seconds)
