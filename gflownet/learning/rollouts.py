"""Trajectories from worker processes, which call the policy in the main process."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.learning.config import WorkersConfig
from gflownet.learning.source import TrajectorySource
from gflownet.mdp.layout import Batch, BatchLayout, Kinds
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.workers.packing import MessageError
from gflownet.workers.pool import WorkerError, WorkerPool
from gflownet.workers.process import Stream, WorkerInfo, keep_freed_memory, seed_all, stream_seed
from gflownet.workers.proxy import Endpoint
from gflownet.workers.server import ProxyServer, Served
from gflownet.workers.transport import Transport

_NUM_COPIES = 2  # of the weights: of the workers' last turn and of their next one


def worker_samples(
    source: TrajectorySource,
    *,
    policy: PolicyOnDevice,
    first_step: int,
    num_workers: int,
    transport: Transport,
    config: WorkersConfig,
    teacher: PolicyOnDevice | None = None,
) -> Generator[TrajectoryBatch]:
    """Yield the trajectories of each step from `first_step` on, without rewards, sampled by the workers in turn.

    The weights depend on no timing: n workers sample n steps with those that the policy had n steps before the first.

    Raises:
        WorkerError: the user's own code raised in a worker; the cause carries the worker's traceback.
        UserError: workers die or time out, or the task cannot be pickled for them.
    """
    trained = {"policy": policy} if teacher is None else {"policy": policy, "teacher": teacher}
    copies = [{name: _copied(each) for name, each in trained.items()} for _ in range(_NUM_COPIES)]
    context = source.context
    mergers = {
        "__call__": MergedPolicyCalls(context.layout),
        "both": MergedPolicyCalls(context.layout, context.action_types, context.backward_types),
    }
    objects = {_name(name, of): Served(each, mergers) for of, row in enumerate(copies) for name, each in row.items()}
    producer = _SampleProducer(source, first_step)
    with (
        _failures_as_user_errors(num_workers),
        ProxyServer(objects, transport=transport, device=policy.device) as server,
        WorkerPool(producer, server, num_workers=num_workers, deadline_s=config.deadline, seed=source.seed) as pool,
    ):
        for number in count():
            turn, place = divmod(number, num_workers)
            if place == 0:  # the last workers with this copy are done, the next ones start when this one is taken
                for name, each in copies[(turn + 1) % _NUM_COPIES].items():
                    each.policy.load_state_dict(trained[name].policy.state_dict())
            yield pool.next()


def _copied(policy: PolicyOnDevice) -> PolicyOnDevice:
    """Return the policy with weights of its own."""
    copied = copy.copy(policy)
    copied.policy = copy.deepcopy(policy.policy)
    return copied


def _name(name: str, turn: int) -> str:
    """Return the name of a policy's copy for the workers of a turn."""
    return f"{name}_{turn % _NUM_COPIES}"


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


class _SampleProducer:
    """The `Produce` of workers: trajectories of every n-th step."""

    def __init__(self, source: TrajectorySource, first_step: int) -> None:
        self._source, self._first_step = source, first_step

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[TrajectoryBatch]:
        keep_freed_memory()
        has_teacher = bool(self._source.options.num_taught)
        for turn in count():
            step = self._first_step + turn * info.num_workers + info.id
            seed_all(stream_seed(self._source.seed, step, Stream.GLOBAL))
            policy: Any = endpoint.proxy(_name("policy", turn))
            teacher: Any = endpoint.proxy(_name("teacher", turn)) if has_teacher else None
            yield self._source.sample(step, policy, teacher)


@contextmanager
def _failures_as_user_errors(num_workers: int) -> Iterator[None]:
    """Turn failures of workers, except exceptions of the user's code, into one line with the relevant option."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, FloatingPointError):  # of a policy that cannot be sampled
            raise FloatingPointError(str(error.__cause__)) from error
        if error.__cause__ is not None:
            raise
        raise UserError(f"num_workers={num_workers}: {error} (workers.deadline)") from None
    except MessageError as error:
        raise UserError(f"num_workers={num_workers}: {error}") from error
