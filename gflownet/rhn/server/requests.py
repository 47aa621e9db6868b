"""Errors, chat templates and bodies of requests: prompts and sampling parameters in OpenAI's format."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from gflownet.errors import UserError
from gflownet.rhn.serving.sampling import MAX_INT, MAX_LOGPROBS, SamplingParams
from gflownet.rhn.text_codec import TextCodec

_log = logging.getLogger(__name__)


class RequestError(HTTPException):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`param` is the invalid field."""
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kind = "invalid_request_error" if self.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def bad_request(param: str, message: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param)


def from_value_error(error: ValueError, fields: Collection[str]) -> RequestError:
    """Return the error for a ValueError whose message may start with the name of one of `fields`."""
    name = str(error).partition(":")[0]
    return RequestError(HTTPStatus.BAD_REQUEST, str(error), param=name if name in fields else None)


def _as_request_error(request: Request, error: Exception) -> RequestError:
    """Return the response to any error: those of the framework are unknown paths, methods and invalid bodies."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return RequestError(error.status_code, message, headers=dict(error.headers or {}))
    if not isinstance(error, RequestValidationError):
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the server failed: {type(error).__name__}")
    first = error.errors()[0]
    param = next((part for part in first["loc"][1:] if isinstance(part, str)), None)
    where = f"{param}: " if param else "body: "
    return RequestError(HTTPStatus.BAD_REQUEST, f"{where}{first['msg']}, got {first['input']!r:.80}", param=param)


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error; log an unexpected one."""
    known = _as_request_error(request, error)
    return JSONResponse(known.body(), known.status_code, headers=known.headers)


TEMPLATE_NAME = "chat_template.jinja"  # in a model's folder, as on Hugging Face
# For a model of plain text; the answer ends where the model writes the next question.
DEFAULT_SOURCE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
DEFAULT_STOPS = ("\nuser:",)
_SAMPLE = ({"role": "user", "content": "a"},)


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and texts that end an answer."""

    source: str = DEFAULT_SOURCE
    stops: tuple[str, ...] = DEFAULT_STOPS

    def __post_init__(self) -> None:
        """Compile the template in Jinja2's sandbox; raises TemplateError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja2's own escapes for HTML
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        object.__setattr__(self, "_template", environment.from_string(self.source))

    def check(self) -> None:
        """Render a chat of one message. Raises an error that is no refusal by the template itself."""
        with suppress(_RefusalError):
            self._rendered(_SAMPLE)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the next message of the assistant.

        Raises:
            RequestError: the template refuses the messages.
        """
        try:
            return self._rendered(messages)
        except Exception as error:  # a template may fail in any way
            reason = " ".join(str(error).split()) or type(error).__name__
            raise bad_request("messages", f"the chat template refuses them: {reason}") from None

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        values = {"messages": messages, "add_generation_prompt": True, "bos_token": "", "eos_token": "", "tools": None}
        template: Any = self._template  # type: ignore[attr-defined]
        return template.render(values)


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`, by which Hugging Face marks the answers for training."""

    tags = {"generation"}  # noqa: RUF012  # the type of the base class

    def parse(self, parser: Parser) -> Any:
        """Return the contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _RefusalError(TemplateError):
    """Raised by `raise_exception` of a template."""


def load_chat_template(path: Path | None, stops: Sequence[str], folder: Path) -> ChatTemplate:
    """Return the template of a file; without one that of the model's folder, or the default.

    Raises:
        UserError: the file cannot be read, or is no template.
    """
    own = folder / TEMPLATE_NAME
    if path is None and not own.is_file():
        return ChatTemplate(stops=tuple(stops) or DEFAULT_STOPS)
    chosen = path or own
    try:
        template = ChatTemplate(chosen.read_text(encoding="utf-8"), tuple(stops))
        template.check()
        return template
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--chat-template: {chosen}: cannot be read ({error})") from None
    except Exception as error:  # a template may fail in any way
        reason = " ".join(str(error).split())
        raise UserError(f"--chat-template: {chosen}: expected a Jinja2 template, got an error: {reason}") from None


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


# As OpenAI.
MAX_STOPS = 4
MAX_ANSWERS = 128  # n of one prompt
MAX_TOP_LOGPROBS = 5  # of a completion
COMPLETION_TOKENS = 16  # default of max_tokens
# Not as OpenAI.
CHAT_TOKENS = 256  # default of max_tokens: OpenAI has no limit, its models end their answers themselves
MAX_STOP_LENGTH = 128  # characters of one stop string, which is compared at every token of an answer

Number = Annotated[float, Field(allow_inf_nan=False)]
Length = Annotated[int, Field(ge=0)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
# Stop at the first error: a list with a million errors is one message, at once.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True)]


@dataclass(frozen=True)
class Submission:
    """Prompts for the engine, each with the same number of answers."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams  # of the first answer to the first prompt; answer i of all has seed + i
    num_answers: int = 1  # sampled for each prompt
    echoes: Sequence[str] = ()  # of each prompt, with which its choices start
    stream: bool = False

    def seed(self, index: int) -> int | None:
        """Return the seed of an answer, counted over all prompts."""
        return None if self.params.seed is None else (self.params.seed + index) % 2**64


