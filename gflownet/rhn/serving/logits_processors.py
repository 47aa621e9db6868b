"""Processors of logits before a token is drawn, named as in Hugging Face.

Every row has its own parameters, so that requests of all kinds share a call; a neutral parameter leaves its row's bits
as they are. R is the number of rows, V of the vocabulary; scores are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class History:
    """Token counts of the prompts and answers so far."""

    prompts: Tensor  # [R, V], how often each token is in the prompt
    generated: Tensor  # [R, V], how often each token was generated
    num_generated: Tensor  # [R, 1]


def descending(x: Tensor) -> Tensor:
    """Return the rows [R, V] in descending order; numpy's vectorised sort takes a twentieth of torch's time."""
    if x.device.type == "cpu":
        return -torch.from_numpy(np.sort(-x.numpy(), axis=-1))
    return x.sort(-1, descending=True).values


class LogitsProcessor(Protocol):
    """One step from logits to those that a token is drawn from."""

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return scores [R, V] from scores [R, V], which are left as they are."""
        ...


@dataclass(frozen=True)
class RepetitionPenaltyLogitsProcessor:
    """Divides the positive scores of tokens of the prompt and of the answer, multiplies the negative (Keskar 2019)."""

    penalty: Tensor  # [R, 1], > 0

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the penalised scores."""
        seen = (history.prompts + history.generated) > 0
        penalised = torch.where(scores > 0, scores / self.penalty, scores * self.penalty)
        return torch.where(seen, penalised, scores)


@dataclass(frozen=True)
class FrequencyPenaltyLogitsProcessor:
    """Subtracts from a generated token's score a constant, and another per occurrence; the names are OpenAI's."""

    presence: Tensor  # [R, 1]
    frequency: Tensor  # [R, 1]

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the penalised scores."""
        occurs = (history.generated > 0).to(scores.dtype)
        return scores - self.presence * occurs - self.frequency * history.generated


@dataclass(frozen=True)
class SequenceBiasLogitsProcessor:
    """Adds to the scores of single tokens."""

    bias: Tensor  # [R, V]

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the shifted scores."""
        return scores + self.bias


@dataclass(frozen=True)
class MinNewTokensLengthLogitsProcessor:
    """Keeps tokens that end an answer from being drawn too early."""

    min_tokens: Tensor  # [R, 1]
    ends: Tensor  # [R, V] bool

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf where an end comes too early."""
        return scores.masked_fill(self.ends & (history.num_generated < self.min_tokens), -math.inf)


@dataclass(frozen=True)
class TemperatureLogitsWarper:
    """Divides by the temperature."""

    temperature: Tensor  # [R, 1], > 0

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores below the largest, scaled; no temperature is so low that they overflow."""
        return (scores - scores.max(-1, keepdim=True).values) / self.temperature


@dataclass(frozen=True)
class TopKLogitsWarper:
    """Keeps the k largest scores, and those equal to the last of them (Fan et al. 2018)."""

    top_k: Tensor  # [R, 1], 1 .. V

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf below the k-th."""
        return scores.masked_fill(scores < descending(scores).gather(-1, self.top_k - 1), -math.inf)


@dataclass(frozen=True)
class TopPLogitsWarper:
    """Keeps the likeliest tokens up to the one that brings their probability to p, and those as likely as that one.

    Holtzman et al. 2020, section 3.1.
    """

    top_p: Tensor  # [R, 1], 0 < p <= 1

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf for those less likely than the one that crosses."""
        probabilities = scores.softmax(-1)
        ordered = descending(probabilities)
        before = ordered.cumsum(-1) - ordered
        # A sum may round to 1 before the last token: a row of p = 1 loses none.
        late = (before >= self.top_p) & (self.top_p < 1)
        crossing = ordered.masked_fill(late, math.inf).amin(-1, keepdim=True)
        return scores.masked_fill(probabilities < crossing, -math.inf)


@dataclass(frozen=True)
class MinPLogitsWarper:
    """Keeps tokens at least a fraction as likely as the likeliest (Nguyen et al. 2024)."""

    log_min_p: Tensor  # [R, 1], -inf keeps all

    def __call__(self, history: History, scores: Tensor) -> Tensor:
        """Return the scores, -inf for those too unlikely."""
        return scores.masked_fill(scores < scores.max(-1, keepdim=True).values + self.log_min_p, -math.inf)
