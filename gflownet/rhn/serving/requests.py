"""Requests to the engine, its events and metrics, its state per request, and conditions that end an answer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.text_codec import TextCodec, TextStream


@dataclass(frozen=True)
class Request:
    """A prompt and its options."""

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    state: Tensor | None = None  # [layers, width] of the tokens before the prompt
    keep_state: bool = False  # whether the finish event holds the state to continue from


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


class AnswerEnd(NamedTuple):
    """End of an answer before a stop string."""

    num_tokens: int  # that hold the text of the answer
    cut: int = 0  # last characters of these tokens that are not part of the answer


class TextStops:
    """Stop strings in the decoded text of one answer: they may begin and end inside a token."""

    def __init__(self, texts: Sequence[str], stream: TextStream) -> None:
        """`texts` are not empty; `stream` decodes the answer."""
        self._texts, self._stream = texts, stream
        self._longest = max(map(len, texts))
        self._ends: list[int] = []  # characters of the text after each token
        self._tail = ""  # last characters of the text, fewer than the longest stop string has

    def end(self, token: int) -> AnswerEnd | None:
        """Return the end of the answer if a stop string ends in the next token; called once for every token."""
        before = self._ends[-1] if self._ends else 0
        piece = self._stream.text([token])
        first, text = before - len(self._tail), self._tail + piece
        self._ends.append(before + len(piece))
        self._tail = text[max(0, len(text) - self._longest + 1) :]
        # A stop string that ended in an earlier token did not end the answer: it had too few tokens.
        found = [text.find(stop, max(0, before - first - len(stop) + 1)) for stop in self._texts]
        starts = [first + start for start in found if start >= 0]
        if not starts:
            return None
        num_tokens = self._num_covering(min(starts))
        return AnswerEnd(num_tokens, self._ends[num_tokens - 1] - min(starts) if num_tokens else 0)

    def num_shown(self) -> int:
        """Return the number of first tokens that no stop string can contain, and whose characters are complete."""
        limit = self._ends[-1] - self._num_open()
        num_tokens = self._num_covering(limit)
        if num_tokens and self._ends[num_tokens - 1] > limit:
            num_tokens = self._num_covering(self._ends[num_tokens - 2]) if num_tokens > 1 else 0
        return num_tokens

    def _num_open(self) -> int:
        """Return the maximum number of last characters that may be the beginning of a stop string."""
        for start in range(len(self._tail)):
            tail = self._tail[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._texts):
                return len(tail)
        return 0

    def _num_covering(self, num_characters: int) -> int:
        """Return the number of first tokens that hold the first characters of the text."""
        return bisect_left(self._ends, num_characters) + 1 if num_characters else 0


class Answer:
    """The tokens of one answer; `num_shown` excludes tokens that may be the beginning of a stop string."""

    def __init__(self, params: SamplingParams, codec: TextCodec) -> None:
        """Start without tokens; `params` have the stopping criteria, `codec` decodes the tokens."""
        self.sampled: list[Sampled] = []
        self.num_shown = 0
        self.cut = 0  # characters of the last shown token that are not part of the answer
        self._stops = TextStops(params.stop, codec.stream()) if params.stop else None
        self._last_tokens = frozenset(params.stop_token_ids)  # end the answer and are not part of it
        self._max_tokens, self._min_tokens = params.max_tokens, params.min_tokens
        self._may_stop = bool(self._last_tokens) or self._stops is not None

    def add(self, sampled: Sampled) -> FinishReason | None:
        """Add the next token, update `num_shown`, and return the reason if the answer ends."""
        self.sampled.append(sampled)
        num_tokens, stops = len(self.sampled), self._stops
        if not self._may_stop:  # most answers
            self.num_shown = num_tokens
            return FinishReason.LENGTH if num_tokens >= self._max_tokens else None
        end = stops.end(sampled.token) if stops else None
        if num_tokens > self._min_tokens:
            if sampled.token in self._last_tokens:
                end = AnswerEnd(num_tokens - 1)
            if end is not None:
                # Tokens that were shown while min_tokens suppressed a stop string stay shown.
                if end.num_tokens >= self.num_shown:
                    self.num_shown, self.cut = end
                return FinishReason.STOP
        if num_tokens >= self._max_tokens:
            self.num_shown = num_tokens
            return FinishReason.LENGTH
        self.num_shown = max(self.num_shown, stops.num_shown() if stops else num_tokens)
        return None


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
