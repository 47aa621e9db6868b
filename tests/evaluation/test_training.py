"""Training one candidate: the plain loop's numbers, reproducibly, and an early end when it diverges."""

import copy

import pytest
import torch
from torch import nn

from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.training import CandidateDivergedError, Split, accuracy, train_classifier
from tests.oracles.training import train_plainly

NUM_FEATURES, NUM_CLASSES = 6, 3


@pytest.fixture(scope="module")
def data() -> Split:
    """Separable examples, a number that batches do not divide."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(101, NUM_FEATURES, generator=generator)
    return Split(inputs, inputs[:, :NUM_CLASSES].argmax(1))


def small_model(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES)).to(dtype)


def train(model: nn.Module, data: Split, *, seed: int = 0, **options) -> float:
    config = EvaluationConfig(**{"num_epochs": 4, "batch_size": 16, "learning_rate": 0.03} | options)
    return train_classifier(model, data, config=config, generator=torch.Generator().manual_seed(seed))


def test_same_numbers_as_the_plain_loop(data):
    data = Split(data.inputs.double(), data.targets)
    fast, slow = small_model(dtype=torch.float64), small_model(dtype=torch.float64)
    fast_loss = train(fast, data, seed=5)
    slow_loss = train_plainly(slow, data.inputs, data.targets, num_epochs=4, batch_size=16, learning_rate=0.03, seed=5)
    assert fast_loss == pytest.approx(slow_loss, abs=1e-12)
    for ours, theirs in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_learns(data):
    model = small_model()
    before = accuracy(model, data)
    train(model, data, num_epochs=30)
    assert accuracy(model, data) > 0.95 > 0.6 > before


def test_one_seed_one_result(data):
    models = [small_model() for _ in range(3)]
    losses = [train(model, data, seed=seed) for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_global_generator_is_left_alone(data):
    model, state = small_model(), torch.get_rng_state()
    train(model, data)
    assert torch.equal(state, torch.get_rng_state())


def test_frozen_parameters_stay(data):
    model = small_model()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    frozen = model[0].weight.clone()  # type: ignore[index]
    train(model, data)
    assert torch.equal(model[0].weight, frozen)  # type: ignore[index]
    assert not torch.equal(model[2].weight, small_model()[2].weight)  # type: ignore[index]


def test_trained_model_can_be_copied_and_trained_on(data):
    model = small_model()
    train(model, data)
    twin = copy.deepcopy(model)
    losses = [train(each, data, seed=3) for each in (model, twin)]
    assert losses[0] == losses[1]


def test_dropout_acts_in_training_only(data):
    model = nn.Sequential(small_model(), nn.Dropout(0.9))
    modes: list[bool] = []
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    train(model, data, num_epochs=1)
    accuracy(model, data)
    assert modes == [True] * 7 + [False]


def test_explosion_ends_training_early(data):
    calls = []
    model = small_model()
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(CandidateDivergedError, match=r"^epoch 1: expected a training loss <= 1000, got \d"):
        train(model, data, learning_rate=1e6, num_epochs=50)
    assert len(calls) == 7  # one epoch of ceil(101 / 16) batches


def test_nan_ends_training_early(data):
    inputs = data.inputs.clone()
    inputs[0, 0] = torch.nan
    with pytest.raises(CandidateDivergedError, match=r"^epoch 1: expected a training loss <= 1000, got nan$"):
        train(small_model(), Split(inputs, data.targets))
