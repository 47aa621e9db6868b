"""Muon beside Adam as one optimiser: each parameter takes the step of its own, and a restored one goes on."""

import copy

import torch
from torch import nn

from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.muon import MuonWithAdam
from gflownet.objectives.optimiser import make_optimizer
from gflownet.objectives.schedules import make_schedule

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


def test_matrices_take_the_steps_of_muon_and_the_rest_those_of_adam():
    ours, theirs = network(), network()
    optimizer = make_optimizer([{"params": list(ours.parameters())}], CONFIG)
    assert isinstance(optimizer, MuonWithAdam)
    take_steps(ours, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 5)
    matrix = theirs.get_parameter("1.weight")
    others = [p for p in theirs.parameters() if p is not matrix]
    expected = [
        torch.optim.Muon([matrix], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(others, lr=0.02, weight_decay=0.1),
    ]
    take_steps(theirs, expected, [make_schedule(one, CONFIG, num_steps=9) for one in expected], 5)
    before = network()
    for (name, value), other, start in zip(
        ours.named_parameters(), theirs.parameters(), before.parameters(), strict=True
    ):
        assert torch.allclose(value, other, atol=1e-6), name
        assert not torch.allclose(value, start, atol=1e-3), name


def test_a_groups_own_learning_rate_wins():
    net, other = network(), nn.Parameter(torch.ones(()))
    optimizer = make_optimizer([{"params": list(net.parameters())}, {"params": [other], "lr": 0.5}], CONFIG)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02, 0.5}
    other.grad = torch.ones(())
    optimizer.step()
    assert float(other.detach()) < 0.6


def test_what_was_saved_is_gone_on_with_bit_for_bit():
    whole, parts = network(), network()
    optimizer = make_optimizer([{"params": list(whole.parameters())}], CONFIG)
    take_steps(whole, [optimizer], [make_schedule(optimizer, CONFIG, num_steps=9)], 6)
    first = make_optimizer([{"params": list(parts.parameters())}], CONFIG)
    schedule = make_schedule(first, CONFIG, num_steps=9)
    take_steps(parts, [first], [schedule], 3)
    saved = copy.deepcopy((first.state_dict(), schedule.state_dict()))
    rest = make_optimizer([{"params": list(parts.parameters())}], CONFIG)
    schedule = make_schedule(rest, CONFIG, num_steps=9)
    rest.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    take_steps(parts, [rest], [schedule], 3)
    for value, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(value, other)
