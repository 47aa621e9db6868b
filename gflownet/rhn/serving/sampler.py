"""Sample the next tokens of a batch, each row with the parameters of its request.

Each row has its own generator and is sampled in float64: its token is a function of its logits, parameters and seed.
Processors have the names of Hugging Face and different parameters for every row; a neutral parameter leaves its row
unchanged to the bit. R is the number of rows, V of the vocabulary; scores are float64.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.serving.sampling import Sampled, SamplingError, SamplingParams


@dataclass(frozen=True)
class History:
    """Token counts of the prompts and answers so far."""

    prompts: Tensor  # [R, V], occurrences of each token in the prompt
    generated: Tensor  # [R, V], occurrences of each token in the answer
    num_generated: Tensor  # [R, 1]


def descending(x: Tensor) -> Tensor:
    """Return the rows [R, V] in descending order; on a CPU by numpy, in a twentieth of torch's time."""
    if x.device.type == "cpu":
        return -torch.from_numpy(np.sort(-x.numpy(), axis=-1))
    return x.sort(-1, descending=True).values


# One step from the logits to the scores that a token is sampled from, [R, V] both.
LogitsProcessor = Callable[[History, Tensor], Tensor]


@dataclass(frozen=True)
class RepetitionPenaltyLogitsProcessor:
    """Divide positive scores of tokens of prompt and answer by a penalty, multiply negative ones (Keskar 2019)."""

    penalty: Tensor  # [R, 1], > 0

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the penalised scores."""
        occurs = (history.prompts + history.generated) > 0
        penalised = torch.where(scores > 0, scores / self.penalty, scores * self.penalty)
        return torch.where(occurs, penalised, scores)


@dataclass(frozen=True)
class FrequencyPenaltyLogitsProcessor:
    """Subtract one constant from the scores of generated tokens, and another per occurrence; the names are OpenAI's."""

    presence: Tensor  # [R, 1]
    frequency: Tensor  # [R, 1]

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the penalised scores."""
        occurs = (history.generated > 0).to(scores.dtype)
        return scores - self.presence * occurs - self.frequency * history.generated


@dataclass(frozen=True)
class SequenceBiasLogitsProcessor:
    """Add a bias to the scores of single tokens."""

    bias: Tensor  # [R, V]

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the shifted scores."""
        return scores + self.bias


@dataclass(frozen=True)
class MinNewTokensLengthLogitsProcessor:
    """Exclude stop tokens until an answer has its minimum number of tokens."""

    min_tokens: Tensor  # [R, 1]
    ends: Tensor  # [R, V] bool

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf for excluded tokens."""
        return scores.masked_fill(self.ends & (history.num_generated < self.min_tokens), -math.inf)


@dataclass(frozen=True)
class TemperatureLogitsWarper:
    """Divide by the temperature."""

    temperature: Tensor  # [R, 1], > 0

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return (scores - largest score) / temperature, which does not overflow at low temperatures."""
        return (scores - scores.max(-1, keepdim=True).values) / self.temperature


@dataclass(frozen=True)
class TopKLogitsWarper:
    """Keep the k largest scores, and scores equal to the k-th (Fan et al. 2018)."""

    top_k: Tensor  # [R, 1], 1 .. V

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf below the k-th."""
        return scores.masked_fill(scores < descending(scores).gather(-1, self.top_k - 1), -math.inf)


@dataclass(frozen=True)
class TopPLogitsWarper:
    """Keep the fewest likeliest tokens with total probability >= p, and tokens as likely as the last of them.

    Holtzman et al. 2020, section 3.1.
    """

    top_p: Tensor  # [R, 1], 0 < p <= 1

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf for excluded tokens."""
        probabilities = scores.softmax(-1)
        ordered = descending(probabilities)
        before = ordered.cumsum(-1) - ordered
        # The sum may round to 1 before the last token; a row with p = 1 must keep all.
        late = (before >= self.top_p) & (self.top_p < 1)
        crossing = ordered.masked_fill(late, math.inf).amin(-1, keepdim=True)
        return scores.masked_fill(probabilities < crossing, -math.inf)


