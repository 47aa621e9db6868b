"""Held-out loss against a token-by-token oracle."""

import math

import pytest
import torch

from gflownet.evaluation.language_training import bits_per_byte_of, streamed_loss
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.network import RecurrentStack


def oracle(model: RecurrentStack, text: list[int], starts: list[int], length: int) -> float:
    losses = []
    for start in starts:
        state = None
        for place in range(start, start + length):
            logits, state = model(torch.tensor([[text[place]]]), state)
            probabilities = logits[0, 0].double().softmax(-1)
            losses.append(-math.log(float(probabilities[text[place + 1]])))
    return sum(losses) / len(losses)


@torch.no_grad()
def test_streamed_loss_equals_token_by_token_oracle() -> None:
    torch.manual_seed(0)
    model = RecurrentStack(StackConfig((StackLayer("lstm"),), width=6, vocabulary_size=11))
    text = torch.randint(11, (1300,), dtype=torch.int32)
    model.train()
    # 1,030 predicted tokens are 2 streams of 515, the first and the last of the text
    expected = oracle(model, text.tolist(), [0, 784], 515)
    assert streamed_loss(model, text, num_tokens=1030) == pytest.approx(expected, rel=1e-5)
    assert model.training
    expected = oracle(model, text.tolist(), [0], 39)
    assert streamed_loss(model, text[:40], num_tokens=10**6) == pytest.approx(expected, rel=1e-5)


def test_bits_per_byte_counts_bytes_not_tokens() -> None:
    """A uniform distribution over 16 tokens of two bytes has 2 bits per byte."""
    assert bits_per_byte_of(math.log(16), num_tokens=50, num_bytes=100) == pytest.approx(2)
