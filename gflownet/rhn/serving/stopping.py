"""Conditions that end an answer, named as in Hugging Face, and the tokens that may be shown before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # max_tokens
    CANCELLED = "cancelled"
    ERROR = "error"


class StoppingCriteria(Protocol):
    """One condition that ends an answer."""

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the answer's last tokens are not part of it when it ends here; None: it goes on."""
        ...


@dataclass(frozen=True)
class EosTokenCriteria:
    """Ends at one of some tokens, which is not part of the answer."""

    token_ids: frozenset[int]

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """Return 1 or None."""
        return 1 if tokens[-1] in self.token_ids else None


@dataclass(frozen=True)
class StopStringCriteria:
    """Ends after one of some sequences of tokens, which is not part of the answer; the one that began first counts."""

    sequences: tuple[tuple[int, ...], ...]  # none empty

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """Return the length of the sequence, or None."""
        return max((len(s) for s in self.sequences if tuple(tokens[-len(s) :]) == s), default=None)

    def num_open(self, tokens: Sequence[int]) -> int:
        """Return how many of the last tokens may be the beginning of a sequence that ends the answer."""
        longest = max(map(len, self.sequences), default=0) - 1
        for count in range(min(longest, len(tokens)), 0, -1):
            tail = tuple(tokens[-count:])
            if any(len(s) > count and s[:count] == tail for s in self.sequences):
                return count
        return 0


@dataclass(frozen=True)
class MaxLengthCriteria:
    """Ends after so many tokens of the answer, all of them part of it."""

    max_tokens: int

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """Return 0 or None."""
        return 0 if len(tokens) >= self.max_tokens else None


@dataclass
class Answer:
    """The tokens of one answer as they come; those that may turn out not to be part of it are held back."""

    eos: EosTokenCriteria
    stop_strings: StopStringCriteria
    max_length: MaxLengthCriteria
    min_tokens: int
    tokens: list[int] = field(default_factory=list)
    num_shown: int = 0

    def __post_init__(self) -> None:
        """See whether anything but the length may end the answer."""
        self._may_stop = bool(self.eos.token_ids or self.stop_strings.sequences)

    def add(self, token: int) -> FinishReason | None:
        """Take the next token; return why the answer ends with it. `num_shown` is how many tokens are safe to show."""
        self.tokens.append(token)
        held = 0
        if self._may_stop:
            dropped = self._dropped()
            if dropped is not None:
                # Tokens that were shown before a stop string counted stay shown.
                self.num_shown = max(self.num_shown, len(self.tokens) - dropped)
                return FinishReason.STOP
            held = self.stop_strings.num_open(self.tokens)
        if self.max_length(self.tokens) is not None:
            self.num_shown = len(self.tokens)
            return FinishReason.LENGTH
        self.num_shown = len(self.tokens) - held
        return None

    def _dropped(self) -> int | None:
        """Return how many of the last tokens are not part of the answer, if it ends here."""
        if len(self.tokens) <= self.min_tokens:
            return None
        dropped = self.eos(self.tokens)
        return self.stop_strings(self.tokens) if dropped is None else dropped
