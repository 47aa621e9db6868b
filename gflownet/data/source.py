"""An endless stream of trajectories for the trainer, sampled in its own process or by DataLoader workers."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Generator, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gflownet.data.sampler import sample_forward
from gflownet.evaluation.task import GFNTask
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.base import Policy

WORKER_CONTEXT = "forkserver"  # forking a process that has run OpenMP code hangs (spec/reliability.md, row 9)
PREFETCH_FACTOR = 1  # batches a worker prepares ahead: more would train on older policies


class TrajectorySource(IterableDataset):
    """Samples batches of trajectories for ever; workers see the trainer's current weights through shared memory."""

    def __init__(
        self,
        context: GraphBuildingEnvContext,
        policy: Policy,
        *,
        task: GFNTask,
        num_trajectories: int,
        random_action_prob: float,
        seed: int,
        pickle_messages: bool = False,
    ) -> None:
        self.context, self.policy, self.task = context, policy, task
        self.num_trajectories, self.random_action_prob = num_trajectories, random_action_prob
        self.seed, self.pickle_messages = seed, pickle_messages
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[TrajectoryBatch | bytes]:
        """Yield batches for ever, each sampled when it is asked for; bytes where messages are to be pickled."""
        worker = get_worker_info()
        if worker is not None:
            self.generator.manual_seed(self.seed + 1 + worker.id)
        while True:
            batch = self.sample()
            yield pickle.dumps(batch) if worker is not None and self.pickle_messages else batch

    def sample(self, *, random_action_prob: float | None = None) -> TrajectoryBatch:
        """Return one batch sampled from the policy as it is now."""
        conditioning = self.task.sample_conditioning(self.num_trajectories, generator=self.generator)
        epsilon = self.random_action_prob if random_action_prob is None else random_action_prob
        return sample_forward(
            self.context, self.policy, conditioning=conditioning, generator=self.generator, random_action_prob=epsilon
        )


def trajectory_stream(source: TrajectorySource, *, num_workers: int) -> Generator[TrajectoryBatch]:
    """Yield the source's batches for ever, from `num_workers` processes (0: this one)."""
    if num_workers:
        source.policy.share_memory()
    loader = DataLoader(
        source,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=WORKER_CONTEXT if num_workers else None,
        prefetch_factor=PREFETCH_FACTOR if num_workers else None,
        worker_init_fn=_leave_interrupts_to_the_main_process,
    )
    for message in loader:
        yield pickle.loads(message) if isinstance(message, bytes) else message


def _leave_interrupts_to_the_main_process(worker_id: int) -> None:
    """Ignore Ctrl-C, which a terminal sends to every process of the run: the main one ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
