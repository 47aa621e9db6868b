"""How the next token of each request is drawn: parameters of a request, and the draw for a whole batch.

A row is drawn by a generator of its own and in float64, so that its tokens are a matter of its logits, its parameters
and its seed. R is the number of rows, V of the vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gflownet.rhn.logits_processors import (
    FrequencyPenaltyLogitsProcessor,
    History,
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from gflownet.rhn.stopping import Answer, EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

MAX_LOGPROBS = 20  # alternatives reported with a token, as OpenAI limits them
MAX_BIAS = 100.0  # likewise
MAX_PENALTY = 2.0  # likewise


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of its answer; the defaults sample from the model's own distribution.

    Raises:
        ValueError: a value out of its bounds, which the message names.
    """

    temperature: float = 1.0  # 0: the likeliest token, always
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # of tokens of prompt and answer; 1: none
    presence_penalty: float = 0.0  # of tokens of the answer
    frequency_penalty: float = 0.0  # likewise, per occurrence
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token
    seed: int | None = None  # None: another one each time
    max_tokens: int = 256
    min_tokens: int = 0  # before this many, nothing stops the answer
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # in UTF-8, one token per byte
    logprobs: int | None = None  # log-probabilities: None: none, n: of the token and of the n likeliest

    def __post_init__(self) -> None:
        """Check every value."""
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop: expected a tuple of strings that are not empty, got {self.stop!r}")
        for name, expected, is_valid in _BOUNDS:
            value = getattr(self, name)
            if not is_valid(value):
                raise ValueError(f"{name}: expected {expected}, got {value!r}")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: expected at most max_tokens = {self.max_tokens}, got {self.min_tokens}")

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Raise ValueError if a token or a stop string is none of a vocabulary's."""
        named = {"logit_bias": self.logit_bias, "stop_token_ids": self.stop_token_ids}
        for name, tokens in named.items():
            for token in tokens:
                if not 0 <= token < vocabulary_size:
                    raise ValueError(f"{name}: expected tokens of 0 .. {vocabulary_size - 1}, got {token}")
        if self.stop and vocabulary_size != 256:
            raise ValueError(f"stop: strings need a vocabulary of 256 bytes, this one has {vocabulary_size} tokens")

    def new_answer(self) -> Answer:
        """Return an answer without tokens that ends when this asks for it."""
        return Answer(
            EosTokenCriteria(frozenset(self.stop_token_ids)),
            StopStringCriteria(tuple(tuple(text.encode()) for text in self.stop)),
            MaxLengthCriteria(self.max_tokens),
            self.min_tokens,
        )


