"""Muon for matrices with Adam for other parameters; learning-rate schedules against factors computed by hand."""

import copy

import pytest
import torch
from torch import nn

from gflownet.learning.learner import make_optimizer, make_schedule
from gflownet.objectives.config import OptimizerConfig
from gflownet.training.optimisers import MuonWithAdam

SCHEDULES = ("halving", "linear", "cosine", "constant")
CONFIG = OptimizerConfig(opt="muon", learning_rate=0.02, weight_decay=0.1, lr_decay=3)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(3, 32), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 1))


def take_steps(net: nn.Module, optimizers: list, schedules: list, num: int) -> None:
    for _ in range(num):
        net.zero_grad()
        (net(torch.arange(3)) - 1).square().sum().backward()
        for one in (*optimizers, *schedules):
            one.step()


def test_muon_with_adam_matches_separate_torch_optimisers():
    net, reference = network(), network()
    optimizer = make_optimizer([{"params": list(net.parameters())}], CONFIG)
    assert isinstance(optimizer, MuonWithAdam)
    take_steps(net, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 5)
    matrix = reference.get_parameter("1.weight")
    other_parameters = [p for p in reference.parameters() if p is not matrix]
    expected = [
        torch.optim.Muon([matrix], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(other_parameters, lr=0.02, weight_decay=0.1),
    ]
    take_steps(reference, expected, [make_schedule(one, CONFIG, num_steps=9) for one in expected], 5)
    before = network()
    for (name, value), other, start in zip(
        net.named_parameters(), reference.parameters(), before.parameters(), strict=True
    ):
        assert torch.allclose(value, other, atol=1e-6), name
        assert not torch.allclose(value, start, atol=1e-3), name


def test_optimizer_uses_learning_rate_of_parameter_group():
    net, other = network(), nn.Parameter(torch.ones(()))
    optimizer = make_optimizer([{"params": list(net.parameters())}, {"params": [other], "lr": 0.5}], CONFIG)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02, 0.5}
    other.grad = torch.ones(())
    optimizer.step()
    assert float(other.detach()) < 0.6


def test_muon_with_adam_restored_state_continues_bit_for_bit():
    uninterrupted, resumed = network(), network()
    optimizer = make_optimizer([{"params": list(uninterrupted.parameters())}], CONFIG)
    take_steps(uninterrupted, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 6)
    first = make_optimizer([{"params": list(resumed.parameters())}], CONFIG)
    schedule = make_schedule(first, CONFIG, num_steps=9)
    take_steps(resumed, [first], [schedule], 3)
    saved = copy.deepcopy((first.state_dict(), schedule.state_dict()))
    second = make_optimizer([{"params": list(resumed.parameters())}], CONFIG)
    schedule = make_schedule(second, CONFIG, num_steps=9)
    second.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    take_steps(resumed, [second], [schedule], 3)
    for value, other in zip(uninterrupted.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(value, other)


def rates(num_steps: int, **options) -> list[float]:
    """Return the learning rate of every step; a second group has a tenth of it."""
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))]},
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule, first_rates = make_schedule(optimizer, OptimizerConfig(**options), num_steps=num_steps), []
    for _ in range(num_steps):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(0.1 * first)
        first_rates.append(first)
        optimizer.step()
        schedule.step()
    return first_rates


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1, 1, 1]),
        ({"schedule": "halving", "lr_decay": 2}, [1, 0.5**0.5, 0.5, 0.5**1.5, 0.25, 0.25 * 0.5**0.5]),
        ({"schedule": "linear"}, [1, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "constant_share": 0}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "cosine"}, [1, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
        ({"schedule": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 2}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ],
)
def test_schedule_factors_match_expected(options, expected):
    assert rates(6, **options) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_factor_stays_in_bounds_after_last_step(name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(optimizer, OptimizerConfig(schedule=name, lr_decay=5), num_steps=3)
    for _ in range(9):
        assert 0 <= optimizer.param_groups[0]["lr"] <= 1
        optimizer.step()
        schedule.step()
