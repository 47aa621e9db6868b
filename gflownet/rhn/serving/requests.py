"""Requests to the engine, its events and metrics, and its state per request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.serving.stopping import Answer
from gflownet.rhn.text_codec import BYTES, TextCodec


@dataclass(frozen=True)
class Request:
    """A prompt and its options."""

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    state: Tensor | None = None  # [layers, width] of the tokens before the prompt
    keep_state: bool = False  # whether the finish event holds the state to continue from

    def check(self, model: LanguageModel, codec: TextCodec = BYTES) -> None:
        """Raise ValueError for a request that the model cannot answer; `codec` decodes its tokens."""
        if not self.prompt:
            raise ValueError("prompt: expected at least one token, got none")
        size = model.vocabulary_size
        if min(self.prompt) < 0 or max(self.prompt) >= size:
            wrong = next(token for token in self.prompt if not 0 <= token < size)
            raise ValueError(f"prompt: expected tokens of 0 .. {size - 1}, got {wrong}")
        self.params.check_vocabulary(size, codec)
        if self.state is not None and tuple(self.state.shape) != model.state_shape:
            raise ValueError(f"state: expected {model.state_shape} as (layers, width), got {tuple(self.state.shape)}")


class TokenEvent(NamedTuple):
    """A token of an answer."""

    request_id: int
    sampled: Sampled


@dataclass(frozen=True)
class FinishEvent:
    """The last event of a request."""

    request_id: int
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_tokens: int  # of the answer, without held back ones
    num_cached_tokens: int  # of the prompt, read by an earlier request: 0 is a miss
    waited: float  # seconds in the queue
    first_token_after: float | None  # seconds from submission; None without a token
    took: float  # seconds from submission
    error: str = ""  # the message if finish_reason is ERROR
    state: Tensor | None = None  # [layers, width] to continue from, if requested
    unread: tuple[int, ...] = ()  # first tokens of a prompt that continues from the state
    cut: int = 0  # last characters of the last token that a stop string excludes from the answer; 0 for bytes


Event = TokenEvent | FinishEvent


@dataclass(eq=False)
class ActiveRequest:
    """A waiting or running request."""

    request_id: int
    request: Request
    output: Answer
    submitted: float  # seconds of the engine's clock
    tokens: list[int] = field(init=False)  # prompt and answer
    num_prompt: int = field(init=False)  # tokens of the prompt
    num_read: int = 0  # tokens that the model has read
    num_cached: int = 0
    next_kept: int = -1  # number of tokens after which the state is cached for other prompts; -1: not
    slot: int = -1  # in the cache; -1 while it waits
    admitted: float | None = None
    first_token: float | None = None  # time at which it was sampled
    cancelled: bool = False
    turn: int = 0  # order of the latest chunks of the prompts

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.num_prompt = len(self.tokens)

    @property
    def starts(self) -> bool:
        """Whether the next token to read is the first of its sequence."""
        return self.num_read == 0 and self.request.state is None

    @property
    def num_unread(self) -> int:
        """Tokens of the prompt that the model has not read; negative after the first token of the answer."""
        return self.num_prompt - self.num_read

    @property
    def is_read(self) -> bool:
        """Whether the model has read the prompt and all tokens of the answer."""
        return self.num_read == len(self.tokens)

    @property
    def samples(self) -> bool:
        """Whether the next token is sampled after the last one that was read."""
        return self.is_read and self.request.params.max_tokens > 0

    def take(self, sampled: Sampled, now: float, events: list[Event]) -> FinishReason | None:
        """Add the next token, and events for tokens that may be shown; return the reason if the answer ends."""
        if self.first_token is None:
            self.first_token = now
        self.tokens.append(sampled.token)
        num_shown = self.output.num_shown
        reason = self.output.add(sampled)
        for token in self.output.sampled[num_shown : self.output.num_shown]:
            events.append(TokenEvent(self.request_id, token))  # a list for one token takes longer
        return reason

    def finish(self, reason: FinishReason, now: float, *, error: str, state: Tensor | None) -> FinishEvent:
        """Return the last event."""
        return FinishEvent(
            self.request_id,
            reason,
            num_prompt_tokens=self.num_prompt,
            num_tokens=self.output.num_shown,
            num_cached_tokens=self.num_cached,
            waited=(now if self.admitted is None else self.admitted) - self.submitted,
            first_token_after=None if self.first_token is None else self.first_token - self.submitted,
            took=now - self.submitted,
            error=error,
            state=state,
            unread=tuple(self.tokens[self.num_read :]),
            cut=self.output.cut,
        )


@dataclass
class Tally:
    """Sums since the start of the engine; seconds of its clock."""

    finished: Counter[FinishReason] = field(default_factory=Counter)  # requests
    num_steps: int = 0  # with at least one row
    num_rows: int = 0  # tokens read one per step, of prompts and answers
    num_chunk_tokens: int = 0  # tokens of prompts read in chunks
    num_tokens: int = 0  # of answers, without held back ones
    num_admitted: int = 0
    waited_seconds: float = 0.0  # in the queue, of admitted requests
    num_first_tokens: int = 0  # of finished answers, as are the next three
    first_token_seconds: float = 0.0  # from submission to the first token
    num_later_tokens: int = 0  # sampled after the first
    later_token_seconds: float = 0.0  # from the first token to the end
    prefix_hits: int = 0  # requests that started from a cached state
    prefix_misses: int = 0

    def finish(self, end: FinishEvent, num_sampled: int) -> None:
        """Add a finished request; `num_sampled` counts tokens that were held back as well."""
        self.finished[end.finish_reason] += 1
        if end.first_token_after is not None:
            self.num_first_tokens += 1
            self.first_token_seconds += end.first_token_after
            self.num_later_tokens += num_sampled - 1
            self.later_token_seconds += end.took - end.first_token_after


@dataclass(frozen=True)
class EngineMetrics:
    """Metrics of one moment."""

    sums: Tally  # a copy
    num_waiting: int
    num_running: int
    prefix_bytes: int  # size of the cached states
