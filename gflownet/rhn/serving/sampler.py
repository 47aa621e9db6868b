"""Draw the next tokens of a batch, each row by the parameters of its request.

Each row has its own generator and is drawn in float64: its token is a function of its logits, parameters and seed.
R is the number of rows, V of the vocabulary.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.serving.logits_processors import (
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
from gflownet.rhn.serving.sampling import Sampled, SamplingError, SamplingParams

_log = logging.getLogger(__name__)

# Options of a request, as bits: an `enum.Flag` takes longer to read than a row to draw.
_REPETITION, _FREQUENCY, _BIAS, _MIN_TOKENS, _DRAW, _TOP_K, _TOP_P, _MIN_P, _LOGPROBS = (1 << bit for bit in range(9))
_HISTORY = _REPETITION | _FREQUENCY | _MIN_TOKENS
_PER_TOKEN = _HISTORY | _BIAS
_PROCESSED = _PER_TOKEN | _DRAW
# A product with a sum of probabilities is then below the sum, so that a drawn token has a probability above 0.
_BELOW_ONE = 1 - 2.0**-52
_NO_HISTORY = History(torch.zeros(()), torch.zeros(()), torch.zeros(()))


def _uses(params: SamplingParams) -> int:
    draws = params.temperature > 0
    asked = {
        _REPETITION: params.repetition_penalty != 1,
        _FREQUENCY: params.presence_penalty != 0 or params.frequency_penalty != 0,
        _BIAS: bool(params.logit_bias),
        _MIN_TOKENS: params.min_tokens > 0 and bool(params.stop_token_ids),
        _DRAW: draws,
        _TOP_K: draws and params.top_k > 0,
        _TOP_P: draws and params.top_p < 1,
        _MIN_P: draws and params.min_p > 0,
        _LOGPROBS: params.logprobs is not None,
    }
    return sum(flag for flag, is_asked in asked.items() if is_asked)


# None where no token was requested.
Draw = Sampled | SamplingError | None


@dataclass(frozen=True)
class _Seat:
    """The request in a slot."""

    params: SamplingParams
    uses: int
    generator: random.Random


@dataclass(frozen=True)
class _Batch:
    """Constants of some slots until a request leaves or enters one of them."""

    slots: Tensor  # [R]
    seats: tuple[_Seat, ...]
    uses: int
    processors: tuple[LogitsProcessor, ...]
    greedy: Tensor | None  # [R] bool; None where no row is, or none is drawn


class _Tables:
    """Token counts, biases and stop tokens of each slot [slots, V]; made when a request needs them."""

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        """Start from zero."""
        shape = num_slots, vocabulary_size
        self.prompts, self.generated, self.bias = (
            torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3)
        )
        self.ends = torch.zeros(shape, dtype=torch.bool, device=device)
        self.num_generated = torch.zeros(num_slots, 1, dtype=torch.float64, device=device)

    def place(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Start from a prompt."""
        device = self.prompts.device
        tokens = torch.tensor(prompt, device=device)
        self.prompts[slot] = torch.bincount(tokens, minlength=self.prompts.shape[1])
        for table in (self.generated, self.num_generated, self.bias, self.ends):
            table[slot] = 0
        self.ends[slot, list(params.stop_token_ids)] = True
        self.bias[slot, list(params.logit_bias)] = torch.tensor(
            list(params.logit_bias.values()), dtype=torch.float64, device=device
        )

    def history(self, slots: Tensor) -> History:
        """Return the token counts of some slots."""
        return History(self.prompts[slots], self.generated[slots], self.num_generated[slots])

    def add(self, slots: Tensor, tokens: Tensor) -> None:
        """Take the token [R] that each slot was given."""
        self.generated[slots, tokens] += 1
        self.num_generated[slots] += 1


