"""An endless stream of trajectories for the trainer, sampled in its own process or by DataLoader workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gflownet.data.sampler import sample_forward
from gflownet.evaluation.task import GFNTask
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.utils.shared_buffer import SharedBuffer

WORKER_CONTEXT = "forkserver"  # forking a process that has run OpenMP code hangs
PREFETCH_FACTOR = 1  # batches a worker prepares ahead: more would train on older policies
# While the main process reads a batch, the worker may already write the next one, and no more than that.
_BUFFERS_PER_WORKER = PREFETCH_FACTOR + 1


@dataclass(frozen=True)
class _Buffered:
    """A message that says where the batch lies."""

    worker: int
    buffer: int
    num_bytes: int


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
        buffer_size: int | None = None,
    ) -> None:
        self.context, self.policy, self.task = context, policy, task
        self.num_trajectories, self.random_action_prob = num_trajectories, random_action_prob
        self.seed, self.pickle_messages, self.buffer_size = seed, pickle_messages, buffer_size
        self.buffers: list[list[SharedBuffer]] = []  # of each worker
        self.generator = torch.Generator().manual_seed(seed)
        self._has_advised = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave the generator behind: a worker seeds its own, and a pickled one dies before the worker can read it."""
        return {name: value for name, value in self.__dict__.items() if name != "generator"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start a worker's copy with a generator of its own, seeded in `__iter__`."""
        self.__dict__.update(state)
        self.generator = torch.Generator()

    def __iter__(self) -> Iterator[TrajectoryBatch | bytes | _Buffered]:
        """Yield batches for ever, each sampled when it is asked for; a worker's as messages of the chosen kind."""
        worker = get_worker_info()
        if worker is None:
            while True:
                yield self.sample()
        self.generator.manual_seed(self.seed + 1 + worker.id)
        turn = 0
        while True:
            yield self._message(worker.id, turn % _BUFFERS_PER_WORKER)
            turn += 1

    def received(self, message: TrajectoryBatch | bytes | _Buffered) -> TrajectoryBatch:
        """Return the batch behind a message."""
        if isinstance(message, _Buffered):
            return self.buffers[message.worker][message.buffer].read(message.num_bytes)
        if isinstance(message, bytes):
            if self.buffers:
                self._advise(len(message))
            return pickle.loads(message)
        return message

    def allocate_buffers(self, num_workers: int) -> None:
        """Set shared memory aside for the workers' messages, if the options ask for it."""
        if self.buffer_size is not None:
            pairs = [range(_BUFFERS_PER_WORKER)] * num_workers
            self.buffers = [[SharedBuffer(self.buffer_size) for _ in pair] for pair in pairs]

    def _message(self, worker: int, buffer: int) -> TrajectoryBatch | bytes | _Buffered:
        batch = self.sample()
        if not (self.buffers or self.pickle_messages):
            return batch
        payload = pickle.dumps(batch)
        if self.buffers and self.buffers[worker][buffer].write(payload):
            return _Buffered(worker, buffer, len(payload))
        return payload

    def _advise(self, num_bytes: int) -> None:
        """Say once that the buffers are too small and what would do."""
        if not self._has_advised:
            self._has_advised = True
            warnings.warn(
                f"mp_buffer_size: expected room for a batch of {num_bytes:,} bytes, got {self.buffer_size:,}; such "
                f"batches are pickled instead; set mp_buffer_size={2 * num_bytes}",
                stacklevel=2,
            )

    def sample(self) -> TrajectoryBatch:
        """Return one batch sampled, with exploration, from the policy as it is now."""
        return self._sample(self.generator, random_action_prob=self.random_action_prob)

    def sample_on_policy(self, generator: torch.Generator) -> TrajectoryBatch:
        """Return one batch sampled without exploration, from randomness of its own."""
        return self._sample(generator, random_action_prob=0.0)

    def _sample(self, generator: torch.Generator, *, random_action_prob: float) -> TrajectoryBatch:
        conditioning = self.task.sample_conditioning(self.num_trajectories, generator=generator)
        return sample_forward(
            self.context,
            self.policy,
            conditioning=conditioning,
            generator=generator,
            random_action_prob=random_action_prob,
        )


def trajectory_stream(source: TrajectorySource, *, num_workers: int) -> Generator[TrajectoryBatch]:
    """Yield the source's batches for ever, from `num_workers` processes (0: this one)."""
    if num_workers:
        source.policy.share_memory()
        source.allocate_buffers(num_workers)
    loader = DataLoader(
        source,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=WORKER_CONTEXT if num_workers else None,
        prefetch_factor=PREFETCH_FACTOR if num_workers else None,
        worker_init_fn=_follow_the_main_process,
        generator=torch.Generator(),  # or the loader would draw its base seed from the global one
    )
    for message in loader:
        yield source.received(message)


def _follow_the_main_process(worker_id: int) -> None:
    """Leave Ctrl-C, which a terminal sends to all, to the main process, and die when that has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = multiprocessing.parent_process()
    assert main is not None, "called in a worker"

    def watch() -> None:
        main.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
