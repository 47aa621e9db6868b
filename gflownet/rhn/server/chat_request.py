"""Body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gflownet.rhn.server.chat_template import ChatTemplate
from gflownet.rhn.server.errors import bad_request
from gflownet.rhn.server.request_fields import SamplingFields, Submission, encoded, parse_fields
from gflownet.rhn.serving.sampling import MAX_LOGPROBS
from gflownet.rhn.text_codec import TextCodec

DEFAULT_MAX_TOKENS = 256  # OpenAI has no limit: its models end their answers themselves


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["developer", "system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    def values(self) -> dict[str, Any]:
        """Return the message for a template; parts of a text are joined."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content} | ({} if self.name is None else {"name": self.name})


class ResponseFormat(BaseModel):
    """Format of the answer: text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]


class ChatRequest(SamplingFields):
    """The next message of a chat."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=0)  # OpenAI's former name
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None

    @property
    def has_logprobs(self) -> bool:
        """See SamplingFields."""
        return bool(self.logprobs)

    def submission(self, codec: TextCodec, template: ChatTemplate) -> Submission:
        """Return the prompt and parameters for the engine.

        Raises:
            RequestError: the template refuses the messages, the prompt is empty, or a value is out of its bounds.
        """
        text = template.prompt([message.values() for message in self.messages])
        prompt = encoded("messages", text, codec)
        if not prompt:
            raise bad_request("messages", "expected at least one token, the chat template gives none")
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        max_tokens = min(limits, default=max(DEFAULT_MAX_TOKENS, self.min_tokens or 0))
        params = self.sampling_params(max_tokens, logprobs=logprobs, stop=(*self.stops(), *template.stops))
        num_choices = self.n or 1
        return Submission([prompt], params, num_choices, num_choices)


def parse_chat(body: bytes) -> ChatRequest:
    """Parse the body of a request.

    Raises:
        RequestError: invalid JSON, an unknown or missing field, or a value of another type or out of bounds.
    """
    request = parse_fields(ChatRequest, body)
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs", "expected with logprobs=true only")
    return request
