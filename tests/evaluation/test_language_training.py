"""Training of language models on bytes: learning, batches, reproducibility, end of training, held-out loss."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from gflownet.evaluation.candidates.language import (
    ContiguousBatches,
    LanguageSteps,
    LanguageTraining,
    RandomBatches,
    bits_per_byte,
    bits_per_byte_of,
    streamed_loss,
    train_language_model,
)
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.network import RecurrentStack

CYCLE = torch.tensor([65, 66, 65, 67], dtype=torch.uint8).repeat(200)


def small_stack() -> RecurrentStack:
    torch.manual_seed(0)
    return RecurrentStack(StackConfig((StackLayer(), StackLayer("gru")), width=12))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_stack_learns_beyond_the_previous_byte() -> None:
    """66 and 67 follow 65 in turn: a model that sees one byte only has half a bit per byte."""
    model = small_stack()
    options = LanguageTraining(num_steps=25, rows=4, sequence_length=16, learning_rate=0.05)
    before = bits_per_byte(model, CYCLE, sequence_length=16, num_bytes=256)
    last = train_language_model(model, CYCLE, options=options, generator=generator())
    assert before == pytest.approx(8, abs=1.5)
    assert last.step == 25
    assert bits_per_byte(model, CYCLE, sequence_length=16, num_bytes=256) < 0.3


def test_equal_seeds_give_equal_models() -> None:
    options = LanguageTraining(num_steps=3, rows=2, sequence_length=8)
    models = [small_stack() for _ in range(2)]
    losses = [train_language_model(model, CYCLE, options=options, generator=generator()).loss for model in models]
    assert losses[0] == losses[1]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner, self.out = nn.Embedding(256, 16), nn.Linear(16, 16), nn.Linear(16, 256)

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.out(self.inner(self.embedding(tokens))), None


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "muon"])
def test_steps_equal_torch_optimisers(optimiser: Literal["adam", "adamw", "muon"]) -> None:
    """Muon has its own default momentum and no embeddings; weight decay is of matrices, and of no matrix with adam."""
    torch.manual_seed(0)
    model = Tables()
    reference = copy.deepcopy(model)
    options = LanguageTraining(
        rows=2, sequence_length=8, optimiser=optimiser, weight_decay=0.2, schedule="constant", warm_up=0.0
    )
    steps = LanguageSteps(model, CYCLE, options=options, generator=generator())
    batches = RandomBatches(CYCLE, rows=2, length=8)
    wide = [reference.inner.weight, reference.out.weight] if optimiser == "muon" else []
    tables = [each for each in reference.parameters() if each.ndim == 2 and all(each is not one for one in wide)]
    biases = [reference.inner.bias, reference.out.bias]
    rate, decay = options.learning_rate, 0.0 if optimiser == "adam" else 0.2
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW
    optimisers: list[torch.optim.Optimizer] = [
        kind([{"params": tables, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}], lr=rate)
    ]
    if wide:
        optimisers.append(torch.optim.Muon(wide, lr=rate, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"))
    places = generator()
    for _ in range(3):
        steps.take(0.0)
        rows = batches.next_rows(places)
        reference.zero_grad()
        logits, _ = reference(rows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        for each in optimisers:
            each.step()
    for (name, value), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=name)


def text_places() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_contiguous_rows_continue_where_the_last_batch_ended() -> None:
    text, random = torch.arange(200), text_places()
    batches = ContiguousBatches(text, rows=3, length=7)
    previous = batches.next_rows(random)
    assert previous.shape == (3, 8)
    assert batches.state is None
    starts = previous[:, 0] - torch.tensor([0, 66, 132])  # 199 // 3 tokens of a section
    assert len(set(starts.tolist())) == 1
    assert int(starts[0]) < 7
    for _ in range(7):
        batches.pass_state(torch.ones(1, 3, 2, dtype=torch.bfloat16, requires_grad=True))
        assert batches.state is not None
        assert (batches.state.dtype, batches.state.requires_grad) == (torch.float32, False)
        rows = batches.next_rows(random)
        assert torch.equal(rows[:, 0], previous[:, -1])
        previous = rows


def test_contiguous_pass_ends_with_a_reset_of_the_state() -> None:
    batches, random = ContiguousBatches(torch.arange(21), rows=2, length=5), text_places()
    firsts = []
    for _ in range(8):
        rows = batches.next_rows(random)
        assert int(rows.max()) <= 20
        firsts.append(batches.state is None)
        batches.pass_state(torch.zeros(1, 2, 1))
    assert firsts[0]
    assert sum(firsts) >= 4  # a section of 10 tokens has two sequences at most


def test_text_too_short_for_contiguous_rows_raises() -> None:
    ContiguousBatches(torch.arange(31), rows=3, length=10)
    with pytest.raises(ValueError, match="expected at least 31 tokens for contiguous batches, got 30"):
        ContiguousBatches(torch.arange(30), rows=3, length=10)


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
