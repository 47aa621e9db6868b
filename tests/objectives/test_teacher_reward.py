"""The teacher's reward: imbalances of flows with a known error, and the formula of the paper."""

import math
from typing import Any

import pytest
import torch

from gflownet.learning.auxiliary import SMOOTHING, imbalance, teacher_log_reward
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.steps import StepReader
from tests.objectives.balanced import set_up
from tests.objectives.spaces import make_space

COMBINATIONS = [
    *((method, "reward", "uniform") for method in ("tb", "vargrad", "db", "subtb")),
    *(("tb", symmetry, "uniform") for symmetry in ("flows", "actions", "none")),
    ("db", "flows", "uniform"),
    ("subtb", "actions", "learned"),
    ("tb", "reward", "tlm"),
]


@pytest.mark.parametrize(("method", "symmetry", "backward_policy"), COMBINATIONS)
def test_imbalance_equals_log_reward_error_of_flows(method, symmetry, backward_policy):
    """Exact flows of one reward are evaluated under another; the imbalance is the difference for every trajectory."""
    space = make_space("two_coloured_3")
    config = AlgoConfig(method=method, symmetry=symmetry, backward_policy=backward_policy)
    case: Any = set_up(space, config)
    objective, student, batch, _ = case
    reward_error = torch.randn(len(space.graph), generator=torch.Generator().manual_seed(1))
    expected = reward_error[space.position_of(batch.terminal)]
    batch = batch.with_rewards(batch.log_reward + expected)
    imbalances = imbalance(StepReader(objective.reader.context, config), objective, student, batch)
    if method == "vargrad":
        expected = expected - expected.mean()
    assert imbalances.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    assert float(expected.min()) < -0.1 < 0.1 < float(expected.max())
    assert not imbalances.requires_grad


@pytest.mark.parametrize(("weight", "mixing"), [(19.0, 0.5), (0.0, 0.0), (3.0, 1.0)])
def test_teacher_log_reward_matches_paper_formula(weight, mixing):
    deltas, log_rewards = [-3.0, -0.01, 0.0, 0.01, 3.0], [0.0, -1.0, -50.0, 2.0, -1.0]
    log_reward = teacher_log_reward(torch.tensor(deltas), torch.tensor(log_rewards), weight=weight, mixing=mixing)
    expected = [
        math.log(SMOOTHING + (1 + weight if delta > 0 else 1) * delta**2) + mixing * student_log_reward
        for delta, student_log_reward in zip(deltas, log_rewards, strict=True)
    ]
    assert log_reward.tolist() == pytest.approx(expected, rel=1e-6)
