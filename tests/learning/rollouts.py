"""Rollouts of a tiny search, local and from workers, and their comparison."""

import dataclasses
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gflownet.envs.config import EnvConfig
from gflownet.evaluation.config import ConditionalsConfig, EvaluationConfig, FinalConfig, TemperatureConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import Evaluator
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from gflownet.learning.config import ReplayConfig, WorkersConfig
from gflownet.learning.replay import ReplayBuffer, SeenStates
from gflownet.learning.rollouts import worker_samples
from gflownet.learning.sampler import Exploration
from gflownet.learning.source import Rollout, SourceOptions, TrajectorySource
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.workers.transport import CPU, make_transport
from tests.contracts.environments import ENVIRONMENTS

TRANSPORTS = {
    "buffer": {"buffer_size": 1_000_000, "pickle_messages": False},
    "small_buffer": {"buffer_size": 1_024, "pickle_messages": False},
    "pickle": {"buffer_size": None, "pickle_messages": True},
}


@dataclass
class Config:
    """The part of the root config that a task reads."""

    seed: int = 0
    task: str = "test"
    task_options: Any = None
    env: EnvConfig = field(default_factory=EnvConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    final: FinalConfig = field(default_factory=FinalConfig)
    cond: ConditionalsConfig = field(
        default_factory=lambda: ConditionalsConfig(TemperatureConfig("uniform", [1.0, 5.0]))
    )


class CountsNodes(GFNTask):
    """Score: nodes per 10. It records its process id."""

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        return Score(len(graph.node_colours) / 10, metrics={"pid": float(os.getpid())})


@dataclass
class Parts:
    source: TrajectorySource
    policy: Policy
    evaluator: Dispatcher
    replay: ReplayBuffer
    store: EvaluationStore

    def here(self, *, first_step: int = 1) -> Generator[Rollout]:
        parts = {"policy": self.policy, "evaluator": self.evaluator, "replay": self.replay}
        return local_rollouts(self.source, **parts, first_step=first_step)

    def sampled_here(self) -> Iterator[TrajectoryBatch]:
        return (self.source.sample(step, self.policy) for step in count(1))

    def of_workers(
        self, transport: str, *, num_workers: int = 1, config: WorkersConfig | None = None, device: torch.device = CPU
    ) -> Generator[TrajectoryBatch]:
        policy = PolicyOnDevice(self.policy, device=device, precision="float32")
        options = {"transport": make_transport(**TRANSPORTS[transport]), "config": config or WorkersConfig()}
        return worker_samples(self.source, policy=policy, first_step=1, num_workers=num_workers, **options)


def local_rollouts(source: TrajectorySource, *, first_step: int = 1, **parts: Any) -> Generator[Rollout]:
    """Yield the rollouts from `first_step` on, each sampled on demand with the current weights."""
    for step in count(first_step):
        yield rollout(source, step, **parts)


def rollout(
    source: TrajectorySource, step: int, *, policy: Any, evaluator: Evaluator, teacher: Any = None, **parts: Any
) -> Rollout:
    fresh = source.sample(step, policy, teacher)
    graphs = [source.context.env.terminal(fresh.terminal, index) for index in range(len(fresh))]
    evaluations = evaluator.evaluate(graphs, step=step)
    keys = [graph.canonical_key() for graph in graphs]
    return source.rollout(step, fresh, keys, evaluations, policy=policy, evaluator=evaluator, **parts)


@contextmanager
def parts(
    folder: Path,
    *,
    task: type[CountsNodes] = CountsNodes,
    dense: bool = True,
    two_way: bool = False,
    epsilon: float = 0.1,
    replay: ReplayConfig | None = None,
    offline: SeenStates | None = None,
    options: dict[str, Any] | None = None,
    **task_options: Any,
) -> Iterator[Parts]:
    """Yield equal components with an empty store; `options` configure the source."""
    policy_class = DenseTransformerPolicy if dense else GraphTransformerPolicy
    built = task(Config(), **task_options)
    context = GraphBuildingEnvContext(ENVIRONMENTS["undirected"](), num_cond_dim=built.num_cond_dim)
    context = context.with_layout(policy_class.layout)
    context = context.with_backward() if two_way else context
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = policy_class(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    replay = replay or ReplayConfig(warmup=8, num_from_replay=3)
    chosen = SourceOptions(num_trajectories=6, exploration=Exploration(epsilon), replay=replay, **(options or {}))
    source = TrajectorySource(context, chosen, task=built, seed=17, offline=offline)
    folder.mkdir(exist_ok=True)
    with EvaluationStore(folder / "store.sqlite") as store:
        evaluator = Dispatcher(built, store, InlineExecutor(built), config=built.config.evaluation, seed=0)
        with closing(evaluator):
            yield Parts(source, policy, evaluator, ReplayBuffer(replay), store)


def tensors(value: Any) -> list[torch.Tensor | None]:
    """Return all tensors of nested dataclasses, None for an optional one that is missing."""
    if dataclasses.is_dataclass(value):
        return [x for f in dataclasses.fields(value) for x in tensors(getattr(value, f.name))]
    return [value]


def assert_same_tensors(ours: TrajectoryBatch, theirs: TrajectoryBatch) -> None:
    for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
        if mine is None or other is None:
            assert mine is other
        else:
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)


def num_nodes(rollout: Rollout) -> list[int]:
    return rollout.trajectories.terminal.num_nodes[: rollout.num_fresh].tolist()


def write_stop(policy: Policy, *, bias: float) -> None:
    """Write a sure Stop (no Stop, if the bias is negative) into the weights, in place, as an optimiser would."""
    with torch.no_grad():
        policy.get_parameter(f"heads.{GraphActionType.Stop.field_name}.score.2.bias").fill_(bias)
