"""HTTP application: routes, limits, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gflownet.rhn.server.access import Access, HeaderCheck
from gflownet.rhn.server.chat_template import ChatTemplate
from gflownet.rhn.server.errors import RequestError, bad_request
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Object,
    SamplingFields,
    Submission,
    TokenizeRequest,
    encoded,
)
from gflownet.rhn.server.responses import AnswerFormat, ChatFormat, CompletionFormat, stream, whole
from gflownet.rhn.server.service import Service
from gflownet.rhn.server.session import STALLED_SECONDS, Session, read_body
from gflownet.rhn.text_codec import BYTES

# Harnesses score the first token of a text after this one: models of plain text have no token for the beginning.
FIRST_TEXT = "\n"


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
    seconds = limits.body_timeout + limits.timeout + STALLED_SECONDS
    app.add_middleware(Session, service=service, seconds=seconds)
    app.add_exception_handler(RequestError, _request_error_response)
    app.add_exception_handler(Exception, _failure_response)
    app.add_exception_handler(HTTPException, _http_error_response)
    _add_answer_routes(app, service, limits, template)
    _add_state_routes(app, service)
    _add_tokenizer_routes(app, service, limits, template)
    _describe_bodies(app)
    return app


def _add_answer_routes(app: FastAPI, service: Service, limits: Limits, template: ChatTemplate) -> None:
    """Add the routes of completions and chats."""
    codec = service.codec

    async def respond(request: Request, kind: type[SamplingFields], form: type[AnswerFormat]) -> Response:
        service.check_open()
        fields = kind.parse(await read_body(request, limits))
        service.check_model(fields.model)
        make = partial(fields.submission, codec, template)
        # A tokenizer takes a while for a long text; bytes do not.
        submission = make() if codec is BYTES else await asyncio.to_thread(make)
        _check_limits(submission, limits)
        reply = service.submit(submission)
        request.state.answers.append(reply)
        deadline = asyncio.get_running_loop().time() + limits.timeout
        messages = form(fields.model, codec, fields.has_logprobs)
        if fields.stream:
            return stream(reply, messages, submission, deadline, includes_usage=fields.includes_usage)
        return await whole(request, reply, messages, submission, deadline)

    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await respond(request, CompletionRequest, CompletionFormat)

    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await respond(request, ChatRequest, ChatFormat)


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


def _add_tokenizer_routes(app: FastAPI, service: Service, limits: Limits, template: ChatTemplate) -> None:
    """Add /tokenize, /detokenize and /tokenizer_info, as in vLLM: evaluation harnesses count tokens with them."""
    codec = service.codec

    async def parsed(request: Request, kind: type[Any]) -> Any:
        fields = kind.parse(await read_body(request, limits))
        if fields.model is not None:
            service.check_model(fields.model)
        return fields

    @app.post("/tokenize", openapi_extra=_body_schema(TokenizeRequest))
    async def tokenize(request: Request) -> Any:
        fields: TokenizeRequest = await parsed(request, TokenizeRequest)
        tokens = encoded("prompt", fields.prompt, codec)
        return {"count": len(tokens), "max_model_len": limits.max_prompt, "tokens": tokens}

    @app.post("/detokenize", openapi_extra=_body_schema(DetokenizeRequest))
    async def detokenize(request: Request) -> Any:
        fields: DetokenizeRequest = await parsed(request, DetokenizeRequest)
        largest = max(fields.tokens, default=0)
        if largest >= codec.vocabulary_size:
            raise bad_request("tokens", f"expected tokens of 0 .. {codec.vocabulary_size - 1}, got {largest}")
        return {"prompt": codec.decode(fields.tokens)}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, str | None]:
        return {"bos_token": FIRST_TEXT, "eos_token": None, "pad_token": None, "chat_template": template.source}


def _body_schema(kind: type[Object]) -> dict[str, Any]:
    """Return the description of a body for a route that parses it itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


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
    if num_answers > limits.max_queue:
        message = f"expected at most {limits.max_queue} prompts (times n or best_of), got {num_answers}"
        raise bad_request("prompt", message)
    if submission.params.max_tokens > limits.max_tokens_limit:
        message = f"expected at most {limits.max_tokens_limit} (option --max-tokens-limit), got"
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
