"""Rollouts without end, in this process or from workers that call it for policy, replay buffer and evaluations."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gflownet.data.config import WorkersConfig
from gflownet.data.replay import ReplayBuffer
from gflownet.data.source import GLOBAL_STREAM, Rollout, TrajectorySource
from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation, Evaluator
from gflownet.evaluation.job import Request, Ticket
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout, Kinds
from gflownet.mdp.policy import PolicyFunction
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.packing import MessageError
from gflownet.workers.pool import WorkerError, WorkerPool
from gflownet.workers.process import WorkerInfo, keep_freed_memory, seed_all, stream_seed
from gflownet.workers.proxy import Endpoint
from gflownet.workers.server import ProxyServer, Served
from gflownet.workers.transport import Transport

# Shortest and longest pause between two polls of a worker, seconds.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class EvaluationDesk:
    """The dispatcher in calls that return at once, so that the server's thread keeps answering other workers."""

    def __init__(self, dispatcher: AsynchronousEvaluator) -> None:
        self._dispatcher = dispatcher
        self._numbers = count()
        self._open: dict[int, tuple[list[Ticket], int]] = {}

    def submit(self, candidates: Sequence[Any], step: int) -> int:
        """Start the evaluation of candidates and return its number."""
        number = next(self._numbers)
        self._open[number] = self._dispatcher.submit([Request(each) for each in candidates], step=step), step
        return number

    def take(self, number: int) -> list[Evaluation] | None:
        """Return the evaluations of `submit`, None while one is running."""
        tickets, step = self._open[number]
        if any(ticket.record is None for ticket in tickets):
            self._dispatcher.advance(timeout=0)
        if any(ticket.record is None for ticket in tickets):
            return None
        del self._open[number]
        return self._dispatcher.evaluations(tickets, step=step)


class RemoteEvaluator(Evaluator):
    """The evaluator in a worker."""

    def __init__(self, desk: Any) -> None:
        """`desk`: proxy of an `EvaluationDesk`."""
        self._desk = desk

    def evaluate(self, candidates: Sequence[Any], *, step: int) -> list[Evaluation]:
        number = self._desk.submit(list(candidates), step)
        pause = _SHORTEST_PAUSE_S
        while (evaluations := self._desk.take(number)) is None:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return evaluations


_NUM_PUBLISHED = 2  # a rollout starts after its predecessor was taken: it may need the second-last weights


def local_rollouts(
    source: TrajectorySource,
    *,
    policy: PolicyFunction,
    evaluator: Evaluator,
    replay: ReplayBuffer,
    first_step: int,
    teacher: PolicyFunction | None = None,
) -> Generator[Rollout]:
    """Yield the rollouts from `first_step` on, each sampled on demand with the current weights."""
    for step in count(first_step):
        yield source.rollout(step, policy=policy, evaluator=evaluator, replay=replay, teacher=teacher)


def worker_rollouts(
    source: TrajectorySource,
    *,
    policy: PolicyOnDevice,
    evaluator: AsynchronousEvaluator,
    replay: ReplayBuffer,
    first_step: int,
    num_workers: int,
    transport: Transport,
    config: WorkersConfig,
    teacher: PolicyOnDevice | None = None,
) -> Generator[Rollout]:
    """Yield the rollouts from `first_step` on, taken from the workers in turn.

    Raises:
        WorkerError: the user's own code raised in a worker; the cause carries the worker's traceback.
        UserError: workers die or time out, or the task cannot be pickled for them.
        EvaluationStoppedError: a stop request, or the budget is spent.
    """
    policies = {"policy": policy} if teacher is None else {"policy": policy, "teacher": teacher}
    served = {name: ServedPolicy(each) for name, each in policies.items()}
    _publish(served)  # before a worker refreshes its weights
    context = source.context
    mergers = {
        "__call__": MergedPolicyCalls(context.layout),
        "both": MergedPolicyCalls(context.layout, context.action_types, context.backward_types),
    }
    objects = {
        **{name: Served(each, mergers) for name, each in served.items()},
        "replay": Served(replay),
        "evaluations": Served(EvaluationDesk(evaluator)),
    }
    producer = _RolloutProducer(source, first_step)
    with (
        _failures_as_user_errors(num_workers),
        ProxyServer(objects, transport=transport, device=policy.device) as server,
        WorkerPool(producer, server, num_workers=num_workers, deadline_s=config.deadline, seed=source.seed) as pool,
    ):
        while True:
            yield pool.next()
            _publish(served)


