"""Conditions that end an answer, and the tokens of an answer that may be shown before its end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.text_codec import TextCodec, TextStream


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

    def end(self, tokens: Sequence[int]) -> AnswerEnd | None:
        """Return the end of the answer if a stop string ends in the last token; called once for every token."""
        before = self._ends[-1] if self._ends else 0
        piece = self._stream.text(tokens[-1:])
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

    def num_shown(self, tokens: Sequence[int]) -> int:
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


@dataclass
class Answer:
    """The tokens of one answer; `num_shown` excludes tokens that may be the beginning of a stop string."""

    stop_token_ids: frozenset[int]  # end the answer and are not part of it
    stop_strings: TextStops | None
    max_tokens: int
    min_tokens: int = 0
    sampled: list[Sampled] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    num_shown: int = 0
    cut: int = 0  # characters of the last shown token that are not part of the answer

    def __post_init__(self) -> None:
        self._may_stop = bool(self.stop_token_ids) or self.stop_strings is not None

    def add(self, sampled: Sampled) -> FinishReason | None:
        """Add the next token, update `num_shown`, and return the reason if the answer ends."""
        self.sampled.append(sampled)
        self.tokens.append(sampled.token)
        if not self._may_stop:  # most answers
            self.num_shown = len(self.tokens)
            return FinishReason.LENGTH if self.num_shown >= self.max_tokens else None
        stops = self.stop_strings
        end = stops.end(self.tokens) if stops else None
        if len(self.tokens) > self.min_tokens:
            if sampled.token in self.stop_token_ids:
                end = AnswerEnd(len(self.tokens) - 1)
            if end is not None:
                # Tokens that were shown while min_tokens suppressed a stop string stay shown.
                if end.num_tokens >= self.num_shown:
                    self.num_shown, self.cut = end
                return FinishReason.STOP
        if len(self.tokens) >= self.max_tokens:
            self.num_shown = len(self.tokens)
            return FinishReason.LENGTH
        num_shown = stops.num_shown(self.tokens) if stops else len(self.tokens)
        self.num_shown = max(self.num_shown, num_shown)
        return None


def new_answer(params: SamplingParams, codec: TextCodec) -> Answer:
    """Return an empty answer with the stopping criteria of a request; `codec` decodes its tokens."""
    stops = TextStops(params.stop, codec.stream()) if params.stop else None
    return Answer(frozenset(params.stop_token_ids), stops, params.max_tokens, params.min_tokens)
