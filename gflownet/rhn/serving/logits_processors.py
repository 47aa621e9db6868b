"""Processors of logits before sampling, with the names of Hugging Face.

Every row has its own parameters, so that different requests share a call; a neutral parameter leaves its row unchanged
to the bit. R is the number of rows, V of the vocabulary; scores are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
