"""Zero-cost proxies of models: against their definitions, limits, and a model that they leave as it was."""

import math

import pytest
import torch
from torch import nn

from gflownet.search.proxies import MODEL_PROXIES, jacov, naswot, synflow
from tests.oracles import zero_cost as oracle


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))


def test_naswot_equals_the_count_over_pairs(model, inputs):
    assert naswot(model, inputs) == pytest.approx(oracle.naswot(list(model), inputs), rel=1e-9)


def test_naswot_of_known_codes():
    """Codes (1, 0) and (1, 1) share one of two activations: det [[3, 1], [1, 3]] = 8."""
    assert naswot(nn.ReLU(), torch.tensor([[1.0, -1.0], [2.0, 3.0]])) == pytest.approx(math.log(8))


def test_naswot_counts_all_activation_functions(inputs):
    expected = naswot(nn.ReLU(), inputs)
    for activation in (nn.GELU(), nn.SiLU(), nn.Tanh(), nn.ReLU6(), nn.ELU(), nn.LeakyReLU(inplace=True)):
        assert naswot(activation, inputs.clone()) == pytest.approx(expected)
    assert naswot(nn.Linear(5, 3), inputs) == 0


def test_naswot_of_equal_examples_is_finite():
    assert naswot(nn.ReLU(), torch.ones(4, 3)) == pytest.approx(math.log(13))


def test_jacov_equals_the_definition(model, inputs):
    assert jacov(model, inputs) == pytest.approx(oracle.jacov(model, inputs), rel=1e-3)


def test_jacov_without_gradient_is_missing(inputs):
    assert math.isnan(jacov(nn.Threshold(1e9, 0.0), inputs))


def test_jacov_prefers_different_linear_maps(model, inputs):
    """All examples of a linear network have the same Jacobian."""
    assert jacov(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), inputs) < jacov(model, inputs)


def test_synflow_equals_the_definition(model, inputs):
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    expected = oracle.synflow([each.weight for each in linear], [each.bias for each in linear])
    assert synflow(model, inputs) == pytest.approx(expected, rel=1e-9)


def test_synflow_of_known_weights():
    """R = |1| |2| + |-3| |2| = 8 passes through both layers."""
    first, last = nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, -3.0]]))
        last.weight.copy_(torch.tensor([[2.0]]))
    assert synflow(nn.Sequential(first, nn.ReLU(), last), torch.zeros(3, 2)) == pytest.approx(math.log1p(16))


def test_synflow_of_a_deep_network_is_finite():
    layers = [nn.Linear(64, 64) for _ in range(80)]
    for layer in layers:
        nn.init.constant_(layer.weight, -1.0)
    value = synflow(nn.Sequential(*layers), torch.zeros(1, 64))
    assert value > math.log(torch.finfo(torch.float32).max)
    assert math.isfinite(value)


@pytest.mark.parametrize("name", MODEL_PROXIES)
def test_proxies_leave_weights_and_dtype(name, inputs):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    MODEL_PROXIES[name](model, inputs)
    for key, value in model.named_parameters():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))


def test_synflow_restores_weights_after_an_error(inputs):
    first = nn.Linear(5, 4)
    before = first.weight.detach().clone()
    with pytest.raises(RuntimeError):
        synflow(nn.Sequential(first, nn.Linear(3, 2)), inputs)
    assert torch.equal(first.weight, before)
    assert first.weight.dtype == torch.float32
