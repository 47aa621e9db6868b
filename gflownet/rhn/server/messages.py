"""Requests, errors and answers of the completions API, in OpenAI's format."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gflownet.rhn.bytes_text import NUM_TOKENS, StreamDecoder, encode
from gflownet.rhn.serving.sampling import Sampled, SamplingParams

MAX_TOP_LOGPROBS = 5  # as OpenAI
MAX_STOPS = 4  # as OpenAI
MAX_STOP_BYTES = 128  # of one stop string, which is compared at every token of an answer
DEFAULT_MAX_TOKENS = 16  # as OpenAI
MAX_KEY_DIGITS = 9  # of a token in logit_bias, leading zeros included
_FIRST_NOT_ASCII = 0x80

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Token = Annotated[int, Field(ge=0, lt=NUM_TOKENS)]
# Stop at the first error: a list with a million errors is one message, at once.
_Texts = Annotated[list[str], Field(fail_fast=True)]
_Tokens = Annotated[list[_Token], Field(fail_fast=True)]
_TokenLists = Annotated[list[_Tokens], Field(fail_fast=True)]


class RequestError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: bool = False,
    ) -> None:
        """`param` is the invalid field; `retry`: whether the same request may succeed later."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {"Retry-After": "1"} if retry else {}

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against traffic analysis: accepted, never added


class CompletionRequest(BaseModel):
    """Body of POST /v1/completions. Unknown fields are errors: ignoring an option would give a wrong answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    prompt: str | _Texts | _Tokens | _TokenLists
    max_tokens: int | None = Field(None, ge=1)
    temperature: _Number | None = None
    top_p: _Number | None = None
    top_k: int | None = None  # this one and the next two are not OpenAI's: clients send them through extra_body
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
            RequestError: no prompt, an empty prompt, or one that UTF-8 cannot encode.
        """
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or bool(prompt and isinstance(prompt[0], int))
        prompts = [prompt] if is_one else prompt
        if not prompts or not all(prompts):
            raise bad_request("prompt", f"expected at least one token in every prompt, got {prompts!r:.80}")
        return [_tokens_of("prompt", each) if isinstance(each, str) else each for each in prompts]

    def params(self) -> SamplingParams:
        """Return the sampling parameters of the first prompt; prompt i uses seed + i.

        Raises:
            RequestError: a value out of its bounds.
        """
        names = [field.name for field in fields(SamplingParams) if field.name in CompletionRequest.model_fields]
        values: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        values |= {"max_tokens": self.max_tokens or DEFAULT_MAX_TOKENS, "stop": self._stops()}
        if self.logit_bias is not None:
            values["logit_bias"] = {_token_of(key): value for key, value in self.logit_bias.items()}
        try:
            return SamplingParams(**values)
        except ValueError as error:
            raise from_value_error(error) from None

    def _stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS or not all(stops):
            raise bad_request("stop", f"expected at most {MAX_STOPS} strings, none empty, got {stops!r:.80}")
        longest = max((len(_tokens_of("stop", each)) for each in stops), default=0)
        if longest > MAX_STOP_BYTES:
            raise bad_request("stop", f"expected at most {MAX_STOP_BYTES} bytes in each string, got {longest}")
        return tuple(stops)


def parse_request(body: bytes) -> CompletionRequest:
    """Parse the body of a request.

    Raises:
        RequestError: invalid JSON, an unknown or missing field, or a value of another type or out of bounds.
    """
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        raise _from_pydantic(error) from None
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options", "expected with stream=true only")
    if request.echo and request.logprobs is not None:
        raise bad_request("echo", "expected without logprobs: log-probabilities of the prompt are not available")
    return request


def bad_request(param: str, message: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param)


def from_value_error(error: ValueError) -> RequestError:
    """Return the error for a ValueError whose message may start with the name of a parameter."""
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
    """Return the first error in one line."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    param = str(first["loc"][0]) if first["loc"] else None
    where = f"{param}: " if param else ""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{where}{first['msg']}, got {first['input']!r:.80}", param=param)


@dataclass(frozen=True)
class Piece:
    """The next part of one choice."""

    index: int  # of the choice
    text: str
    tokens: tuple[Sampled, ...]
    offsets: tuple[int, ...]  # for each token the number of characters of the choice before it
    finish_reason: str | None  # of the last piece


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the pieces of each choice, in the order of the choices."""
    whole: dict[int, Piece] = {}
    for piece in pieces:
        before = whole.get(piece.index, Piece(piece.index, "", (), (), None))
        whole[piece.index] = Piece(
            piece.index,
            before.text + piece.text,
            before.tokens + piece.tokens,
            before.offsets + piece.offsets,
            piece.finish_reason,
        )
    return [whole[index] for index in sorted(whole)]


class Choice:
    """Text of one choice from its tokens, for streams and for whole answers."""

    def __init__(self, index: int, prefix: str = "") -> None:
        """`prefix` is the text before the first token."""
        self.index, self.num_tokens = index, 0
        self._decoder, self._length, self._unsent = StreamDecoder(), len(prefix), prefix
        self._tokens: list[Sampled] = []
        self._offsets: list[int] = []

    def add(self, token: Sampled) -> None:
        """Add a token."""
        self.num_tokens += 1
        self._tokens.append(token)
        self._offsets.append(self._length)
        self._append(self._decoder.text([token.token]))

    def piece(self, finish_reason: str | None = None) -> Piece | None:
        """Return the new text since the last piece, whole characters only; None if there is none.

        With `finish_reason`, return the last piece, with any incomplete character.
        """
        if finish_reason is not None:
            self._append(self._decoder.rest())
        elif not self._unsent:
            return None
        piece = Piece(self.index, self._unsent, tuple(self._tokens), tuple(self._offsets), finish_reason)
        self._unsent, self._tokens, self._offsets = "", [], []
        return piece

    def _append(self, text: str) -> None:
        self._unsent += text
        self._length += len(text)


def token_name(token: int) -> str:
    """Return a token as text; a byte that is no ASCII character in OpenAI's notation."""
    return chr(token) if token < _FIRST_NOT_ASCII else f"bytes:\\x{token:02x}"


@dataclass(frozen=True)
class Envelope:
    """Header fields of the messages of one answer, and the format of its pieces."""

    model: str
    has_logprobs: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def message(self, pieces: Sequence[Piece], **more: Any) -> dict[str, Any]:
        """Return the message with some pieces: a whole answer, or one event of a stream."""
        choices = [self._choice(piece) for piece in pieces]
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": choices, **more}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if self.has_logprobs:
            logprobs = {
                "tokens": [token_name(sampled.token) for sampled in piece.tokens],
                "token_logprobs": [sampled.log_probability for sampled in piece.tokens],
                "top_logprobs": [{token_name(t): value for t, value in sampled.likeliest} for sampled in piece.tokens],
                "text_offset": list(piece.offsets),
            }
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}


def usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    """Return the token counts in OpenAI's format."""
    total = num_prompt_tokens + num_tokens
    return {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens, "total_tokens": total}
