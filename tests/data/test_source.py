from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch

from gflownet.data.sampler import sample_forward
from gflownet.data.source import TrajectorySource, trajectory_stream
from gflownet.evaluation.config import ConditionalsConfig, EvaluationConfig, TemperatureConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.config import ModelConfig
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS

SEED = 17


@dataclass
class Config:
    """The part of the root config that a task reads."""

    seed: int = 0
    task: str = "test"
    task_options: Any = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    cond: ConditionalsConfig = field(
        default_factory=lambda: ConditionalsConfig(TemperatureConfig("uniform", [1.0, 5.0], num_thermometer_dim=4))
    )


class UnscoredTask(GFNTask):
    """Conditions trajectories on beta between 1 and 5; nothing is ever evaluated."""

    input_sizes = (3,)
    output_sizes = (2,)

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        raise AssertionError("the source evaluates nothing")


def make_source(*, pickle_messages: bool = False, epsilon: float = 0.1) -> TrajectorySource:
    task = UnscoredTask(Config())
    context = GraphBuildingEnvContext(ENVIRONMENTS["undirected"](), num_cond_dim=task.num_cond_dim)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    return TrajectorySource(
        context,
        policy,
        task=task,
        num_trajectories=6,
        random_action_prob=epsilon,
        seed=SEED,
        pickle_messages=pickle_messages,
    )


def sampled_directly(source: TrajectorySource, num_batches: int, *, seed: int) -> list[TrajectoryBatch]:
    generator, batches = torch.Generator().manual_seed(seed), []
    for _ in range(num_batches):
        batches.append(
            sample_forward(
                source.context,
                source.policy,
                conditioning=source.task.sample_conditioning(6, generator=generator),
                generator=generator,
                random_action_prob=source.random_action_prob,
            )
        )
    return batches


def assert_same(ours: TrajectoryBatch, theirs: TrajectoryBatch) -> None:
    for name in ("states", "terminal"):
        assert bool(getattr(ours, name).equals(getattr(theirs, name)).all())
    for name in ("trajectory", "log_backward", "conditioning", "beta", "log_symmetry"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("kind", "row", "column"):
        assert torch.equal(getattr(ours.actions, name), getattr(theirs.actions, name))


@pytest.mark.parametrize("pickle_messages", [False, True])
def test_without_workers_the_stream_is_direct_sampling(pickle_messages):
    source = make_source(pickle_messages=pickle_messages)
    batches = list(islice(trajectory_stream(source, num_workers=0), 3))
    for ours, theirs in zip(batches, sampled_directly(source, 3, seed=SEED), strict=True):
        assert_same(ours, theirs)
    assert len(batches[0]) == 6
    assert len(set(batches[0].beta.tolist())) == 6
    assert batches[0].conditioning.shape == (6, 4)


def test_without_workers_a_batch_is_sampled_when_it_is_asked_for():
    source = make_source()
    stream = trajectory_stream(source, num_workers=0)
    next(stream)
    stop_at_once(source)
    source.random_action_prob = 0.0
    assert next(stream).terminal.num_nodes.tolist() == [1] * 6


def test_a_batch_can_be_sampled_at_another_epsilon():
    source = make_source()
    stop_at_once(source)
    assert source.sample_on_policy(source.generator).terminal.num_nodes.tolist() == [1] * 6
    source.random_action_prob = 1.0
    assert max(source.sample().terminal.num_nodes.tolist()) > 1


def stop_at_once(source: TrajectorySource, *, bias: float = 1e4) -> None:
    """Write a sure Stop (no Stop, if the bias is negative) into the weights, in place, as an optimiser would."""
    with torch.no_grad():
        source.policy.get_parameter(f"heads.{GraphActionType.Stop.field_name}.2.bias").fill_(bias)


@pytest.mark.parametrize("pickle_messages", [False, True])
def test_a_worker_samples_from_the_current_weights(pickle_messages):
    """Its first batches are those of its own seed; a few batches after the weights changed, so do the trajectories."""
    source = make_source(pickle_messages=pickle_messages, epsilon=0.0)
    stream = trajectory_stream(source, num_workers=1)
    for expected in sampled_directly(source, 2, seed=SEED + 1):
        batch = next(stream)
        assert isinstance(batch, TrajectoryBatch)
        assert_same(batch, expected)
    stop_at_once(source)
    assert list(islice(stream, 4))[-1].terminal.num_nodes.tolist() == [1] * 6
    stop_at_once(source, bias=-1e4)
    assert list(islice(stream, 4))[-1].terminal.num_nodes.tolist() == [4] * 6
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