class ServedPolicy:
    """Copy of the policy for workers: `publish` offers new weights, `refresh` switches to them.

    The trainer publishes before it waits for a rollout; a worker refreshes before it starts one. A single worker names
    the publication it needs, so that each of its rollouts has one set of weights, independent of timing. Several
    workers share the weights, which change in the middle of a rollout when another worker starts one.
    """

    def __init__(self, policy: PolicyOnDevice) -> None:
        self._policy = policy.policy
        self._served = copy.copy(policy)
        self._served.policy = copy.deepcopy(policy.policy)
        self._published: dict[int, dict[str, Tensor]] = {}  # weights by number of the publication
        self._num_published = 0
        self._lock = threading.Lock()

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the policy's output, see `Policy.forward`."""
        return self._served(batch, conditioning)

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return a two-way policy's output, see `TwoWayPolicy.both`."""
        return self._served.both(batch, conditioning)

    def publish(self) -> None:
        """Offer the policy's current weights; the first publication has the number 1."""
        weights = {name: value.detach().clone() for name, value in self._policy.state_dict().items()}
        with self._lock:
            self._num_published += 1
            self._published[self._num_published] = weights
            self._published.pop(self._num_published - _NUM_PUBLISHED, None)

    def refresh(self, number: int | None) -> None:
        """Switch to the weights of this publication; None: the latest."""
        with self._lock:
            self._served.policy.load_state_dict(self._published[self._num_published if number is None else number])


class MergedPolicyCalls:
    """One forward pass for the calls of several workers (a `Merger`)."""

    def __init__(self, layout: BatchLayout, *action_types: Kinds) -> None:
        """Keep the batch layout and the action types of each returned distribution; default: forward actions."""
        self._layout, self._action_types = layout, action_types or (layout.context.action_types,)

    def merge(self, calls: Sequence[tuple]) -> tuple[Batch, Tensor]:
        """Return one batch of the graphs of all calls, and their conditioning."""
        return self._layout.merge([batch for batch, _ in calls]), torch.cat([conditioning for _, conditioning in calls])

    def split(self, result: tuple, calls: Sequence[tuple]) -> list[tuple]:
        """Return each call's distributions and per-graph outputs."""
        *categoricals, outputs = result
        batches, sizes = [batch for batch, _ in calls], [len(conditioning) for _, conditioning in calls]
        typed = zip(categoricals, self._action_types, strict=True)
        splits = [self._layout.split(categorical, batches, kinds) for categorical, kinds in typed]
        return list(zip(*splits, outputs.split(sizes), strict=True))


class _RolloutProducer:
    """The `Produce` of workers: rollouts of every n-th step."""

    def __init__(self, source: TrajectorySource, first_step: int) -> None:
        self._source, self._first_step = source, first_step

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[Rollout]:
        keep_freed_memory()
        policy: Any = endpoint.proxy("policy")
        teacher: Any = endpoint.proxy("teacher") if self._source.options.num_taught else None
        replay: Any = endpoint.proxy("replay")
        evaluator = RemoteEvaluator(endpoint.proxy("evaluations"))
        for turn in count(info.id, info.num_workers):
            step = self._first_step + turn
            seed_all(stream_seed(self._source.seed, step, GLOBAL_STREAM))
            # Several workers share one set of weights, so that calls can be merged; a single worker has its own.
            publication = max(turn, 1) if info.num_workers == 1 else None
            for each in (policy,) if teacher is None else (policy, teacher):
                each.refresh(publication)
            yield self._source.rollout(step, policy=policy, evaluator=evaluator, replay=replay, teacher=teacher)


def _publish(served: Mapping[str, ServedPolicy]) -> None:
    for policy in served.values():
        policy.publish()


@contextmanager
def _failures_as_user_errors(num_workers: int) -> Iterator[None]:
    """Turn failures of workers, except exceptions of the user's code, into one line with the relevant option."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, UserError):  # raised by a served object, such as the store
            raise UserError(str(error.__cause__)) from error
        if isinstance(error.__cause__, EvaluationStoppedError):
            raise EvaluationStoppedError(str(error.__cause__)) from None
        if isinstance(error.__cause__, FloatingPointError):  # of a policy that cannot be sampled
            raise FloatingPointError(str(error.__cause__)) from error
        if error.__cause__ is not None:
            raise
        raise UserError(f"num_workers={num_workers}: {error} (workers.deadline)") from None
    except MessageError as error:
        raise UserError(f"num_workers={num_workers}: {error}") from error
