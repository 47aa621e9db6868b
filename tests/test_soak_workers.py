"""Two workers run during training steps while one of them is killed repeatedly: counts stay, memory does not grow.

`GFLOWNET_SOAK_MINUTES=60 pytest -m slow tests/test_soak_workers.py` runs for an hour per transport; runs of two minutes
and more also limit the growth of memory.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import pytest

from gflownet.data.config import ReplayConfig, WorkersConfig
from gflownet.learning.learner import Learner, LearnerOptions
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from scripts.worker_streams import TRANSPORTS, Streams, open_streams, worker_pids

MINUTES = float(os.environ.get("GFLOWNET_SOAK_MINUTES", "0.15"))
LONG_MINUTES = 5  # growth of memory is smaller than its noise in shorter runs
MAX_GROWTH = 30.0  # MiB per hour
MIN_SAMPLES = 6
TRAIN_EVERY = 10  # rollouts
SAMPLE_EVERY_S, KILL_EVERY_S = (5.0, 20.0) if MINUTES >= LONG_MINUTES else (0.5, 2.0)
# A small space and a small replay buffer, so that the search's own data does not grow.
MAX_NODES, NUM_ACTIONS = 4, 5
REPLAY = ReplayConfig(capacity=100, warmup=64, num_from_replay=16)


@dataclass(frozen=True)
class Sample:
    """Resources at one moment."""

    hours: float
    num_kills: int
    files: int  # open in the main process
    threads: int  # of the main process
    processes: int  # workers
    shared: float  # MiB of shared memory mapped by the main process and the workers
    dev_shm: float  # MiB used in /dev/shm by all processes of the machine
    main: float  # MiB of private memory of the main process
    worker: float  # MiB of private memory of the worker that is never killed


def memory_mib(pid: int, field: str) -> float:
    """Return RssAnon or RssShmem of a process in MiB; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def take_sample(*, hours: float, num_kills: int) -> Sample:
    main, pids = os.getpid(), worker_pids()
    disk = os.statvfs("/dev/shm")
    return Sample(
        hours,
        num_kills,
        files=len(os.listdir(f"/proc/{main}/fd")),
        threads=len(os.listdir(f"/proc/{main}/task")),
        processes=len(pids),
        shared=sum(memory_mib(pid, "RssShmem") for pid in (main, *pids.values())),
        dev_shm=(disk.f_blocks - disk.f_bfree) * disk.f_frsize / 2**20,
        main=memory_mib(main, "RssAnon"),
        worker=memory_mib(pids["worker 1"], "RssAnon"),
    )


def soak(streams: Streams, transport: str) -> Iterator[Sample]:
    """Yield samples for MINUTES, and at least MIN_SAMPLES."""
    objective = TrajectoryBalance(streams.context, AlgoConfig())
    options = LearnerOptions(num_steps=10**9)
    learner = Learner(streams.policy, objective, streams.context, config=OptimizerConfig(), options=options)
    num_kills = num_samples = 0
    with closing(streams.of_workers(transport, num_workers=2, config=WorkersConfig(max_restarts=10**6))) as stream:
        learner.learn(next(stream))  # the start of the workers takes seconds
        start = time.monotonic()
        next_sample, next_kill = start + SAMPLE_EVERY_S, start + KILL_EVERY_S
        for number, rollout in enumerate(stream, start=2):
            if number % TRAIN_EVERY == 0:
                learner.learn(rollout)
            now = time.monotonic()
            if now >= next_sample:
                yield take_sample(hours=(now - start) / 3600, num_kills=num_kills)
                next_sample, num_samples = now + SAMPLE_EVERY_S, num_samples + 1
            if now >= next_kill:
                os.kill(worker_pids()["worker 0"], signal.SIGKILL)
                next_kill, num_kills = now + KILL_EVERY_S, num_kills + 1
            if now - start >= 60 * MINUTES and num_samples >= MIN_SAMPLES:
                return


def growth(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """Return the median of the last third of the samples minus the median of the middle third."""
    third = len(samples) // 3
    return median(map(of, samples[2 * third :])) - median(map(of, samples[third : 2 * third]))


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_workers_soak_with_kills(transport):
    with (
        warnings.catch_warnings(),
        open_streams(DenseTransformerPolicy, max_nodes=MAX_NODES, num_actions=NUM_ACTIONS, replay=REPLAY) as streams,
    ):
        warnings.filterwarnings("ignore", message=r"worker \d+ .*; restart")
        samples = list(soak(streams, transport))
    for sample in samples[:: max(1, len(samples) // 12)]:
        print({name: round(value, 4) for name, value in asdict(sample).items()})
    assert samples[-1].num_kills > 0
    assert max(sample.processes for sample in samples) <= 2
    assert abs(growth(samples, lambda sample: sample.threads)) <= (0 if MINUTES >= LONG_MINUTES else 1)
    assert abs(growth(samples, lambda sample: sample.files)) <= (0 if MINUTES >= LONG_MINUTES else 8)
    if MINUTES >= LONG_MINUTES:
        hours = growth(samples, lambda sample: sample.hours)
        for of in (lambda s: s.shared, lambda s: s.dev_shm, lambda s: s.main, lambda s: s.worker):
            assert growth(samples, of) / hours <= MAX_GROWTH
