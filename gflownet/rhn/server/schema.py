"""Requests and errors of the completions API, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gflownet.rhn.bytes_text import NUM_TOKENS, encode
from gflownet.rhn.serving.sampling import SamplingParams

MAX_TOP_LOGPROBS = 5  # as OpenAI
MAX_STOPS = 4  # as OpenAI
MAX_STOP_BYTES = 128  # of one stop string: every token of an answer is compared with each
DEFAULT_MAX_TOKENS = 16  # as OpenAI
MAX_KEY_DIGITS = 9  # of a token in logit_bias, leading zeros included

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Token = Annotated[int, Field(ge=0, lt=NUM_TOKENS)]
# A million mistakes in one list are one message and take no time.
_Texts = Annotated[list[str], Field(fail_fast=True)]
_Tokens = Annotated[list[_Token], Field(fail_fast=True)]
_TokenLists = Annotated[list[_Tokens], Field(fail_fast=True)]


class RequestError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: bool = False,
    ) -> None:
        """`param` names the wrong field, `retry` is true if the same request may succeed later."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {"Retry-After": "1"} if retry else {}

    def body(self) -> dict[str, Any]:
        """Return OpenAI's shape of an error."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # padding that hides the lengths of encrypted packets: never made


class CompletionRequest(BaseModel):
    """The body of POST /v1/completions. Unknown fields are refused: an ignored option is a wrong answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    prompt: str | _Texts | _Tokens | _TokenLists
    max_tokens: int | None = Field(None, ge=1)
    temperature: _Number | None = None
    top_p: _Number | None = None
    top_k: int | None = None  # this one and the next two: beyond OpenAI, through extra_body
    min_p: _Number | None = None
    repetition_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    frequency_penalty: _Number | None = None
    logit_bias: dict[str, _Number] | None = None
    seed: int | None = None
    stop: str | _Texts | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    user: str | None = None

    def prompts(self) -> list[list[int]]:
        """Return every prompt as tokens.

        Raises:
            RequestError: there is none, or an empty one, or one without a UTF-8.
        """
        asked: Any = self.prompt
        is_one = isinstance(asked, str) or bool(asked and isinstance(asked[0], int))
        found = [asked] if is_one else asked
        if not found or not all(found):
            raise bad_request("prompt", f"expected at least one token in every prompt, got {found!r:.80}")
        return [_tokens_of("prompt", one) if isinstance(one, str) else one for one in found]

    def params(self) -> SamplingParams:
        """Return the parameters of the first prompt's answer; prompt i has the seed plus i.

        Raises:
            RequestError: one is out of its bounds.
        """
        names = [field.name for field in fields(SamplingParams) if field.name in CompletionRequest.model_fields]
        given: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        given |= {"max_tokens": self.max_tokens or DEFAULT_MAX_TOKENS, "stop": self._stops()}
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_of(key): value for key, value in self.logit_bias.items()}
        try:
            return SamplingParams(**given)
        except ValueError as error:
            raise from_value_error(error) from None

    def _stops(self) -> tuple[str, ...]:
        asked = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(asked) > MAX_STOPS or not all(asked):
            raise bad_request("stop", f"expected at most {MAX_STOPS} strings, none empty, got {asked!r:.80}")
        longest = max((len(_tokens_of("stop", one)) for one in asked), default=0)
        if longest > MAX_STOP_BYTES:
            raise bad_request("stop", f"expected at most {MAX_STOP_BYTES} bytes in each string, got {longest}")
        return tuple(asked)


def parse_request(body: bytes) -> CompletionRequest:
    """Return the request that a body spells.

    Raises:
        RequestError: no JSON, an unknown or missing field, or a value of another type or out of bounds.
    """
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        raise _from_pydantic(error) from None
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options", "expected with stream=true only")
    if request.echo and request.logprobs is not None:
        raise bad_request("echo", "expected without logprobs: those of the prompt are not made")
    return request


def bad_request(param: str, message: str) -> RequestError:
    """Return the error of a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param)


def from_value_error(error: ValueError) -> RequestError:
    """Return the error of a parameter; the message of the library begins with its name where there is one."""
    name = str(error).partition(":")[0]
    param = name if name in CompletionRequest.model_fields else None
    return RequestError(HTTPStatus.BAD_REQUEST, str(error), param=param)


def _token_of(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > MAX_KEY_DIGITS:
        raise bad_request("logit_bias", f"expected numbers by token, got the key {key!r:.80}")
    return int(key)


def _tokens_of(param: str, text: str) -> list[int]:
    try:
        return encode(text)
    except ValueError as error:
        raise bad_request(param, str(error)) from None


def _from_pydantic(error: ValidationError) -> RequestError:
    """Return the first mistake in one line."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    param = str(first["loc"][0]) if first["loc"] else None
    where = f"{param}: " if param else ""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{where}{first['msg']}, got {first['input']!r:.80}", param=param)
