"""What a call of the policy costs on its way from one worker to the main process and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gflownet.data.served_policy import MergedPolicyCalls
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import PolicyFunction
from gflownet.workers import Endpoint, ProxyServer, Served
from gflownet.workers.pool import WorkerPool
from gflownet.workers.process import WorkerInfo, keep_freed_memory
from scripts.bench import Row
from scripts.workers.parts import BATCH_SIZE, BUFFERS, NUM_ACTIONS, PICKLES, POLICIES, TRANSPORTS, made_parts

NUM_CALLS = 20  # of a turn
MAX_RATIO, MIN_OVERHEAD_RATIO = 1.15, 3.0


@dataclass(frozen=True)
class Turn:
    """Medians over the calls of one turn, seconds; CPU time is the mean of both processes together."""

    round_trip: float  # call by call in turn with the next
    bare: float
    again_and_again: float  # round trips one after the other
    cpu: float
    bare_again_and_again: float
    bare_cpu: float


class Stopwatch:
    """Times the bare network in the process where it lives; the worker asks for it."""

    def __init__(self, network: PolicyFunction, call: tuple[Batch, Tensor]) -> None:
        self._network, self._call = network, call

    def bare(self, num: int = 1) -> list[float]:
        """Return the seconds that each of so many calls takes."""
        with torch.inference_mode():
            return _durations(lambda: self._network(*self._call), num)

    def cpu(self) -> float:
        """Return the CPU time of the process."""
        return time.process_time()


class Session:
    """What the worker does.

    Once call by call in turn with the bare network, so that both find the caches of the processor in the same state;
    once many calls in a row, as a loop around either would see them.
    """

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
        again_and_again = _durations(lambda: policy(*self._call), NUM_CALLS)
        middle = stopwatch.cpu() + time.process_time()
        bare_again_and_again = stopwatch.bare(NUM_CALLS)
        end = stopwatch.cpu() + time.process_time()
        return Turn(
            median(round_trips),
            median(bare),
            median(again_and_again),
            (middle - start) / NUM_CALLS,
            median(bare_again_and_again),
            (end - middle) / NUM_CALLS,
        )


class HasItReady:
    """A policy that takes no time."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, batch: Batch, conditioning: Tensor) -> Any:
        """Return the answer."""
        return self._answer


def measure(*, num_sessions: int, num_turns: int, num_warm_up_calls: int) -> list[Row]:
    """Return the rows of both policies: every transport in turn, each session in a new process."""
    rows = []
    for name, policy_class in POLICIES.items():
        with made_parts(policy_class) as parts:
            call = half_way(parts.context)
            session = Session(call, num_turns=num_turns, num_warm_up_calls=num_warm_up_calls)
            with torch.inference_mode():
                ready = HasItReady(parts.policy(*call))
            turns: dict[tuple[str, bool], list[Turn]] = {(t, null): [] for t in TRANSPORTS for null in (False, True)}
            for _ in range(num_sessions):
                for (transport, is_null), found in turns.items():
                    served = ready if is_null else parts.policy
                    objects = {
                        "policy": Served(served, {"__call__": MergedPolicyCalls(parts.context.layout)}),
                        "stopwatch": Served(Stopwatch(parts.policy, call)),
                    }
                    found += _session(transport, objects, session)
        rows += _rows(name, turns)
    return rows


def half_way(context: GraphBuildingEnvContext) -> tuple[Batch, Tensor]:
    """Return a call of the policy: states after half of their actions, uniformly random ones, and conditioning."""
    generator, states = torch.Generator().manual_seed(0), context.env.initial_states(BATCH_SIZE)
    for _ in range(NUM_ACTIONS // 2):
        states = context.env.apply(states, context.env.forward_masks(states).sample_uniform(generator))
    return context.to_batch(states), torch.rand(BATCH_SIZE, context.num_cond_dim, generator=generator)


def _session(transport: str, objects: Mapping[str, Served], session: Session) -> list[Turn]:
    with (
        ProxyServer(objects, transport=TRANSPORTS[transport]()) as server,
        WorkerPool(session, server, num_workers=1) as pool,
    ):
        return pool.next()


def _durations(run: Any, num: int = 1) -> list[float]:
    seconds = []
    for _ in range(num):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def _rows(policy: str, turns: Mapping[tuple[str, bool], Sequence[Turn]]) -> list[Row]:
    overheads = {t: median(turn.round_trip - turn.bare for turn in turns[t, False]) for t in TRANSPORTS}
    less = overheads[PICKLES] / overheads[BUFFERS]
    rows = [row for t in TRANSPORTS for row in _rows_of(f"{policy}, {t}", turns[t, False], turns[t, True], t)]
    goal = f">= {MIN_OVERHEAD_RATIO:g}"
    return [*rows, Row(f"{policy}: overhead of pickles over buffers", less, "x", goal, less >= MIN_OVERHEAD_RATIO)]


def _rows_of(name: str, real: Sequence[Turn], null: Sequence[Turn], transport: str) -> list[Row]:
    ratio = median(turn.round_trip / turn.bare for turn in real)
    goal = (f"<= {MAX_RATIO:g}", ratio <= MAX_RATIO) if transport == BUFFERS else ("", True)
    in_a_row = median(turn.again_and_again / turn.bare_again_and_again for turn in real)
    figures = {
        f"bare forward of {BATCH_SIZE} graphs": median(turn.bare for turn in real),
        "overhead of a round trip": median(turn.round_trip - turn.bare for turn in real),
        "overhead in CPU time of both": median(turn.cpu - turn.bare_cpu for turn in real),
        "null model, round trip": median(turn.again_and_again for turn in null),
        "null model, CPU time of both": median(turn.cpu for turn in null),
    }
    return [
        Row(f"{name}: round trip over bare forward", ratio, "x", *goal),
        Row(f"{name}: the same in loops of their own", in_a_row, "x", "", True),
        *(Row(f"{name}: {what}", 1e3 * seconds, "ms", "", True) for what, seconds in figures.items()),
    ]
