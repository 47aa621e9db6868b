import dataclasses

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import sample_backward
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import TrajectoryBatch
from tests.contracts.environments import ENVIRONMENTS


@pytest.fixture(scope="module")
def batch() -> TrajectoryBatch:
    """Return six trajectories of different lengths."""
    env = ENVIRONMENTS["undirected"]()
    graph = enumerate_states(env)
    terminal = graph.states[graph.terminal[:: len(graph.terminal) // 6][:6]]
    conditioning = Conditioning(torch.rand(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6.0))
    context, generator = GraphBuildingEnvContext(env), torch.Generator().manual_seed(1)
    sampled = sample_backward(context, terminal, conditioning=conditioning, generator=generator)
    return sampled.with_rewards(torch.arange(6.0) / 10)


def test_trajectory_indexing(batch):
    assert len({len(batch[i].actions) for i in range(6)}) > 1
    for i in range(len(batch)):
        one = batch[i]
        mine = (batch.trajectory == i).nonzero().squeeze(1)
        assert bool(one.states.equals(batch.states[mine]).all())
        assert torch.equal(one.actions.kind, batch.actions.kind[mine])
        assert torch.equal(one.log_backward, batch.log_backward[mine])
        assert bool(one.terminal.equals(batch.terminal[i : i + 1]).all())
        assert one.log_symmetry == float(batch.log_symmetry[i])
        assert one.log_reward == pytest.approx(i / 10)


def test_trajectory_negative_and_invalid_indices(batch):
    assert bool(batch[-1].terminal.equals(batch[5].terminal).all())
    assert torch.equal(batch[-1].actions.row, batch[5].actions.row)
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"trajectory {index}: expected one of 6"):
            batch[index]


def test_optional_fields_are_none_until_set(batch):
    bare = dataclasses.replace(batch, optional_log_reward=None)
    assert bare[0].log_reward is None
    steps = torch.arange(float(len(batch.actions)))
    full = bare.with_rewards(batch.log_reward).with_state_rewards(steps).with_log_forward(-steps)
    assert torch.equal(full.log_reward, batch.log_reward)
    assert torch.equal(full.state_log_reward, steps)
    assert torch.equal(full.log_forward, -steps)


@pytest.mark.parametrize("name", ["log_reward", "state_log_reward", "log_forward"])
def test_missing_optional_field_raises(batch, name):
    bare = dataclasses.replace(batch, optional_log_reward=None)
    with pytest.raises(ValueError, match=rf"^{name}: expected a batch with it .*, got 6 trajectories without"):
        getattr(bare, name)


def test_joining_batches_with_and_without_rewards_raises(batch):
    bare = dataclasses.replace(batch, optional_log_reward=None)
    with pytest.raises(ValueError, match=r"^log_reward: expected it in all 2 batches or in none, 1 are without$"):
        TrajectoryBatch.cat([batch, bare])
