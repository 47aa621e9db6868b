"""Objectives that compare trajectories with one another, of which some or none share their conditioning."""

from dataclasses import replace

import pytest
import torch

from gflownet.errors import UserError
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig
from tests.objectives.differences import set_up

COMPARING = ("vargrad", "order_preserving")


def under(batch: TrajectoryBatch, conditionings: list[float]) -> TrajectoryBatch:
    return replace(batch, conditioning=torch.tensor(conditionings)[:, None])


@pytest.mark.parametrize("method", COMPARING)
def test_trajectories_of_which_no_two_share_their_conditioning_are_refused(method):
    case = set_up(AlgoConfig(method=method))
    with pytest.raises(UserError, match=f"algo.method={method}: expected trajectories with equal conditioning"):
        case.objective.loss(case.policy, under(case.batch, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))


@pytest.mark.parametrize("method", COMPARING)
def test_a_trajectory_alone_with_its_conditioning_teaches_nothing(method):
    """Those of the others are compared as if it were not there; one trajectory in all has no loss."""
    case = set_up(AlgoConfig(method=method))
    three = under(case.batch.split(2)[0], [1.0, 1.0, 1.0])
    with_others = case.objective.loss(case.policy, under(case.batch, [1.0, 1.0, 1.0, 3.0, 4.0, 5.0]))
    share = 3 / 6 if method == "vargrad" else 1.0  # of trajectories or of pairs
    alone = case.objective.loss(case.policy, three).metrics["loss"]
    assert with_others.metrics["loss"] == pytest.approx(share * alone, rel=1e-6)
    assert alone > 1e-2
    assert case.objective.loss(case.policy, under(case.batch.split(6)[0], [1.0])).metrics["loss"] == 0.0
