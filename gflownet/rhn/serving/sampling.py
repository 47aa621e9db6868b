"""Sampling parameters with their bounds, and sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gflownet.rhn.text_codec import BYTES, ByteCodec, TextCodec

MAX_LOGPROBS = 20  # alternatives reported with a token; limits of this and the next two lines are OpenAI's
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 100.0  # and at least its inverse: scores of any float32 model stay finite in float64
MAX_TEMPERATURE = 1e6  # above, the distribution is uniform to six digits
MAX_INT = 2**31 - 1  # of counts
SEEDS = -(2**63), 2**64 - 1  # any 64-bit integer, signed or not


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # max_tokens
    CANCELLED = "cancelled"
    ERROR = "error"


class SamplingError(Exception):
    """No token can be sampled for a request; the other requests of the batch are not affected."""


class Sampled(NamedTuple):
    """A token, and its log-probability under the model before any processing."""

    token: int
    log_probability: float | None = None  # None if not requested
    likeliest: tuple[tuple[int, float], ...] = ()  # (token, log-probability), likeliest first


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request; the defaults sample from the model's distribution.

    Raises:
        ValueError: a value out of its bounds, which the message names.
    """

    temperature: float = 1.0  # 0: always the likeliest token; at most 1e6
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # of tokens of prompt and answer; 1: none; 0.01 to 100
    presence_penalty: float = 0.0  # of tokens of the answer
    frequency_penalty: float = 0.0  # of tokens of the answer, per occurrence
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token
    seed: int | None = None  # None: another one each time
    max_tokens: int = 256  # 0: the prompt is read only
    min_tokens: int = 0  # nothing stops the answer before
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # the answer ends before the first of these texts
    logprobs: int | None = None  # None: none; n: log-probabilities of the token and of the n likeliest

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop: expected a tuple of strings that are not empty, got {self.stop!r}")
        for name, expected, is_valid in _BOUNDS:
            value = getattr(self, name)
            if not is_valid(value):
                raise ValueError(f"{name}: expected {expected}, got {value!r}")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: expected at most max_tokens = {self.max_tokens}, got {self.min_tokens}")

    def check_vocabulary(self, vocabulary_size: int, codec: TextCodec = BYTES) -> None:
        """Raise ValueError for a token outside a vocabulary, or stop strings that the codec cannot find in answers."""
        for name, tokens in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in tokens:
                if not 0 <= token < vocabulary_size:
                    raise ValueError(f"{name}: expected tokens of 0 .. {vocabulary_size - 1}, got {token}")
        if self.min_tokens and len({*self.stop_token_ids}) == vocabulary_size:
            raise ValueError("stop_token_ids: expected some token that does not stop, for min_tokens, got all")
        if self.stop and isinstance(codec, ByteCodec) and vocabulary_size != codec.vocabulary_size:
            size = codec.vocabulary_size
            raise ValueError(f"stop: strings need a vocabulary of {size} bytes, this one has {vocabulary_size} tokens")


def _is_int(value: object, low: int, high: int = MAX_INT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


# name, expected values, check of a value
_BOUNDS: tuple[tuple[str, str, Callable[..., bool]], ...] = (
    ("temperature", "a number from 0 to 1e6", lambda value: _is_number(value, 0, MAX_TEMPERATURE)),
    ("top_k", f"a whole number from 0 to {MAX_INT}", lambda value: _is_int(value, 0)),
    ("top_p", "a number > 0 and <= 1", lambda value: _is_number(value, 0, 1) and value > 0),
    ("min_p", "a number from 0 to 1", lambda value: _is_number(value, 0, 1)),
    (
        "repetition_penalty",
        "a number from 0.01 to 100",
        lambda value: _is_number(value, 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    ),
    ("presence_penalty", "a number from -2 to 2", lambda value: _is_number(value, -MAX_PENALTY, MAX_PENALTY)),
    ("frequency_penalty", "a number from -2 to 2", lambda value: _is_number(value, -MAX_PENALTY, MAX_PENALTY)),
    (
        "logit_bias",
        "numbers from -100 to 100 by token",
        lambda value: all(_is_int(key, 0) and _is_number(bias, -MAX_BIAS, MAX_BIAS) for key, bias in value.items()),
    ),
    ("seed", "a whole number of 64 bits or None", lambda value: value is None or _is_int(value, *SEEDS)),
    ("max_tokens", f"a whole number from 0 to {MAX_INT}", lambda value: _is_int(value, 0)),
    ("min_tokens", f"a whole number from 0 to {MAX_INT}", lambda value: _is_int(value, 0)),
    ("stop_token_ids", "a tuple of tokens", lambda value: all(_is_int(token, 0) for token in value)),
    (
        "logprobs",
        f"a whole number from 0 to {MAX_LOGPROBS} or None",
        lambda value: value is None or _is_int(value, 0, MAX_LOGPROBS),
    ),
)