class Object(BaseModel):
    """A JSON object. Other fields have no effect: clients send many that are OpenAI's alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(Object):
    """Options of a stream."""

    include_usage: bool = False


class SamplingFields(Object):
    """Fields of both endpoints."""

    model: str
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None  # this one and the next four are not OpenAI's: clients send them through extra_body
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: int | None = None
    stop_token_ids: Tokens | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Number] | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        """Return the prompts and parameters for the engine.

        Raises:
            RequestError: the template refuses the messages, no prompt, or an empty prompt.
            ValueError: a value out of its bounds, or a text that UTF-8 cannot encode.
        """
        raise NotImplementedError

    def sampling_params(self, max_tokens: int, logprobs: int | None, stops: Sequence[str] = ()) -> SamplingParams:
        """Return the sampling parameters; `stops` are added to those of the request."""
        names = [field.name for field in fields(SamplingParams) if field.name in SamplingFields.model_fields]
        values: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        values |= {"top_k": 0} if self.top_k == -1 else {}  # of all tokens, as other servers say it
        own_stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        values |= {"max_tokens": max_tokens, "logprobs": logprobs, "stop": (*own_stops, *stops)}
        values["stop_token_ids"] = tuple(self.stop_token_ids or ())
        if self.logit_bias is not None:
            values["logit_bias"] = {int(key): value for key, value in self.logit_bias.items()}
        return SamplingParams(**values)


class CompletionRequest(SamplingFields):
    """A completion of one or more prompts."""

    prompt: str | Texts | Tokens | TokenLists
    max_tokens: Length | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None  # this model does not insert text

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        if self.echo and self.logprobs is not None:
            raise bad_request("logprobs", "expected none with echo=true")
        max_tokens = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        params = self.sampling_params(max_tokens, self.logprobs)
        prompts = self._prompts()
        tokens = [codec.encode(each) if isinstance(each, str) else each for each in prompts]
        echoes = [each if isinstance(each, str) else codec.decode(each) for each in prompts] if self.echo else []
        return Submission(tokens, params, self.n or 1, echoes, stream=bool(self.stream))

    def _prompts(self) -> Sequence[str | list[int]]:
        """Return every prompt as a text or tokens."""
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or bool(prompt and isinstance(prompt[0], int))
        prompts = [prompt] if is_one else prompt
        if not prompts or not all(prompts):
            raise bad_request("prompt", f"expected at least one token in every prompt, got {prompts!r:.80}")
        return prompts


class TextPart(Object):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Object):
    """A message of a chat."""

    role: Literal["developer", "system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None

    def values(self) -> dict[str, Any]:
        """Return the message for a template; parts of a text are joined."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        return {"role": self.role, "content": content} | ({} if self.name is None else {"name": self.name})


class ChatRequest(SamplingFields):
    """The next message of a chat."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Length | None = None
    max_tokens: Length | None = None  # OpenAI's former name
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None  # this model calls none

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        prompt = codec.encode(template.prompt([message.values() for message in self.messages]))
        if not prompt:
            raise bad_request("messages", "expected at least one token, the chat template gives none")
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        max_tokens = min(limits, default=max(CHAT_TOKENS, self.min_tokens or 0))
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        params = self.sampling_params(max_tokens, logprobs, template.stops)
        return Submission([prompt], params, self.n or 1, stream=bool(self.stream))