@dataclass(frozen=True)
class MinPLogitsWarper:
    """Keep tokens whose probability is at least min_p times the largest one (Nguyen et al. 2024)."""

    log_min_p: Tensor  # [R, 1], -inf keeps all

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf for excluded tokens."""
        return scores.masked_fill(scores < scores.max(-1, keepdim=True).values + self.log_min_p, -math.inf)


_log = logging.getLogger(__name__)
# Options of a request as bits; reading an `enum.Flag` takes longer than sampling a row.
_REPETITION, _FREQUENCY, _BIAS, _MIN_TOKENS, _DRAW, _TOP_K, _TOP_P, _MIN_P, _LOGPROBS = (1 << bit for bit in range(9))
_HISTORY = _REPETITION | _FREQUENCY | _MIN_TOKENS
_PER_TOKEN = _HISTORY | _BIAS
_PROCESSED = _PER_TOKEN | _DRAW
# Its product with a sum of probabilities is below the sum, so that a sampled token has a probability above 0.
_BELOW_ONE = 1 - 2.0**-52
MAX_BATCHES = 256  # combinations of slots whose constants are kept
_NO_HISTORY = History(torch.zeros(()), torch.zeros(()), torch.zeros(()))


def with_log_probabilities(tokens: Sequence[int], logits: Tensor, counts: Sequence[int | None]) -> list[Sampled]:
    """Return N tokens with their log-probabilities under logits [N, V], each row of the token before.

    `counts` are N numbers of likeliest tokens to report; None: the token without log-probabilities.
    """
    log_probabilities = logits.double().log_softmax(-1)
    largest = min(max((count for count in counts if count is not None), default=0), logits.shape[-1])
    values, indices = (each.tolist() for each in log_probabilities.topk(largest))
    own = log_probabilities.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1)).squeeze(-1).tolist()
    return [
        Sampled(token)
        if count is None
        else Sampled(token, own[row], tuple(zip(indices[row][:count], values[row][:count], strict=True)))
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def _uses(params: SamplingParams) -> int:
    draws = params.temperature > 0
    options = {
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
    return sum(flag for flag, is_used in options.items() if is_used)


# None if no token was requested.
Draw = Sampled | SamplingError | None


@dataclass(frozen=True)
class _Seat:
    """The request in a slot."""

    params: SamplingParams
    uses: int
    generator: random.Random


@dataclass(frozen=True)
class _Batch:
    """Constants of a combination of slots, valid until a request enters or leaves one of them."""

    slots: Tensor  # [R]
    seats: tuple[_Seat, ...]
    uses: int
    processors: tuple[LogitsProcessor, ...]
    greedy: Tensor | None  # [R] bool; None if no row is greedy


class _Tables:
    """Token counts, biases and stop tokens of each slot, [slots, V]; allocated when a request needs them."""

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        shape = num_slots, vocabulary_size
        self.prompts, self.generated, self.bias = (
            torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3)
        )
        self.ends = torch.zeros(shape, dtype=torch.bool, device=device)
        self.num_generated = torch.zeros(num_slots, 1, dtype=torch.float64, device=device)

    def place(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Initialise a slot from a prompt."""
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
        """Count a token [R] of each slot."""
        self.generated[slots, tokens] += 1
        self.num_generated[slots] += 1


