"""Rollout streams of the worker benchmarks: fixed-length graph building and a reward of a known CPU cost."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gflownet.config import load_config
from gflownet.data.config import ReplayConfig, WorkersConfig
from gflownet.data.replay import ReplayBuffer
from gflownet.data.rollouts import local_rollouts, worker_rollouts
from gflownet.data.sampler import Exploration
from gflownet.data.source import Rollout, SourceOptions, TrajectorySource
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.policy.config import ModelConfig
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
BATCH_SIZE, MAX_NODES, NUM_ACTIONS = 64, 7, 12
MODEL = ModelConfig(num_layers=3, num_emb=64)


class CountsEdges(GFNTask):
    """Score a graph by its number of edges."""

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return (number of edges + 1) / 20."""
        return Score((1 + len(graph.edge_colours)) / 20)


@dataclass(frozen=True)
class Streams:
    """Rollout streams of one configuration, made in this process or by workers."""

    source: TrajectorySource
    policy: Policy
    evaluator: Dispatcher
    replay: ReplayBuffer

    @property
    def context(self) -> GraphBuildingEnvContext:
        """Return the context in the policy's layout."""
        return self.source.context

    def here(self) -> Generator[Rollout]:
        """Return rollouts made in this process."""
        return local_rollouts(self.source, **self._shared(), first_step=1)

    def of_workers(
        self, transport: str, *, num_workers: int, config: WorkersConfig | None = None
    ) -> Generator[Rollout]:
        """Return rollouts made by workers."""
        return worker_rollouts(
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
def open_streams(
    policy_class: Callable[..., Policy],
    *,
    max_nodes: int = MAX_NODES,
    num_actions: int = NUM_ACTIONS,
    num_trajectories: int = BATCH_SIZE,
    replay: ReplayConfig | None = None,
) -> Iterator[Streams]:
    """Yield streams with an untrained policy, a fixed seed and an empty store."""
    config, replay = load_config(None, []), replay or ReplayConfig(use=False)
    task = CountsEdges(config)
    env = FixedLengthGraphBuildingEnv(("a", "b"), max_nodes=max_nodes, num_actions=num_actions, directed=True)
    layout: Any = getattr(policy_class, "layout")  # noqa: B009
    context = GraphBuildingEnvContext(env, num_cond_dim=task.num_cond_dim).with_layout(layout)
    torch.manual_seed(config.seed)
    policy = policy_class(context, MODEL)
    options = SourceOptions(num_trajectories, exploration=Exploration(random_action_prob=0.1), replay=replay)
    source = TrajectorySource(context, options, task=task, seed=config.seed)
    with tempfile.TemporaryDirectory() as folder, EvaluationStore(Path(folder) / "store.sqlite") as store:
        evaluator = Dispatcher(task, store, InlineExecutor(task), config=config.evaluation, seed=config.seed)
        yield Streams(source, policy, evaluator, ReplayBuffer(replay))


def worker_pids() -> dict[str, int]:
    """Return the process ids of the live workers by name."""
    return {process.name: process.pid for process in multiprocessing.active_children() if process.pid is not None}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process (proc(5), fields utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
