"""HTTP application: routes, limits, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gflownet.rhn.server.access import Access, HeaderCheck
from gflownet.rhn.server.chat_request import ChatRequest, parse_chat
from gflownet.rhn.server.chat_template import ChatTemplate
from gflownet.rhn.server.completion_request import CompletionRequest, parse_completion
from gflownet.rhn.server.errors import RequestError, bad_request
from gflownet.rhn.server.formats import AnswerFormat, ChatFormat, CompletionFormat
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.request_fields import SamplingFields, Submission, body_schema
from gflownet.rhn.server.responses import stream, whole
from gflownet.rhn.server.service import Service
from gflownet.rhn.server.session import STALLED_SECONDS, Session, read_body
from gflownet.rhn.server.tokenizer_routes import DetokenizeRequest, TokenizeRequest, add_tokenizer_routes
from gflownet.rhn.text_codec import BYTES


def create_app(
    service: Service,
    limits: Limits,
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

    access, template = access or Access(), template or ChatTemplate()
    # A request to another path is an error, not a redirection.
    app = FastAPI(title="gflownet language model", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    # The middleware added last runs first. A browser sends no key before it knows that it may use the server.
    keys, origins = access.keys, access.origins
    app.add_middleware(HeaderCheck, check=lambda path, headers: keys.check(path, headers.get("authorization")))
    allowed = sorted(origins.allowed_origins)
    app.add_middleware(CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"])
    app.add_middleware(HeaderCheck, check=lambda _, headers: origins.check(headers.get("host"), headers.get("origin")))
    seconds = limits.body_seconds + limits.seconds + STALLED_SECONDS
    app.add_middleware(Session, service=service, seconds=seconds)
    app.add_exception_handler(RequestError, _request_error_response)
    app.add_exception_handler(Exception, _failure_response)
    app.add_exception_handler(HTTPException, _http_error_response)
    _add_answer_routes(app, service, limits, template)
    _add_state_routes(app, service)
    add_tokenizer_routes(app, service, limits, template)
    _describe_bodies(app)
    return app


def _add_answer_routes(app: FastAPI, service: Service, limits: Limits, template: ChatTemplate) -> None:
    """Add the routes of completions and chats."""
    codec = service.codec

    async def answered(
        request: Request, fields: SamplingFields, make: Callable[[], Submission], form: AnswerFormat
    ) -> Response:
        service.check_model(fields.model)
        # A tokenizer takes a while for a long text; bytes do not.
        submission = make() if codec is BYTES else await asyncio.to_thread(make)
        _check_limits(submission, limits)
        reply = service.submit(submission)
        request.state.answers.append(reply)
        deadline = asyncio.get_running_loop().time() + limits.seconds
        if fields.stream:
            return stream(reply, form, submission, deadline, includes_usage=fields.includes_usage)
        return await whole(request, reply, form, submission, deadline)

    async def body_of(request: Request) -> bytes:
        service.check_open()
        return await read_body(request, max_bytes=limits.max_body, seconds=limits.body_seconds)

    @app.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        fields = parse_completion(await body_of(request))
        form = CompletionFormat(fields.model, codec, fields.has_logprobs)
        return await answered(request, fields, lambda: fields.submission(codec), form)

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        fields = parse_chat(await body_of(request))
        form = ChatFormat(fields.model, codec, fields.has_logprobs)
        return await answered(request, fields, lambda: fields.submission(codec, template), form)


def _add_state_routes(app: FastAPI, service: Service) -> None:
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
    async def metrics(request: Request) -> Response:
        content, content_type = service.metrics.text(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})


def _describe_bodies(app: FastAPI) -> None:
    """Add the schemas of the bodies, which the routes parse themselves, to the description of the routes."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        for kind in (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest):
            schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[kind.__name__] = schema
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _check_limits(submission: Submission, limits: Limits) -> None:
    """Raise RequestError for too long or too many prompts, or too long answers."""
    longest = max(map(len, submission.prompts))
    if longest > limits.max_prompt:
        message = f"prompt: expected at most {limits.max_prompt} tokens, got {longest}"
        raise RequestError(HTTPStatus.BAD_REQUEST, message, param="prompt", code="context_length_exceeded")
    num_answers = len(submission.prompts) * submission.num_answers
    if num_answers > limits.max_answers:
        message = f"expected at most {limits.max_answers} prompts (times n or best_of), got {num_answers}"
        raise bad_request("prompt", message)
    if submission.params.max_tokens > limits.max_tokens:
        message = f"expected at most {limits.max_tokens} (option --max-tokens-limit), got"
        raise bad_request("max_tokens", f"{message} {submission.params.max_tokens}")


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
    return JSONResponse(
        RequestError(error.status_code, message).body(), error.status_code, headers=dict(error.headers or {})
    )