class TokenSampler:
    """Sample the next tokens of the requests in slots. Not thread-safe."""

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        self._shape = num_slots, vocabulary_size
        self._device = device
        self._seats: dict[int, _Seat] = {}
        self._plain = [Sampled(token) for token in range(vocabulary_size)]
        self._tables: _Tables | None = None
        self._batches: dict[tuple[int, ...], _Batch] = {}

    def place(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Put a request into a slot; `params` must have been checked against the vocabulary."""
        seed = random.getrandbits(64) if params.seed is None else params.seed % 2**64
        seat = self._seats[slot] = _Seat(params, _uses(params), random.Random(seed))
        self._batches.clear()
        if seat.uses & _PER_TOKEN:
            if self._tables is None:
                self._tables = _Tables(*self._shape, self._device)
            self._tables.place(slot, params, prompt)

    def sample(self, slots: Sequence[int], logits: Tensor, samples: Sequence[bool]) -> list[Draw]:
        """Return the next token of each slot from its row of logits [R, V]; None where `samples` is False.

        A row whose logits or processed scores are not finite, or whose parameters make a processor raise, gets a
        `SamplingError`; the other rows are sampled as without it.
        """
        largest, tokens = logits.max(-1)
        errors = _errors(largest, samples, "the model's logits are not finite")
        if errors:
            samples = [has_draw and row not in errors for row, has_draw in enumerate(samples)]
            logits = torch.where(torch.tensor(samples, device=self._device).unsqueeze(-1), logits, 0)
        try:
            batch = self._batch(tuple(slots))
            scores = self._scores(batch, logits) if batch.uses & _PROCESSED else None
        except Exception as error:
            if len(slots) == 1:
                _log.exception("sampling failed")
                return [SamplingError(f"sampling failed: {type(error).__name__}: {error}")]
            rows = [([slot], logits[row : row + 1], [samples[row]]) for row, slot in enumerate(slots)]
            return [errors[row] if row in errors else self.sample(*each)[0] for row, each in enumerate(rows)]
        if scores is not None:
            totals, tokens = self._draw(batch, scores, samples)
            errors |= _errors(totals, samples, "the parameters of the request leave no token with a finite score")
        if batch.uses & _HISTORY:
            assert self._tables is not None
            rows = torch.tensor(samples, device=self._device).nonzero().squeeze(-1)
            self._tables.add(batch.slots[rows], tokens[rows])
        sampled = self._sampled(batch, tokens.tolist(), logits, samples)
        return [errors.get(row, token) for row, token in enumerate(sampled)] if errors else sampled

    def _batch(self, slots: tuple[int, ...]) -> _Batch:
        """Return the constants of a combination of slots, from the cache if they are there."""
        if slots in self._batches:
            return self._batches[slots]
        if len(self._batches) >= MAX_BATCHES:
            self._batches.clear()
        seats = tuple(self._seats[slot] for slot in slots)
        uses, where = 0, torch.from_numpy(np.array(slots)).to(self._device)
        for seat in seats:
            uses |= seat.uses
        processors: tuple[LogitsProcessor, ...] = ()
        mask = None
        if uses & _PROCESSED:
            params = [seat.params for seat in seats]
            processors, greedy = tuple(self._processors(uses, params, where)), [p.temperature == 0 for p in params]
            mask = torch.tensor(greedy, device=self._device) if any(greedy) else None
        batch = self._batches[slots] = _Batch(where, seats, uses, processors, mask)
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

    def _draw(self, batch: _Batch, scores: Tensor, samples: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """Return totals [R] of the probabilities, not finite if a row has no token to sample, and tokens [R].

        Rows that do not sample, or cannot, get an arbitrary token.
        """
        if not batch.uses & _DRAW:
            largest, tokens = scores.max(-1)
            return largest, tokens
        # One random number per token of a request, so that it does not depend on the other rows.
        draws = [
            [seat.generator.random() * _BELOW_ONE if has_draw else 0.0]
            for seat, has_draw in zip(batch.seats, samples, strict=True)
        ]
        cumulative = scores.softmax(-1).cumsum(-1)
        totals = cumulative[:, -1:]
        points = torch.tensor(draws, dtype=torch.float64, device=self._device) * totals
        # The position for a total of NaN is V.
        tokens = torch.searchsorted(cumulative, points, right=True).squeeze(-1).clamp_(max=scores.shape[-1] - 1)
        if batch.greedy is not None:
            tokens = torch.where(batch.greedy, scores.max(-1).indices, tokens)
        return totals.squeeze(-1), tokens

    def _sampled(self, batch: _Batch, tokens: list[int], logits: Tensor, samples: Sequence[bool]) -> list[Draw]:
        if batch.uses & _LOGPROBS:
            sampled = with_log_probabilities(tokens, logits, [seat.params.logprobs for seat in batch.seats])
        else:
            sampled = [self._plain[token] for token in tokens]
        return [token if has_draw else None for token, has_draw in zip(sampled, samples, strict=True)]

    def _processors(self, uses: int, params: Sequence[SamplingParams], slots: Tensor) -> list[LogitsProcessor]:
        """Return the processors that the requests need, in Hugging Face's order."""

        def column(value: Callable[[SamplingParams], float], dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor([value(each) for each in params], dtype=dtype, device=self._device).unsqueeze(-1)

        processors: list[LogitsProcessor] = []
        if uses & _REPETITION:
            processors.append(RepetitionPenaltyLogitsProcessor(column(lambda p: p.repetition_penalty)))
        if uses & _FREQUENCY:
            presence, frequency = column(lambda p: p.presence_penalty), column(lambda p: p.frequency_penalty)
            processors.append(FrequencyPenaltyLogitsProcessor(presence, frequency))
        if uses & (_BIAS | _MIN_TOKENS):
            # The tables of a slot whose request has no options by token hold entries of an earlier request.
            is_current = column(lambda p: bool(_uses(p) & _PER_TOKEN), torch.bool)
            assert self._tables is not None
            processors.append(SequenceBiasLogitsProcessor(torch.where(is_current, self._tables.bias[slots], 0.0)))
            min_tokens = column(lambda p: p.min_tokens if p.stop_token_ids else 0)
            processors.append(MinNewTokensLengthLogitsProcessor(min_tokens, self._tables.ends[slots]))
        if uses & _DRAW:
            # A greedy row is divided by 1, which does not change its largest score.
            processors.append(TemperatureLogitsWarper(column(lambda p: p.temperature or 1.0)))
        if uses & _TOP_K:
            size = self._shape[1]
            processors.append(TopKLogitsWarper(column(lambda p: min(p.top_k, size) or size, torch.long)))
        if uses & _TOP_P:
            processors.append(TopPLogitsWarper(column(lambda p: p.top_p)))
        if uses & _MIN_P:
            processors.append(MinPLogitsWarper(column(lambda p: math.log(p.min_p) if p.min_p else -math.inf)))
        return processors


def _errors(totals: Tensor, samples: Sequence[bool], message: str) -> dict[int, SamplingError]:
    """Return an error for each row [R] that samples but whose total is not finite."""
    values = totals.tolist()
    if math.isfinite(sum(values)):
        return {}
    pairs = enumerate(zip(values, samples, strict=True))
    return {row: SamplingError(message) for row, (value, has_draw) in pairs if has_draw and not math.isfinite(value)}
