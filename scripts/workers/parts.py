"""What streams of rollouts are made of: fixed-length graph building, a reward of a known cost, a store of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gflownet.config import Config, load_config
from gflownet.data.config import ReplayConfig, WorkersConfig
from gflownet.data.replay import ReplayBuffer
from gflownet.data.sampler import Exploration
from gflownet.data.source import Rollout, SourceOptions, TrajectorySource
from gflownet.data.workers import rollouts_here, rollouts_of_workers
from gflownet.evaluation.evaluator import InlineEvaluator
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.transport import CPU, BufferTransport, PickleTransport, QueueTransport, Transport
from tests.fixed_length_env import FixedLengthGraphBuildingEnv

BUFFERS, PICKLES, QUEUES = "buffers", "pickles", "queues"
BUFFER_BYTES = 4_000_000
TRANSPORTS: Mapping[str, Callable[[], Transport]] = {
    BUFFERS: lambda: BufferTransport(BUFFER_BYTES),
    PICKLES: PickleTransport,
    QUEUES: QueueTransport,
}
POLICIES = {"dense_transformer, the default": DenseTransformerPolicy, "graph_transformer": GraphTransformerPolicy}
BATCH_SIZE = 64
MAX_NODES, NUM_ACTIONS = 7, 12
MODEL = ModelConfig(num_layers=3, num_emb=64)


class CountsEdges(GFNTask):
    """A score that is read off the graph, after as much work as counting to a number is."""

    def __init__(self, config: Config, *, count_to: int = 0) -> None:
        super().__init__(config)
        self.count_to = count_to

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return the number of edges, per 20."""
        count(self.count_to)
        return Score((1 + len(graph.edge_colours)) / 20)


def count(limit: int) -> None:
    """Keep a processor busy."""
    for _ in range(limit):
        pass


def count_that_takes(seconds: float, *, probe: int = 300_000, repeats: int = 9) -> int:
    """Return how far this process can count in so much of its own CPU time, at its best."""
    durations = []
    for _ in range(repeats):
        start = time.process_time()
        count(probe)
        durations.append(time.process_time() - start)
    return round(probe * seconds / min(durations))


@dataclass(frozen=True)
class Parts:
    """What a stream is made of."""

    source: TrajectorySource
    policy: Policy
    evaluator: InlineEvaluator
    replay: ReplayBuffer

    @property
    def context(self) -> GraphBuildingEnvContext:
        """Return the context, in the policy's layout."""
        return self.source.context

    def here(self) -> Generator[Rollout]:
        """Return rollouts made in this process."""
        return rollouts_here(self.source, **self._shared(), first_step=1)

    def of_workers(
        self, transport: str, *, num_workers: int, config: WorkersConfig | None = None
    ) -> Generator[Rollout]:
        """Return rollouts made by workers."""
        return rollouts_of_workers(
            self.source,
            **self._shared(),
            first_step=1,
            num_workers=num_workers,
            transport=TRANSPORTS[transport](),
            config=config or WorkersConfig(),
        )

    def _shared(self) -> dict[str, Any]:
        policy = PolicyOnDevice(self.policy, device=CPU, precision="float32")
        return {"policy": policy, "evaluator": self.evaluator, "replay": self.replay}


@contextmanager
def made_parts(
    policy_class: type[Policy],
    *,
    max_nodes: int = MAX_NODES,
    num_actions: int = NUM_ACTIONS,
    num_trajectories: int = BATCH_SIZE,
    count_to: int = 0,
    replay: ReplayConfig | None = None,
) -> Iterator[Parts]:
    """Give the parts, the same ones each time, with an empty store."""
    config, replay = load_config(None, []), replay or ReplayConfig(use=False)
    task = CountsEdges(config, count_to=count_to)
    env = FixedLengthGraphBuildingEnv(("a", "b"), max_nodes=max_nodes, num_actions=num_actions, directed=True)
    context = GraphBuildingEnvContext(env, num_cond_dim=task.num_cond_dim).with_layout(policy_class.layout)
    torch.manual_seed(config.seed)
    make_policy: Any = policy_class
    policy: Policy = make_policy(context, MODEL)
    options = SourceOptions(num_trajectories, exploration=Exploration(random_action_prob=0.1), replay=replay)
    source = TrajectorySource(context, options, task=task, seed=config.seed)
    with tempfile.TemporaryDirectory() as folder, EvaluationStore(Path(folder) / "store.sqlite") as store:
        evaluator = InlineEvaluator(task, store, config=config.evaluation, seed=config.seed)
        yield Parts(source, policy, evaluator, ReplayBuffer(replay))
