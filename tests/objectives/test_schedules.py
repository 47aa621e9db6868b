"""Learning-rate schedules against factors computed by hand."""

import pytest
import torch

from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.optimiser import SCHEDULES, make_schedule


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
