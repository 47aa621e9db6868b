"""Measure what grows while two workers run with training steps and one of them is killed again and again.

    python scripts/soak_workers.py [--minutes 60] [--transport buffers] [--quick] [--json FILE]

One worker is killed and restarted again and again, the other one lives on. The search space is small and
the replay buffer full early, so that what a search itself keeps does not grow. The last third of the run is compared
with the middle one, by medians: open files, threads and processes must be as many, memory may grow by so much an hour.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.data.config import ReplayConfig, WorkersConfig
from gflownet.learning.learner import Learner, LearnerOptions
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.workers.process import keep_freed_memory
from scripts.bench import Row, at_most, equals, figure, finish, make_parser
from scripts.workers.parts import BUFFERS, TRANSPORTS, Parts, made_parts
from scripts.workers.processes import num_descriptors, num_threads, private_bytes, shared_bytes, workers

NUM_WORKERS = 2
MINUTES, MINUTES_QUICK = 60.0, 0.15
MIN_MINUTES = 2.0  # of a run whose slopes say something
MIN_SAMPLES = 6  # two in each third of the run
NUM_TABLE_LINES = 12
TRAIN_EVERY = 10  # rollouts
SAMPLE_EVERY_S, KILL_EVERY_S = 5.0, 20.0
QUICKER = 10  # by which both are shorter in a quick run
MAX_SLOPE = 30.0  # MiB per hour
MAX_NODES, NUM_ACTIONS = 4, 5
REPLAY = ReplayConfig(capacity=100, warmup=64, num_from_replay=16)
MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """What there is at one moment."""

    minutes: float
    num_rollouts: int
    num_trained: int
    num_kills: int
    files: int  # that the main process has open
    threads: int  # of the main process
    processes: int  # workers
    shared: float  # MiB of shared memory in the main process and the workers
    dev_shm: float  # MiB in /dev/shm, of all processes of the machine
    main: float  # MiB of its own that the main process has in memory
    worker: float  # the same of the worker that is never killed


class Clock:
    """Says when it is time again."""

    def __init__(self, period: float) -> None:
        self._period, self._next = period, time.monotonic() + period

    def is_due(self) -> bool:
        """Return whether a period has gone by since the last time that this was true."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._period
        return True


def soak(parts: Parts, *, transport: str, minutes: float, pace: float) -> Iterator[Sample]:
    """Yield a sample every few seconds, from the first rollout on, for so long and until there are MIN_SAMPLES."""
    options, config = LearnerOptions(num_steps=10**9), WorkersConfig(max_restarts=10**6)
    objective = TrajectoryBalance(parts.context, AlgoConfig())
    learner = Learner(parts.policy, objective, parts.context, config=OptimizerConfig(), options=options)
    num_trained = num_kills = num_samples = 0
    with closing(parts.of_workers(transport, num_workers=NUM_WORKERS, config=config)) as stream:
        learner.learn(next(stream))  # workers that start take seconds
        sampling, killing, start = Clock(SAMPLE_EVERY_S * pace), Clock(KILL_EVERY_S * pace), time.monotonic()
        for num_rollouts, rollout in enumerate(stream, start=2):
            if num_rollouts % TRAIN_EVERY == 0:
                learner.learn(rollout)
                num_trained += 1
            spent = (time.monotonic() - start) / 60
            if sampling.is_due():
                yield observed(minutes=spent, num_rollouts=num_rollouts, num_trained=num_trained, num_kills=num_kills)
                num_samples += 1
            if killing.is_due():
                os.kill(workers()["worker 0"], signal.SIGKILL)
                num_kills += 1
            if spent >= minutes and num_samples >= MIN_SAMPLES:
                return


def observed(*, minutes: float, num_rollouts: int, num_trained: int, num_kills: int) -> Sample:
    """Return what there is now."""
    main, others = os.getpid(), workers()
    disk = os.statvfs("/dev/shm")
    return Sample(
        minutes,
        num_rollouts,
        num_trained,
        num_kills,
        files=num_descriptors(main),
        threads=num_threads(main),
        processes=len(others),
        shared=sum(map(shared_bytes, (main, *others.values()))) / MIB,
        dev_shm=(disk.f_blocks - disk.f_bfree) * disk.f_frsize / MIB,
        main=private_bytes(main) / MIB,
        worker=private_bytes(others["worker 1"]) / MIB,
    )


def show(samples: Sequence[Sample]) -> None:
    """Print a few of the samples."""
    names = [field.name for field in fields(Sample)]
    print("  ".join(f"{name:>12}" for name in names))
    for sample in samples[:: max(1, len(samples) // NUM_TABLE_LINES)]:
        print("  ".join(f"{value:12.6g}" for value in asdict(sample).values()))


def rows(samples: Sequence[Sample], *, minutes: float) -> list[Row]:
    """Return how much the last third of the run has more than the middle one; a short run has no goals."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]

    def change(of: Callable[[Sample], float]) -> float:
        return median(map(of, last)) - median(map(of, middle))

    hours, is_long = change(lambda s: s.minutes) / 60, minutes >= MIN_MINUTES
    counts = {
        "open files of the main process": change(lambda s: s.files),
        "threads of the main process": change(lambda s: s.threads),
        "worker processes": change(lambda s: s.processes),
    }
    memory = {
        "shared memory": change(lambda s: s.shared),
        "/dev/shm": change(lambda s: s.dev_shm),
        "memory of the main process": change(lambda s: s.main),
        "memory of the worker that lives on": change(lambda s: s.worker),
    }
    end, count_row = samples[-1], partial(equals, goal=0) if is_long else figure
    return [
        figure("rollouts", end.num_rollouts),
        figure("training steps", end.num_trained),
        figure("kills", end.num_kills),
        *(count_row(f"change of {name}", value) for name, value in counts.items()),
        *(
            at_most(f"growth of {name}", value / hours, "MiB/h", MAX_SLOPE if is_long else None)
            for name, value in memory.items()
        ),
    ]


def main() -> int:
    """Run everything and return the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long")
    parser.add_argument("--transport", choices=list(TRANSPORTS), default=BUFFERS, help="how messages travel")
    arguments = parser.parse_args()
    minutes, pace = (MINUTES_QUICK, 1 / QUICKER) if arguments.quick else (arguments.minutes, 1.0)
    keep_freed_memory()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=r"worker \d+ .* is restarted")
    with made_parts(DenseTransformerPolicy, max_nodes=MAX_NODES, num_actions=NUM_ACTIONS, replay=REPLAY) as parts:
        samples = list(soak(parts, transport=arguments.transport, minutes=minutes, pace=pace))
    show(samples)
    return finish(rows(samples, minutes=minutes), json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
