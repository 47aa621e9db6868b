"""Fields of requests for answers; prompts and sampling parameters from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gflownet.rhn.bytes_text import encode as encode_utf8
from gflownet.rhn.server.errors import bad_request, from_pydantic, from_value_error
from gflownet.rhn.serving.sampling import MAX_INT, SamplingParams
from gflownet.rhn.text_codec import TextCodec

MAX_STOPS = 4  # as OpenAI
MAX_STOP_BYTES = 128  # of one stop string, which is compared at every token of an answer
MAX_ANSWERS = 128  # n and best_of of one prompt; as OpenAI
MAX_KEY_DIGITS = 9  # of a token in logit_bias, leading zeros included

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
_Token = Annotated[int, Field(ge=0, le=MAX_INT)]
# Stop at the first error: a list with a million errors is one message, at once.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[_Token], Field(fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True)]
Body = TypeVar("Body", bound=BaseModel)
Fields = TypeVar("Fields", bound="SamplingFields")


@dataclass(frozen=True)
class Submission:
    """Prompts for the engine, each with the same number of answers."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams  # of the first answer to the first prompt; answer i of all has seed + i
    num_answers: int = 1  # sampled for each prompt
    num_choices: int = 1  # of these, returned: the likeliest
    echo: bool = False  # whether a choice starts with its prompt

    def seeds(self, index: int) -> list[int | None]:
        """Return the seed of every answer to a prompt."""
        seed, first = self.params.seed, index * self.num_answers
        return [None if seed is None else (seed + first + i) % 2**64 for i in range(self.num_answers)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against traffic analysis: accepted, never added


class SamplingFields(BaseModel):
    """Fields of both endpoints. Unknown fields are errors: ignoring an option would give a wrong answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

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
    logit_bias: dict[str, Number] | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    user: str | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        raise NotImplementedError

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling_params(self, max_tokens: int, **more: Any) -> SamplingParams:
        """Return the sampling parameters, with those in `more` in place of the fields.

        Raises:
            RequestError: a value out of its bounds.
        """
        names = [field.name for field in fields(SamplingParams) if field.name in SamplingFields.model_fields]
        values: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        values |= {"max_tokens": max_tokens, "stop": self.stops(), "stop_token_ids": tuple(self.stop_token_ids or ())}
        if self.logit_bias is not None:
            values["logit_bias"] = {_token_of(key): value for key, value in self.logit_bias.items()}
        try:
            return SamplingParams(**values | more)
        except ValueError as error:
            raise from_value_error(error, type(self).model_fields) from None

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings.

        Raises:
            RequestError: too many, an empty one, a long one, or one that UTF-8 cannot encode.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS or not all(stops):
            raise bad_request("stop", f"expected at most {MAX_STOPS} strings, none empty, got {stops!r:.80}")
        try:
            longest = max((len(encode_utf8(each)) for each in stops), default=0)
        except ValueError as error:
            raise bad_request("stop", str(error)) from None
        if longest > MAX_STOP_BYTES:
            raise bad_request("stop", f"expected at most {MAX_STOP_BYTES} bytes in each string, got {longest}")
        return tuple(stops)


def validated(kind: type[Body], body: bytes) -> Body:
    """Return a body as a model. Raises RequestError for invalid JSON, or the first invalid or unknown field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise from_pydantic(error) from None


def parse_fields(kind: type[Fields], body: bytes) -> Fields:
    """Parse the body of a request.

    Raises:
        RequestError: invalid JSON, an unknown or missing field, or a value of another type or out of bounds.
    """
    request = validated(kind, body)
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options", "expected with stream=true only")
    return request


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a body for a route that parses it itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def encoded(param: str, text: str, codec: TextCodec) -> list[int]:
    """Return the tokens of a text. Raises RequestError for a text that UTF-8 cannot encode."""
    try:
        return codec.encode(text)
    except ValueError as error:
        raise bad_request(param, str(error)) from None


def _token_of(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > MAX_KEY_DIGITS:
        raise bad_request("logit_bias", f"expected numbers by token, got the key {key!r:.80}")
    return int(key)
