"""Optimiser steps against torch on single parameters: schedules, weight decay, clipping, averages, states."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from gflownet.evaluation.candidates.trainer import candidate_steps
from gflownet.evaluation.config import EvaluationConfig, TrainingConfig
from gflownet.training.optimisers import SGD, Adam, AdamW, Schedule, eager
from gflownet.training.steps import Steps

NUM_STEPS = 6
RATE = 0.02


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(6, 20, 3), nn.BatchNorm1d(20), nn.Flatten(), nn.Linear(60, 18), nn.ReLU()).double()


def options(**values) -> EvaluationConfig:
    return EvaluationConfig(learning_rate=RATE, training=TrainingConfig(**values))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(NUM_STEPS, 7, 6, 5, generator=generator, dtype=torch.float64))


def train(model: nn.Module, optimisation: Steps, inputs: list[torch.Tensor]) -> None:
    for batch in inputs:
        optimisation.take(model(batch).square().mean().backward)


def train_plainly(model: nn.Module, optimisers) -> None:
    for batch in batches():
        model.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        for optimiser in optimisers:
            optimiser.step()


def assert_equal_parameters(model: nn.Module, other: nn.Module) -> None:
    for (name, value), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-10, msg=name)


def split_parameters(model: nn.Module):
    """Return kernels and matrices, and norms and biases."""
    matrices = [model[0].weight, model[3].weight]  # type: ignore[index]
    return matrices, [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "muon"])
def test_steps_equal_torch_optimisers(optimizer):
    fast, plain = network(), network()
    config = options(optimizer=optimizer, weight_decay=0.3)
    train(fast, candidate_steps(fast, config, num_steps=NUM_STEPS), batches())
    matrices, rest = split_parameters(plain)
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}]
    match optimizer:
        case "sgd":
            optimisers = [SGD(groups, lr=RATE, momentum=0.9, nesterov=True)]
        case "adam":
            optimisers = [Adam(groups, lr=RATE)]
        case "adamw":
            optimisers = [AdamW(groups, lr=RATE)]
        case _:
            views = [nn.Parameter(matrix.detach().view(len(matrix), -1)) for matrix in matrices]
            for view, matrix in zip(views, matrices, strict=True):
                matrix.grad = torch.zeros_like(matrix)
                view.grad = matrix.grad.view(len(matrix), -1)
            muon = eager(torch.optim.Muon)(
                views, lr=RATE, momentum=0.9, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
            )
            optimisers = [muon, AdamW(rest, lr=RATE, weight_decay=0.0)]
    train_plainly(plain, optimisers)
    assert_equal_parameters(fast, plain)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_steps_continue_from_a_state(optimizer):
    config = options(optimizer=optimizer, weight_decay=0.1, schedule="one_cycle")
    whole, parts = network(), network()
    train(whole, candidate_steps(whole, config, num_steps=NUM_STEPS), batches())
    first = candidate_steps(parts, config, num_steps=NUM_STEPS)
    train(parts, first, batches()[:2])
    state = first.state_dict()
    second = candidate_steps(parts, config, num_steps=NUM_STEPS)
    second.load_state_dict(state)
    train(parts, second, batches()[2:])
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_gradients_of_others_are_removed_and_clipping_counts_given_parameters():
    weight, other = nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([2.0]))
    optimiser = SGD([weight, other], lr=1.0)
    steps = Steps([optimiser], [weight], max_norm=0.5)
    for _ in range(2):  # the second adds nothing to the first
        _, norm = steps.compute_gradients((4 * weight + 5 * other).sum().backward)
        assert norm is not None
        assert float(norm) == pytest.approx(4)
        assert (float(weight.grad), float(other.grad)) == pytest.approx((0.5, 5))  # type: ignore[arg-type]
    steps.update()
    assert (float(weight.detach()), float(other.detach())) == pytest.approx((2.5, -3))


def test_frozen_parameters_have_no_weight_decay():
    model = network()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    frozen = model[0].weight.clone()  # type: ignore[index]
    train(model, candidate_steps(model, options(optimizer="adamw", weight_decay=0.5), num_steps=NUM_STEPS), batches())
    assert torch.equal(model[0].weight, frozen)  # type: ignore[index]


def test_one_cycle_follows_torch():
    """Up to the last step: torch places the peak and the end on whole steps."""
    num, warmup = 1000, 0.3
    optimiser = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1.0, total_steps=num, pct_start=warmup)
    for step in range(num):
        expected = cycle.get_last_lr()[0]
        assert Schedule.named("one_cycle", warmup=warmup).factor(step / num) == pytest.approx(expected, abs=0.003)
        optimiser.step()
        cycle.step()


def test_cosine_rises_and_falls_to_zero():
    factors = [Schedule.named("cosine", warmup=0.2).factor(done) for done in (0.0, 0.1, 0.2, 0.6, 1.0, 1.5)]
    assert factors == pytest.approx([0, 0.5, 1, 0.5, 0, 0])
    assert Schedule.named("cosine", warmup=0.0).factor(0.0) == Schedule.named("constant", warmup=0.2).factor(0.7) == 1


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("constant", {"warmup": 0.5}, [0, 0.5, 1, 1, 1]),
        ("linear", {"last": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        ("linear", {"constant": 0.5}, [1, 1, 1, 0.5, 0]),
        ("cosine", {"warmup": 0.5, "first": 0.5, "last": 0.5}, [0.5, 0.75, 1, 0.75, 0.5]),
        ("trapezoid", {}, [1, 1, 1, 1, 0]),
    ],
)
def test_factors_by_hand(name, values, expected):
    schedule = Schedule.named(name, **values)
    assert [schedule.factor(quarter / 4) for quarter in range(5)] == pytest.approx(expected)


def images() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 17, 1), nn.Flatten()).double()


def signals() -> nn.Sequential:
    torch.manual_seed(0)
    first, groups = nn.Conv1d(1, 16, 1, bias=False), nn.Conv1d(16, 32, 3, stride=2, padding=2, dilation=2, groups=4)
    head = (nn.AvgPool1d(2), nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 5))
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), groups, *head).double()


@pytest.mark.parametrize(
    ("build", "shape", "optimizer"),
    [
        (images, (3, 4, 5), "adamw"),
        (images, (3, 4, 5), "muon"),
        (signals, (1, 24), "adamw"),
        (signals, (1, 24), "muon"),
    ],
)
def test_channels_last_kernels_take_equal_steps(build, shape, optimizer):
    plain, last = build(), build()
    config = options(optimizer=optimizer, weight_decay=0.3)
    for model, options_of_side in ((plain, config), (last, replace(config, memory_format="channels_last"))):
        steps = candidate_steps(model, options_of_side, num_steps=NUM_STEPS)
        for batch in batches():
            inputs = batch.flatten(1).repeat(1, 2)[:, : math.prod(shape)].view(7, *shape)
            steps.take((0.01 * model(inputs).square().mean()).backward)  # rounding far below the epsilon of adam
    for end in (1, 3 if build is images else 5):  # the first convolution, and the last or a pooling
        assert last[:end](torch.randn(2, *shape).double()).movedim(1, -1).is_contiguous()
    assert_equal_parameters(last, plain)


@pytest.mark.parametrize("max_norm", [1.0, 0.0])
def test_check_gradients_before_clipping(max_norm):
    weight, other = (nn.Parameter(torch.ones(2)) for _ in range(2))  # the second one is never clipped
    steps = Steps([SGD([weight, other], lr=0.1)], [weight], max_norm=max_norm)
    for factors, is_finite in (((3.0, 4.0), True), ((math.inf, 4.0), False), ((3.0, math.nan), False)):
        loss = factors[0] * weight.sum() + factors[1] * other.sum()
        _, norm = steps.compute_gradients(loss.backward)
        with (
            nullcontext() if is_finite else pytest.raises(FloatingPointError, match="gradient with a finite norm, got")
        ):
            steps.check_gradients(norm)
