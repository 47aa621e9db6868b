"""Measure the cost of a policy call from a worker, and the rollouts per second of several workers.

    python scripts/bench_workers.py [--quick] [--json FILE]

Graph building with two node types, up to 7 nodes and 12 actions; untrained policies of width 64 with 3 layers.

Round trips: one worker sends a batch of 64 states, alternating call by call with the bare network in the main process,
for each transport in new processes; the null model answers without computing. Wall time, medians.

Rollouts: streams of 64 evaluated trajectories, made in the main process or by two workers, without training steps, all
sides in turn. Process start is not counted, nor are graphs whose score was already in the store.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.config import load_config
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from gflownet.learning.config import ReplayConfig, WorkersConfig
from gflownet.learning.replay import ReplayBuffer
from gflownet.learning.rollouts import MergedPolicyCalls, worker_samples
from gflownet.learning.sampler import Exploration
from gflownet.learning.source import Rollout, SourceOptions, TrajectorySource
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.workers import Endpoint, ProxyServer, Served
from gflownet.workers.pool import WorkerPool
from gflownet.workers.process import WorkerInfo, keep_freed_memory
from gflownet.workers.transport import CPU, Transport
from scripts.bench import Row, at_least, at_most, figure, finish, interleaved, parse_arguments
from tests.fixed_length_env import FixedLengthGraphBuildingEnv

POLICIES: Mapping[str, type[Policy]] = {
    "dense_transformer, the default": DenseTransformerPolicy,
    "graph_transformer": GraphTransformerPolicy,
}
BUFFERS, PICKLES = "buffers", "pickles"
BUFFER_BYTES = 4_000_000
TRANSPORTS: Mapping[str, Callable[[], Transport]] = {
    BUFFERS: lambda: Transport(BUFFER_BYTES),
    PICKLES: lambda: Transport(None),
}
BATCH_SIZE, MAX_NODES, NUM_ACTIONS = 64, 7, 12
MODEL = ModelConfig(num_layers=3, num_emb=64)
NUM_CALLS = 20  # per turn of a session
NUM_WORKERS = 2
MAX_RATIO, MIN_OVERHEAD_RATIO = 1.15, 3.0
MIN_SPEEDUP_CHEAP = 1.0
HERE = "num_workers=0"


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
        return self._rollouts(self.source.sample(step, self._policy) for step in count(1))

    def of_workers(self, transport: str) -> Generator[Rollout]:
        """Return rollouts of trajectories that workers sample."""
        samples = worker_samples(
            self.source,
            policy=self._policy,
            first_step=1,
            num_workers=NUM_WORKERS,
            transport=TRANSPORTS[transport](),
            config=WorkersConfig(),
        )
        with closing(samples):
            yield from self._rollouts(samples)

    def _rollouts(self, samples: Iterator[TrajectoryBatch]) -> Generator[Rollout]:
        policy, evaluator, replay = self._policy, self.evaluator, self.replay
        for step, fresh in enumerate(samples, start=1):
            graphs = [self.context.env.terminal(fresh.terminal, index) for index in range(len(fresh))]
            keys, evaluations = [graph.canonical_key() for graph in graphs], evaluator.evaluate(graphs, step=step)
            yield self.source.rollout(step, fresh, keys, evaluations, policy=policy, evaluator=evaluator, replay=replay)

    @property
    def _policy(self) -> PolicyOnDevice:
        return PolicyOnDevice(self.policy, device=CPU, precision="float32")


@contextmanager
def open_streams(policy_class: Callable[..., Policy], *, num_trajectories: int = BATCH_SIZE) -> Iterator[Streams]:
    """Yield streams with an untrained policy, a fixed seed and an empty store."""
    config, replay = load_config(None, []), ReplayConfig(use=False)
    task = CountsEdges(config)
    env = FixedLengthGraphBuildingEnv(("a", "b"), max_nodes=MAX_NODES, num_actions=NUM_ACTIONS, directed=True)
    layout: Any = getattr(policy_class, "layout")  # noqa: B009
    context = GraphBuildingEnvContext(env, num_cond_dim=task.num_cond_dim).with_layout(layout)
    torch.manual_seed(config.seed)
    policy = policy_class(context, MODEL)
    options = SourceOptions(num_trajectories, exploration=Exploration(random_action_prob=0.1), replay=replay)
    source = TrajectorySource(context, options, task=task, seed=config.seed)
    with tempfile.TemporaryDirectory() as folder, EvaluationStore(Path(folder) / "store.sqlite") as store:
        evaluator = Dispatcher(task, store, InlineExecutor(task), config=config.evaluation, seed=config.seed)
        yield Streams(source, policy, evaluator, ReplayBuffer(replay))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process (proc(5), fields utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """Medians over the calls of one turn in seconds; CPU time is the mean per call of both processes together."""

    round_trip: float  # alternating with `bare`
    bare: float
    round_trip_cpu: float
    bare_cpu: float


class Stopwatch:
    """Time the bare network in the main process, on request of the worker."""

    def __init__(self, network: PolicyFunction, call: tuple[Batch, Tensor]) -> None:
        self._network, self._call = network, call

    def bare(self, num: int = 1) -> list[float]:
        """Return the seconds of each of `num` calls."""
        with torch.inference_mode():
            return _durations(lambda: self._network(*self._call), num)

    def cpu(self) -> float:
        """Return the CPU time of the process."""
        return time.process_time()


class Session:
    """The worker's side of the round trips: calls alternating with the bare network, then CPU time of loops."""

    def __init__(self, call: tuple[Batch, Tensor], *, num_turns: int, num_warm_up_calls: int) -> None:
        self._call, self._num_turns, self._num_warm_up_calls = call, num_turns, num_warm_up_calls

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[list[Turn]]:
        """Yield the turns of a session."""
        keep_freed_memory()
        policy: Any = endpoint.proxy("policy")
        stopwatch: Any = endpoint.proxy("stopwatch")
        for _ in range(self._num_warm_up_calls):
            policy(*self._call)
            stopwatch.bare()
        while True:
            yield [self._turn(policy, stopwatch) for _ in range(self._num_turns)]

    def _turn(self, policy: Any, stopwatch: Any) -> Turn:
        round_trips, bare = [], []
        for _ in range(NUM_CALLS):
            round_trips += _durations(lambda: policy(*self._call))
            bare += stopwatch.bare()
        start = stopwatch.cpu() + time.process_time()
        _durations(lambda: policy(*self._call), NUM_CALLS)
        middle = stopwatch.cpu() + time.process_time()
        stopwatch.bare(NUM_CALLS)
        end = stopwatch.cpu() + time.process_time()
        return Turn(median(round_trips), median(bare), (middle - start) / NUM_CALLS, (end - middle) / NUM_CALLS)


