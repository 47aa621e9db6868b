"""Requests to the engine, its events, and its state per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.sampling import Sampled, SamplingParams
from gflownet.rhn.serving.stopping import Answer, FinishReason


@dataclass(frozen=True)
class Request:
    """A prompt and how it is to be answered."""

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0  # -100 .. 100, lower is more urgent
    state: Tensor | None = None  # [layers, width] of the tokens before the prompt
    keep_state: bool = False  # whether the last event has the state to go on from

    def check(self, model: LanguageModel) -> None:
        """Raise ValueError for a request that the model cannot answer."""
        check_prompt(self.prompt, model.vocabulary_size)
        self.params.check_vocabulary(model.vocabulary_size)
        if self.state is not None and tuple(self.state.shape) != model.state_shape:
            raise ValueError(f"state: expected {model.state_shape} as (layers, width), got {tuple(self.state.shape)}")


def check_prompt(prompt: Sequence[int], vocabulary_size: int) -> None:
    """Raise ValueError for a prompt without tokens or with one that a model does not know."""
    if not prompt:
        raise ValueError("prompt: expected at least one token, got none")
    if min(prompt) < 0 or max(prompt) >= vocabulary_size:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary_size)
        raise ValueError(f"prompt: expected tokens of 0 .. {vocabulary_size - 1}, got {wrong}")


class TokenEvent(NamedTuple):
    """A token of an answer."""

    request_id: int
    sampled: Sampled


@dataclass(frozen=True)
class FinishEvent:
    """The end of a request; nothing comes after it."""

    request_id: int
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_tokens: int  # of the answer, without held back ones
    num_cached_tokens: int  # of the prompt, that an earlier request had read: 0 is a miss
    waited: float  # seconds in the queue
    first_token_after: float | None  # seconds from submission; None where there is none
    took: float  # seconds from submission
    error: str = ""  # the error, where that is the reason
    state: Tensor | None = None  # [layers, width] to go on from, if requested
    unread: tuple[int, ...] = ()  # first tokens of a prompt that goes on from the state


Event = TokenEvent | FinishEvent


@dataclass(eq=False)
class ActiveRequest:
    """A request that waits or runs."""

    request_id: int
    request: Request
    submitted: float  # seconds of the engine's clock
    tokens: list[int] = field(init=False)  # prompt and answer
    num_prompt: int = field(init=False)  # tokens of the prompt
    answer: Answer = field(init=False)
    num_read: int = 0  # of the tokens: the model's state is that after these
    num_told: int = 0  # of the answer
    num_cached: int = 0
    next_kept: int = -1  # how many tokens are read when the state is next kept for other prompts; -1: it is not
    slot: int = -1  # in the cache; -1 while it waits
    admitted: float | None = None
    first_token: float | None = None  # when it was drawn
    cancelled: bool = False
    untold: list[Sampled] = field(default_factory=list)  # drawn, but a stop string may have begun

    def __post_init__(self) -> None:
        """Begin with a copy of the prompt."""
        self.tokens = list(self.request.prompt)
        self.num_prompt = len(self.tokens)
        self.answer = self.request.params.new_answer()

    @property
    def starts(self) -> bool:
        """Whether the next token to read is the first of its sequence."""
        return self.num_read == 0 and self.request.state is None

    def take(self, sampled: Sampled, now: float, events: list[Event]) -> FinishReason | None:
        """Add the next token, and events for tokens that may be shown; return the reason if the answer ends."""
        if self.first_token is None:
            self.first_token = now
        self.tokens.append(sampled.token)
        reason = self.answer.add(sampled.token)
        self.untold.append(sampled)
        num_new = self.answer.num_shown - self.num_told
        if num_new:
            self.num_told += num_new
            events += [TokenEvent(self.request_id, shown) for shown in self.untold[:num_new]]
            del self.untold[:num_new]
        return reason
