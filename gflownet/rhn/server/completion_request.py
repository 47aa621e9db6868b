"""Body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gflownet.rhn.server.errors import bad_request
from gflownet.rhn.server.request_fields import (
    Count,
    SamplingFields,
    Submission,
    Texts,
    TokenLists,
    Tokens,
    encoded,
    parse_fields,
)
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import TextCodec

MAX_TOP_LOGPROBS = 5  # as OpenAI
DEFAULT_MAX_TOKENS = 16  # as OpenAI


class CompletionRequest(SamplingFields):
    """A completion of one or more prompts."""

    prompt: str | Texts | Tokens | TokenLists
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: Count | None = None
    suffix: None = None  # this model does not insert text

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
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        # Log-probabilities of the sampled tokens find the best answers.
        logprobs = 0 if self.logprobs is None and (self.best_of or 1) > (self.n or 1) else self.logprobs
        prompt_logprobs = self.logprobs if self.echo else None
        return self.sampling_params(max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    def submission(self, codec: TextCodec) -> Submission:
        """Return the prompts and parameters for the engine. Raises as `prompts` and `params`."""
        num_choices = self.n or 1
        return Submission(
            self.prompts(codec), self.params(), self.best_of or num_choices, num_choices, echo=bool(self.echo)
        )


def parse_completion(body: bytes) -> CompletionRequest:
    """Parse the body of a request.

    Raises:
        RequestError: invalid JSON, an unknown or missing field, or a value of another type or out of bounds.
    """
    request = parse_fields(CompletionRequest, body)
    best_of, num_choices = request.best_of, request.n or 1
    if best_of is not None and best_of < num_choices:
        raise bad_request("best_of", f"expected at least n = {num_choices}, got {best_of}")
    if best_of is not None and best_of > num_choices and request.stream:
        raise bad_request("best_of", f"expected n = {num_choices} with stream=true, got {best_of}")
    return request