class Sampler:
    """Draws the next tokens of the requests that sit in slots.

    Not safe to call from several threads at once.
    """

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        """Start with every slot empty."""
        self._shape = num_slots, vocabulary_size
        self._device = device
        self._seats: dict[int, _Seat] = {}
        self._plain = [Sampled(token) for token in range(vocabulary_size)]
        self._tables: _Tables | None = None
        self._batches: dict[tuple[int, ...], _Batch] = {}

    def place(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Seat a request: `params` must have been checked against the vocabulary."""
        seed = random.getrandbits(64) if params.seed is None else params.seed % 2**64
        seat = self._seats[slot] = _Seat(params, _uses(params), random.Random(seed))
        self._batches.clear()
        if seat.uses & _PER_TOKEN:
            if self._tables is None:
                self._tables = _Tables(*self._shape, self._device)
            self._tables.place(slot, params, prompt)

    def sample(self, slots: Sequence[int], logits: Tensor, asking: Sequence[bool]) -> list[Draw]:
        """Return the next token of each slot where `asking`, from its row of logits [R, V]; None for the others.

        A row whose logits or processed scores are not finite, or whose parameters make a processor raise, gets a
        `SamplingError`; the other rows are drawn as without it.
        """
        largest, tokens = logits.max(-1)
        errors = _errors(largest, asking, "the model's logits are not finite")
        if errors:
            asking = [asks and row not in errors for row, asks in enumerate(asking)]
            logits = torch.where(torch.tensor(asking, device=self._device).unsqueeze(-1), logits, 0)
        try:
            batch = self._batch(tuple(slots))
            scores = self._scores(batch, logits) if batch.uses & _PROCESSED else None
        except Exception as error:
            if len(slots) == 1:
                _log.exception("sampling failed")
                return [SamplingError(f"sampling failed: {type(error).__name__}: {error}")]
            rows = [([slot], logits[row : row + 1], [asking[row]]) for row, slot in enumerate(slots)]
            return [errors[row] if row in errors else self.sample(*each)[0] for row, each in enumerate(rows)]
        if scores is not None:
            certainty, tokens = self._draw(batch, scores, asking)
            errors |= _errors(certainty, asking, "the parameters of the request leave no token with a finite score")
        if batch.uses & _HISTORY:
            assert self._tables is not None
            rows = torch.tensor([row for row, asks in enumerate(asking) if asks], dtype=torch.long, device=self._device)
            self._tables.add(batch.slots[rows], tokens[rows])
        found = self._sampled(batch, tokens.tolist(), logits, asking)
        return [errors.get(row, sampled) for row, sampled in enumerate(found)] if errors else found

    def _batch(self, slots: tuple[int, ...]) -> _Batch:
        batch = self._batches.get(slots)
        if batch is None:
            batch = self._batches[slots] = self._new_batch(slots)
        return batch

    def _scores(self, batch: _Batch, logits: Tensor) -> Tensor:
        """Return the processed scores, float64 [R, V]."""
        history, scores = _NO_HISTORY, logits.double()
        if batch.uses & _HISTORY:
            assert self._tables is not None
            history = self._tables.history(batch.slots)
        for processor in batch.processors:
            scores = processor(history, scores)
        return scores

    def _draw(self, batch: _Batch, scores: Tensor, asking: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """Return tokens [R] from scores [R, V], after numbers [R] that are finite where there is a token to draw.

        A row without a request for a token, or without one to draw, gets any.
        """
        if not batch.uses & _DRAW:
            largest, tokens = scores.max(-1)
            return largest, tokens
        # One draw per token of a request: the next one does not depend on the other rows.
        draws = [
            [seat.generator.random() * _BELOW_ONE if asks else 0.0]
            for seat, asks in zip(batch.seats, asking, strict=True)
        ]
        cumulative = scores.softmax(-1).cumsum(-1)
        totals = cumulative[:, -1:]
        points = torch.tensor(draws, dtype=torch.float64, device=self._device) * totals
        # Of a total of NaN the position is V, which is no token.
        tokens = torch.searchsorted(cumulative, points, right=True).squeeze(-1).clamp_(max=scores.shape[-1] - 1)
        if batch.greedy is not None:
            tokens = torch.where(batch.greedy, scores.max(-1).indices, tokens)
        return totals.squeeze(-1), tokens

    def _sampled(self, batch: _Batch, tokens: list[int], logits: Tensor, asking: Sequence[bool]) -> list[Draw]:
        if batch.uses & _LOGPROBS:
            return _with_logprobs(tokens, logits, batch.seats, asking)
        plain = self._plain
        return [plain[token] if asks else None for token, asks in zip(tokens, asking, strict=True)]

    def _new_batch(self, slots: tuple[int, ...]) -> _Batch:
        seats = tuple(self._seats[slot] for slot in slots)
        uses = 0
        for seat in seats:
            uses |= seat.uses
        where = torch.from_numpy(np.array(slots)).to(self._device)
        if not uses & _PROCESSED:
            return _Batch(where, seats, uses, (), None)
        params = [seat.params for seat in seats]
        greedy = [each.temperature == 0 for each in params]
        mask = torch.tensor(greedy, device=self._device) if any(greedy) else None
        return _Batch(where, seats, uses, tuple(self._processors(uses, params, where)), mask)

    def _processors(self, uses: int, params: Sequence[SamplingParams], slots: Tensor) -> list[LogitsProcessor]:
        """Return the processors that any of some requests needs, in Hugging Face's order."""

        def column(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self._device).unsqueeze(-1)

        found: list[LogitsProcessor] = []
        if uses & _REPETITION:
            found.append(RepetitionPenaltyLogitsProcessor(column([each.repetition_penalty for each in params])))
        if uses & _FREQUENCY:
            presence = column([each.presence_penalty for each in params])
            found.append(FrequencyPenaltyLogitsProcessor(presence, column([each.frequency_penalty for each in params])))
        if uses & (_BIAS | _MIN_TOKENS):
            # Without options by token, the tables of a slot hold entries of an earlier request: its end tokens do not
            # matter without a minimum number of tokens.
            asks = torch.tensor([bool(_uses(each) & _PER_TOKEN) for each in params], device=self._device).unsqueeze(-1)
            assert self._tables is not None
            found.append(SequenceBiasLogitsProcessor(torch.where(asks, self._tables.bias[slots], 0.0)))
            min_tokens = column([each.min_tokens if each.stop_token_ids else 0 for each in params])
            found.append(MinNewTokensLengthLogitsProcessor(min_tokens, self._tables.ends[slots]))
        if uses & _DRAW:
            # A greedy row is divided by 1: its largest score stays its largest.
            found.append(TemperatureLogitsWarper(column([each.temperature or 1.0 for each in params])))
        if uses & _TOP_K:
            size = self._shape[1]
            found.append(TopKLogitsWarper(column([min(each.top_k, size) or size for each in params], torch.long)))
        if uses & _TOP_P:
            found.append(TopPLogitsWarper(column([each.top_p for each in params])))
        if uses & _MIN_P:
            found.append(
                MinPLogitsWarper(column([math.log(each.min_p) if each.min_p else -math.inf for each in params]))
            )
        return found


def _errors(certainty: Tensor, asking: Sequence[bool], message: str) -> dict[int, SamplingError]:
    """Return an error for each row [R] with a request for a token and a number that is not finite."""
    values = certainty.tolist()
    if math.isfinite(sum(values)):
        return {}
    pairs = zip(values, asking, strict=True)
    return {row: SamplingError(message) for row, (value, asks) in enumerate(pairs) if asks and not math.isfinite(value)}


def _with_logprobs(chosen: list[int], logits: Tensor, seats: Sequence[_Seat], asking: Sequence[bool]) -> list[Draw]:
    """Return the drawn tokens with the requested log-probabilities."""
    log_probabilities = logits.double().log_softmax(-1)
    found: list[Draw] = []
    for row, (token, seat) in enumerate(zip(chosen, seats, strict=True)):
        count = seat.params.logprobs
        if not asking[row]:
            found.append(None)
        elif count is None:
            found.append(Sampled(token))
        else:
            values, tokens = log_probabilities[row].topk(min(count, log_probabilities.shape[1]))
            likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
            found.append(Sampled(token, log_probabilities[row, token].item(), likeliest))
    return found
