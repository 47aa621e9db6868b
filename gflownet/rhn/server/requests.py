"""Bodies of requests as pydantic models; prompts and sampling parameters from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gflownet.rhn.server.chat_template import ChatTemplate
from gflownet.rhn.server.errors import bad_request, from_pydantic, from_value_error
from gflownet.rhn.serving.sampling import MAX_INT, MAX_LOGPROBS, SamplingParams
from gflownet.rhn.text_codec import TextCodec
from gflownet.rhn.text_codec import encode as encode_utf8

# As OpenAI.
MAX_STOPS = 4
MAX_ANSWERS = 128  # n and best_of of one prompt
MAX_TOP_LOGPROBS = 5  # of a completion
COMPLETION_TOKENS = 16  # default of max_tokens
# Not as OpenAI.
CHAT_TOKENS = 256  # default of max_tokens: OpenAI has no limit, its models end their answers themselves
MAX_STOP_BYTES = 128  # of one stop string, which is compared at every token of an answer
MAX_KEY_DIGITS = 9  # of a token in logit_bias, leading zeros included

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
Length = Annotated[int, Field(ge=0)]
_Token = Annotated[int, Field(ge=0, le=MAX_INT)]
# Stop at the first error: a list with a million errors is one message, at once.
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[_Token], Field(fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True)]


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


class Object(BaseModel):
    """A JSON object. Unknown fields are errors: ignoring an option would give a wrong answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Return the object of the body of a request.

        Raises:
            RequestError: invalid JSON, an unknown or missing field, or a value of another type or out of bounds.
        """
        try:
            parsed = cls.model_validate_json(body)
        except ValidationError as error:
            raise from_pydantic(error) from None
        parsed.check()
        return parsed

    def check(self) -> None:
        """Raise RequestError for fields that do not fit each other."""


class TokenizeRequest(Object):
    """Body of POST /tokenize."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = False  # there are none


class DetokenizeRequest(Object):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Tokens


class StreamOptions(Object):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against traffic analysis: accepted, never added


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
    logit_bias: dict[str, Number] | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    user: str | None = None

    def check(self) -> None:
        """See Object."""
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options", "expected with stream=true only")

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        raise NotImplementedError

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        """Return the prompts and parameters for the engine.

        Raises:
            RequestError: the template refuses the messages, no prompt, an empty prompt, one that UTF-8 cannot encode,
                or a value out of its bounds.
        """
        raise NotImplementedError

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


class CompletionRequest(SamplingFields):
    """A completion of one or more prompts."""

    prompt: str | Texts | Tokens | TokenLists
    max_tokens: Length | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: Count | None = None
    suffix: None = None  # this model does not insert text

    def check(self) -> None:
        """See Object."""
        super().check()
        best_of, num_choices = self.best_of, self.n or 1
        if best_of is not None and best_of < num_choices:
            raise bad_request("best_of", f"expected at least n = {num_choices}, got {best_of}")
        if best_of is not None and best_of > num_choices and self.stream:
            raise bad_request("best_of", f"expected n = {num_choices} with stream=true, got {best_of}")

    @property
    def has_logprobs(self) -> bool:
        """See SamplingFields."""
        return self.logprobs is not None

    def prompts(self, codec: TextCodec) -> list[list[int]]:
        """Return every prompt as tokens.

        Raises:
            RequestError: no prompt, an empty prompt, or one that UTF-8 cannot encode.
        """
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or bool(prompt and isinstance(prompt[0], int))
        prompts = [prompt] if is_one else prompt
        if not prompts or not all(prompts):
            raise bad_request("prompt", f"expected at least one token in every prompt, got {prompts!r:.80}")
        return [encoded("prompt", each, codec) if isinstance(each, str) else each for each in prompts]

    def params(self) -> SamplingParams:
        """Return the sampling parameters of the first answer.

        Raises:
            RequestError: a value out of its bounds.
        """
        max_tokens = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        # Log-probabilities of the sampled tokens find the best answers.
        logprobs = 0 if self.logprobs is None and (self.best_of or 1) > (self.n or 1) else self.logprobs
        prompt_logprobs = self.logprobs if self.echo else None
        return self.sampling_params(max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        """See SamplingFields."""
        num_choices = self.n or 1
        return Submission(
            self.prompts(codec), self.params(), self.best_of or num_choices, num_choices, echo=bool(self.echo)
        )


class TextPart(Object):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Object):
    """A message of a chat."""

    role: Literal["developer", "system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    def values(self) -> dict[str, Any]:
        """Return the message for a template; parts of a text are joined."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content} | ({} if self.name is None else {"name": self.name})


class ResponseFormat(Object):
    """Format of the answer: text."""

    type: Literal["text"]


class ChatRequest(SamplingFields):
    """The next message of a chat."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Length | None = None
    max_tokens: Length | None = None  # OpenAI's former name
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None

    def check(self) -> None:
        """See Object."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs", "expected with logprobs=true only")

    @property
    def has_logprobs(self) -> bool:
        """See SamplingFields."""
        return bool(self.logprobs)

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        """See SamplingFields."""
        text = template.prompt([message.values() for message in self.messages])
        prompt = encoded("messages", text, codec)
        if not prompt:
            raise bad_request("messages", "expected at least one token, the chat template gives none")
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        max_tokens = min(limits, default=max(CHAT_TOKENS, self.min_tokens or 0))
        params = self.sampling_params(max_tokens, logprobs=logprobs, stop=(*self.stops(), *template.stops))
        return Submission([prompt], params, self.n or 1, self.n or 1)


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
