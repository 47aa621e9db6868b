"""Trajectories per second of whole rollouts, made and evaluated here or by workers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from statistics import median

from gflownet.mdp.policy import Policy
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from scripts.bench import Row
from scripts.workers.parts import BATCH_SIZE, BUFFERS, POLICIES, TRANSPORTS, count_that_takes, made_parts
from scripts.workers.processes import cpu_seconds, workers

NUM_WORKERS = 2
REWARD_SECONDS = 0.05
MIN_RATIO_CHEAP, MIN_RATIO_DEAR = 1.0, 1.8
HERE = "num_workers=0"


@dataclass(frozen=True)
class Load:
    """What a stream is asked for."""

    policy: type[Policy]
    num_rollouts: int  # a multiple of the number of workers, so that each gives as many
    num_trajectories: int = BATCH_SIZE
    count_to: int = 0


@dataclass(frozen=True)
class Drained:
    """What draining a stream gave."""

    per_second: float  # trajectories to graphs that were not known yet
    cpu_main: float  # seconds per trajectory
    cpu_workers: float


def measure_cheap(*, num_rounds: int, num_rollouts: int, num_trajectories: int = BATCH_SIZE) -> list[Row]:
    """Return the rows of a reward that costs nothing."""
    rows = []
    for name, policy in POLICIES.items():
        rounds = _rounds(Load(policy, num_rollouts, num_trajectories), (HERE, *TRANSPORTS), num_rounds=num_rounds)
        rows += _rows(f"{name}, cheap reward", rounds, goal=MIN_RATIO_CHEAP)
    return rows


def measure_dear(*, num_rounds: int, num_rollouts: int, num_trajectories: int) -> list[Row]:
    """Return the rows of a reward that costs CPU time."""
    load = Load(DenseTransformerPolicy, num_rollouts, num_trajectories, count_that_takes(REWARD_SECONDS))
    rounds = _rounds(load, (HERE, BUFFERS), num_rounds=num_rounds)
    return _rows(f"{1e3 * REWARD_SECONDS:g} ms of CPU time per graph", rounds, goal=MIN_RATIO_DEAR)


def drain(side: str, load: Load) -> Drained:
    """Return how fast a new stream is, once every worker has given a rollout; training steps there are none."""
    with made_parts(load.policy, num_trajectories=load.num_trajectories, count_to=load.count_to) as parts:
        stream = parts.here() if side == HERE else parts.of_workers(side, num_workers=NUM_WORKERS)
        with closing(stream):
            for _ in range(NUM_WORKERS):
                next(stream)
            pids = workers().values()
            start, cpu_before = time.perf_counter(), (cpu_seconds(os.getpid()), sum(map(cpu_seconds, pids)))
            taken = islice(stream, load.num_rollouts)
            num_new = sum(not e.cached for rollout in taken for e in rollout.evaluations)
            seconds = time.perf_counter() - start
            cpu = cpu_seconds(os.getpid()), sum(map(cpu_seconds, pids))
    num = load.num_rollouts * load.num_trajectories
    main, others = ((after - before) / num for after, before in zip(cpu, cpu_before, strict=True))
    return Drained(num_new / seconds, main, others)


def _rounds(load: Load, sides: Sequence[str], *, num_rounds: int) -> dict[str, list[Drained]]:
    """Return what every side gave in each round, one after the other, in turn first and last."""
    found: dict[str, list[Drained]] = {side: [] for side in sides}
    for number in range(num_rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            found[side].append(drain(side, load))
    return found


def _rows(label: str, rounds: Mapping[str, Sequence[Drained]], *, goal: float) -> list[Row]:
    """Return the speeds, and what two workers gain over none."""
    rows = []
    for side, drained in rounds.items():
        name = f"{label}, {side if side == HERE else f'{NUM_WORKERS} workers, {side}'}"
        cpu_main, cpu_workers = (median(getattr(d, cpu) for d in drained) for cpu in ("cpu_main", "cpu_workers"))
        rows += [
            Row(f"{name}: speed", median(d.per_second for d in drained), "trajectories/s", "", True),
            Row(f"{name}: CPU time, main process", 1e3 * cpu_main, "ms/trajectory", "", True),
        ]
        if side == HERE:
            continue
        ratio = median(d.per_second / here.per_second for d, here in zip(drained, rounds[HERE], strict=True))
        verdict = (f">= {goal:g}", ratio >= goal) if side == BUFFERS else ("", True)
        rows += [
            Row(f"{name}: CPU time, workers", 1e3 * cpu_workers, "ms/trajectory", "", True),
            Row(f"{name}: speed over {HERE}", ratio, "x", *verdict),
        ]
    return rows