def _is_int(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


# name, what is expected, whether a value is that
_BOUNDS: tuple[tuple[str, str, Callable[..., bool]], ...] = (
    ("temperature", "a finite number >= 0", lambda value: _is_number(value, 0, 1e308)),
    ("top_k", "a whole number >= 0", lambda value: _is_int(value, 0)),
    ("top_p", "a number > 0 and <= 1", lambda value: _is_number(value, 0, 1) and value > 0),
    ("min_p", "a number from 0 to 1", lambda value: _is_number(value, 0, 1)),
    ("repetition_penalty", "a finite number > 0", lambda value: _is_number(value, 0, 1e308) and value > 0),
    ("presence_penalty", "a number from -2 to 2", lambda value: _is_number(value, -MAX_PENALTY, MAX_PENALTY)),
    ("frequency_penalty", "a number from -2 to 2", lambda value: _is_number(value, -MAX_PENALTY, MAX_PENALTY)),
    (
        "logit_bias",
        "numbers from -100 to 100 by token",
        lambda value: all(_is_int(key, 0) and _is_number(bias, -MAX_BIAS, MAX_BIAS) for key, bias in value.items()),
    ),
    ("seed", "a whole number or None", lambda value: value is None or _is_int(value, -(2**63), 2**64)),
    ("max_tokens", "a whole number >= 1", lambda value: _is_int(value, 1)),
    ("min_tokens", "a whole number >= 0", lambda value: _is_int(value, 0)),
    ("stop_token_ids", "a tuple of tokens", lambda value: all(_is_int(token, 0) for token in value)),
    ("logprobs", "a whole number from 0 to 20 or None", lambda v: v is None or _is_int(v, 0, MAX_LOGPROBS)),
)


class Sampled(NamedTuple):
    """A token, and what the model says of it before any processing."""

    token: int
    log_probability: float | None = None  # None where it was not asked for
    likeliest: tuple[tuple[int, float], ...] = ()  # (token, log-probability), likeliest first


@dataclass(frozen=True)
class _Seat:
    """What the sampler knows of the request in a slot."""

    params: SamplingParams
    generator: random.Random


@dataclass(frozen=True)
class _Batch:
    """What is the same for some slots until one of them changes hands."""

    slots: Tensor  # [R]
    seats: tuple[_Seat, ...]
    processors: tuple[LogitsProcessor, ...]
    greedy: Tensor | None  # [R] bool; None where every row is
    uses_history: bool


class Sampler:
    """Draws the next tokens of the requests that sit in slots."""

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        """Start with every slot empty."""
        self._vocabulary_size = vocabulary_size
        self._device = device
        self._seats: dict[int, _Seat] = {}
        shape = num_slots, vocabulary_size
        self._prompts, self._generated = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(2))
        self._num_generated = torch.zeros(num_slots, 1, dtype=torch.float64, device=device)
        self._batches: dict[tuple[int, ...], _Batch] = {}

    def place(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Seat a request: `params` must have been checked against the vocabulary."""
        seed = random.getrandbits(64) if params.seed is None else params.seed % 2**64
        self._seats[slot] = _Seat(params, random.Random(seed))
        self._batches.clear()
        if _uses_history(params):
            tokens = torch.tensor(prompt, dtype=torch.long, device=self._device)
            self._prompts[slot] = torch.bincount(tokens, minlength=self._vocabulary_size)
            self._generated[slot] = 0
            self._num_generated[slot] = 0

    def sample(self, slots: Sequence[int], logits: Tensor) -> list[Sampled]:
        """Return the next token of each slot from its row of logits [R, V]."""
        batch = self._batches.get(key := tuple(slots)) or self._new_batch(key)
        if batch.greedy is None and not batch.processors:
            tokens = logits.argmax(-1)
        else:
            tokens = self._draw(batch, logits.double())
        if batch.uses_history:
            self._generated.index_put_((batch.slots, tokens), torch.ones_like(tokens, dtype=torch.float64), True)
            self._num_generated[batch.slots] += 1
        chosen = tokens.tolist()
        if all(seat.params.logprobs is None for seat in batch.seats):
            return [Sampled(token) for token in chosen]
        return _with_logprobs(chosen, logits.double().log_softmax(-1), batch.seats)

    def _draw(self, batch: _Batch, scores: Tensor) -> Tensor:
        """Return tokens [R] from float64 logits [R, V]."""
        if batch.uses_history:
            history = History(*(part[batch.slots] for part in (self._prompts, self._generated, self._num_generated)))
        else:
            history = _NO_HISTORY
        for processor in batch.processors:
            scores = processor(history, scores)
        if batch.greedy is None:
            return scores.argmax(-1)
        # One draw per token and request, greedy or not: what is drawn next does not depend on the neighbours.
        draws = torch.tensor([seat.generator.random() for seat in batch.seats], dtype=torch.float64)
        cumulative = scores.softmax(-1).cumsum(-1)
        total = cumulative[:, -1:]
        # Below the total even where the product rounds up to it: the token that is found has a probability above 0.
        points = torch.minimum(draws.to(scores.device).unsqueeze(-1) * total, total.nextafter(torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, points, right=True).squeeze(-1)
        return torch.where(batch.greedy, scores.argmax(-1), drawn)

    def _new_batch(self, slots: tuple[int, ...]) -> _Batch:
        seats = tuple(self._seats[slot] for slot in slots)
        greedy = [seat.params.temperature == 0 for seat in seats]
        batch = _Batch(
            torch.tensor(slots, device=self._device),
            seats,
            tuple(_processors([seat.params for seat in seats], self._vocabulary_size, self._device)),
            None if all(greedy) else torch.tensor(greedy, device=self._device),
            any(_uses_history(seat.params) for seat in seats),
        )
        self._batches[slots] = batch
        return batch


_NO_HISTORY = History(torch.zeros(()), torch.zeros(()), torch.zeros(()))


def _uses_history(params: SamplingParams) -> bool:
    changed = (params.repetition_penalty != 1, params.presence_penalty, params.frequency_penalty, params.min_tokens)
    return any(changed)


def _processors(all_params: Sequence[SamplingParams], size: int, device: torch.device) -> list[LogitsProcessor]:
    """Return the steps that any of some requests asks for, in Hugging Face's order."""

    def column(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device).unsqueeze(-1)

    def of(name: str) -> list[float]:
        return [getattr(params, name) for params in all_params]

    found: list[LogitsProcessor] = []
    if any(value != 1 for value in of("repetition_penalty")):
        found.append(RepetitionPenaltyLogitsProcessor(column(of("repetition_penalty"))))
    if any(of("presence_penalty")) or any(of("frequency_penalty")):
        found.append(FrequencyPenaltyLogitsProcessor(column(of("presence_penalty")), column(of("frequency_penalty"))))
    if any(of("logit_bias")):
        found.append(SequenceBiasLogitsProcessor(_bias(all_params, size).to(device)))
    if any(of("min_tokens")):
        ends = torch.zeros(len(all_params), size, dtype=torch.bool)
        for row, params in enumerate(all_params):
            ends[row, list(params.stop_token_ids)] = True
        found.append(MinNewTokensLengthLogitsProcessor(column(of("min_tokens")), ends.to(device)))
    sampled = [params for params in all_params if params.temperature > 0]
    if sampled:
        # A greedy row is divided by 1: its largest score stays its largest.
        found.append(TemperatureLogitsWarper(column([value or 1.0 for value in of("temperature")])))
    if any(params.top_k for params in sampled):
        top_k = [min(value, size) or size for value in of("top_k")]
        found.append(TopKLogitsWarper(column(top_k, torch.long)))
    if any(params.top_p < 1 for params in sampled):
        found.append(TopPLogitsWarper(column(of("top_p"))))
    if any(params.min_p for params in sampled):
        found.append(MinPLogitsWarper(column(of("min_p")).log()))
    return found


def _bias(all_params: Sequence[SamplingParams], size: int) -> Tensor:
    bias = torch.zeros(len(all_params), size, dtype=torch.float64)
    for row, params in enumerate(all_params):
        for token, value in params.logit_bias.items():
            bias[row, token] = value
    return bias


def _with_logprobs(chosen: list[int], log_probabilities: Tensor, seats: Sequence[_Seat]) -> list[Sampled]:
    """Return what was drawn with the log-probabilities [R, V] that each request asks for."""
    found = []
    for row, (token, seat) in enumerate(zip(chosen, seats, strict=True)):
        count = seat.params.logprobs
        if count is None:
            found.append(Sampled(token))
            continue
        values, tokens = log_probabilities[row].topk(min(count, log_probabilities.shape[1]))
        likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        found.append(Sampled(token, log_probabilities[row, token].item(), likeliest))
    return found
