"""Training of language models on bytes: learning, reproducibility, and the end of training."""

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from gflownet.evaluation.language_training import (
    LanguageDivergedError,
    LanguageSteps,
    LanguageTraining,
    RandomBatches,
    bits_per_byte,
    train_language_model,
    training_steps,
)
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.network import RecurrentStack

CYCLE = torch.tensor([65, 66, 65, 67], dtype=torch.uint8).repeat(200)


class Constant(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(logits)

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.bias.expand(*tokens.shape, -1), None


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


def test_bits_per_byte_equals_cross_entropy() -> None:
    shares = torch.full((256,), 1e-9)
    shares[65], shares[66], shares[67] = 0.5, 0.25, 0.25
    model = Constant(shares.log())
    assert bits_per_byte(model, CYCLE, sequence_length=8, num_bytes=400) == pytest.approx(1.5, abs=1e-4)
    assert bits_per_byte(model, CYCLE[:100], sequence_length=99, num_bytes=10**6) == pytest.approx(1.5, abs=0.02)


def test_training_ends_after_seconds() -> None:
    options = LanguageTraining(num_steps=1, seconds=0.2, rows=2, sequence_length=8)
    steps = list(training_steps(small_stack(), CYCLE, options=options, generator=generator()))
    assert len(steps) > 1
    assert steps[-1].seconds >= 0.2 > steps[-2].seconds
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))


def test_diverged_loss_raises() -> None:
    options = LanguageTraining(num_steps=5, rows=2, sequence_length=8)
    for value in (float("nan"), 1e9):
        logits = torch.zeros(256)
        logits[0] = value
        with pytest.raises(LanguageDivergedError, match=r"step 1: expected a loss <= 1000, got"):
            train_language_model(Constant(logits), CYCLE, options=options, generator=generator())


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


def test_learning_rate_rises_then_falls() -> None:
    options = LanguageTraining(num_steps=100, learning_rate=1.0)
    rates = [options.rate(step / 100) for step in range(101)]
    top = rates.index(max(rates))
    assert top == 10
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