class NullModel:
    """A policy that returns a stored result."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __call__(self, batch: Batch, conditioning: Tensor) -> Any:
        """Return the stored result."""
        return self._result


def round_trip_rows(*, num_sessions: int, num_turns: int, num_warm_up_calls: int) -> list[Row]:
    """Return the round trips of both policies: every transport in turn, each session in a new process."""
    rows = []
    for name, policy_class in POLICIES.items():
        with open_streams(policy_class) as streams:
            call = half_way_call(streams.context)
            session = Session(call, num_turns=num_turns, num_warm_up_calls=num_warm_up_calls)
            with torch.inference_mode():
                null_model = NullModel(streams.policy(*call))
            turns: dict[tuple[str, bool], list[Turn]] = {(t, null): [] for t in TRANSPORTS for null in (False, True)}
            for _ in range(num_sessions):
                for (transport, is_null), of_side in turns.items():
                    served = null_model if is_null else streams.policy
                    objects = {
                        "policy": Served(served, {"__call__": MergedPolicyCalls(streams.context.layout)}),
                        "stopwatch": Served(Stopwatch(streams.policy, call)),
                    }
                    with (
                        ProxyServer(objects, transport=TRANSPORTS[transport]()) as server,
                        WorkerPool(session, server, num_workers=1) as pool,
                    ):
                        of_side += pool.next()
        for transport in TRANSPORTS:
            rows += _round_trip_rows(f"{name}, {transport}", turns[transport, False], turns[transport, True])
        overheads = {t: median(turn.round_trip - turn.bare for turn in turns[t, False]) for t in TRANSPORTS}
        ratio = overheads[PICKLES] / overheads[BUFFERS]
        rows.append(at_least(f"{name}: overhead of pickles over buffers", ratio, "x", MIN_OVERHEAD_RATIO))
    return rows


def half_way_call(context: GraphBuildingEnvContext) -> tuple[Batch, Tensor]:
    """Return the arguments of a policy call: states after half of their actions (uniformly random), conditioning."""
    generator, states = torch.Generator().manual_seed(0), context.env.initial_states(BATCH_SIZE)
    for _ in range(NUM_ACTIONS // 2):
        states = context.env.apply(states, context.env.forward_masks(states).sample_uniform(generator))
    return context.to_batch(states), torch.rand(BATCH_SIZE, context.num_cond_dim, generator=generator)


def _durations(run: Any, num: int = 1) -> list[float]:
    seconds = []
    for _ in range(num):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def _round_trip_rows(name: str, turns: Sequence[Turn], null_turns: Sequence[Turn]) -> list[Row]:
    ratio = median(turn.round_trip / turn.bare for turn in turns)
    seconds = {
        f"bare forward of {BATCH_SIZE} graphs": median(turn.bare for turn in turns),
        "overhead of a round trip": median(turn.round_trip - turn.bare for turn in turns),
        "overhead in CPU time of both": median(turn.round_trip_cpu - turn.bare_cpu for turn in turns),
        "null model, round trip": median(turn.round_trip for turn in null_turns),
        "null model, CPU time of both": median(turn.round_trip_cpu for turn in null_turns),
    }
    return [
        at_most(f"{name}: round trip over bare forward", ratio, "x", MAX_RATIO if name.endswith(BUFFERS) else None),
        *(figure(f"{name}: {label}", 1e3 * value, "ms") for label, value in seconds.items()),
    ]


@dataclass(frozen=True)
class Load:
    """The rollouts that a stream is timed on."""

    policy: type[Policy]
    num_rollouts: int  # a multiple of the number of workers
    num_trajectories: int = BATCH_SIZE


@dataclass(frozen=True)
class Speed:
    """Speed and cost of a stream."""

    per_second: float  # trajectories to graphs that were not in the store
    cpu_main: float  # seconds per trajectory
    cpu_workers: float


def rollout_rows(label: str, load: Load, transports: Sequence[str], *, num_rounds: int, goal: float) -> list[Row]:
    """Return speeds and CPU times of the main process and of two workers; the goal is for buffers."""
    sides = {side: partial(measure_speed, side, load) for side in (HERE, *transports)}
    speeds = interleaved(sides, rounds=num_rounds, warm_up=0)
    rows = []
    for side, of_side in speeds.items():
        name = f"{label}, {side if side == HERE else f'{NUM_WORKERS} workers, {side}'}"
        rows.append(figure(f"{name}: speed", median(s.per_second for s in of_side), "trajectories/s"))
        cpu_main, cpu_workers = (1e3 * median(getattr(s, cpu) for s in of_side) for cpu in ("cpu_main", "cpu_workers"))
        rows.append(figure(f"{name}: CPU time, main process", cpu_main, "ms/trajectory"))
        if side != HERE:
            ratio = median(s.per_second / base.per_second for s, base in zip(of_side, speeds[HERE], strict=True))
            rows.append(figure(f"{name}: CPU time, workers", cpu_workers, "ms/trajectory"))
            rows.append(at_least(f"{name}: speed over {HERE}", ratio, "x", goal if side == BUFFERS else None))
    return rows


def measure_speed(side: str, load: Load) -> Speed:
    """Time a new stream after every worker has delivered a rollout."""
    with open_streams(load.policy, num_trajectories=load.num_trajectories) as streams:
        stream = streams.here() if side == HERE else streams.of_workers(side)
        with closing(stream):
            for _ in range(NUM_WORKERS):
                next(stream)
            pids = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
            start, cpu_before = time.perf_counter(), (cpu_seconds(os.getpid()), sum(map(cpu_seconds, pids)))
            rollouts = islice(stream, load.num_rollouts)
            num_new = sum(not e.cached for rollout in rollouts for e in rollout.evaluations)
            seconds = time.perf_counter() - start
            cpu_after = cpu_seconds(os.getpid()), sum(map(cpu_seconds, pids))
    num = load.num_rollouts * load.num_trajectories
    main, workers = ((after - before) / num for after, before in zip(cpu_after, cpu_before, strict=True))
    return Speed(num_new / seconds, main, workers)


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    keep_freed_memory()
    torch.set_num_threads(1)
    quick = arguments.quick
    num_sessions, num_turns, num_warm_up_calls = (1, 1, 5) if quick else (5, 10, 40)
    rows = round_trip_rows(num_sessions=num_sessions, num_turns=num_turns, num_warm_up_calls=num_warm_up_calls)
    for name, policy in POLICIES.items():
        load, num_rounds = (Load(policy, 2, 16), 1) if quick else (Load(policy, 30), 7)
        label = f"{name}, cheap reward"
        rows += rollout_rows(label, load, tuple(TRANSPORTS), num_rounds=num_rounds, goal=MIN_SPEEDUP_CHEAP)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
