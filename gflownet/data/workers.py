"""Rollouts for ever, made in this process or by workers, which call it for policy, replay buffer and store."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from gflownet.data.config import WorkersConfig
from gflownet.data.replay import ReplayBuffer
from gflownet.data.served_policy import MergedPolicyCalls, ServedPolicy
from gflownet.data.source import GLOBAL_STREAM, Rollout, TrajectorySource
from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluator, InlineEvaluator
from gflownet.mdp.policy import PolicyFunction
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.workers.loader_pool import LoaderPool
from gflownet.workers.packing import MessageError
from gflownet.workers.pool import Pool, WorkerError, WorkerPool
from gflownet.workers.process import WorkerInfo, keep_freed_memory, seed_all, stream_seed
from gflownet.workers.proxy import Endpoint
from gflownet.workers.server import ProxyServer, Served
from gflownet.workers.transport import Transport

POOLS: dict[str, type[Pool]] = {"processes": WorkerPool, "dataloader": LoaderPool}


def rollouts_here(
    source: TrajectorySource,
    *,
    policy: PolicyFunction,
    evaluator: Evaluator,
    replay: ReplayBuffer,
    first_step: int,
    teacher: PolicyFunction | None = None,
) -> Generator[Rollout]:
    """Yield the data of `first_step` and all later ones, each made on demand with the present weights."""
    for step in count(first_step):
        yield source.rollout(step, policy=policy, evaluator=evaluator, replay=replay, teacher=teacher)


def rollouts_of_workers(
    source: TrajectorySource,
    *,
    policy: PolicyOnDevice,
    evaluator: InlineEvaluator,
    replay: ReplayBuffer,
    first_step: int,
    num_workers: int,
    transport: Transport,
    config: WorkersConfig,
    teacher: PolicyOnDevice | None = None,
) -> Generator[Rollout]:
    """Yield the data of `first_step` and all later ones, step by step from one worker after the other.

    Raises:
        WorkerError: the user's own code raised in a worker; the cause carries the worker's traceback.
        UserError: workers die or keep silent, cannot be started that way, or the task cannot be pickled for them.
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
        "store": Served(evaluator.store),
    }
    work = _Work(source, evaluator.with_store(None), first_step)
    with (
        _failures_as_user_errors(num_workers, config),
        ProxyServer(objects, transport=transport, device=policy.device) as server,
        _pool(work, server, num_workers=num_workers, config=config) as pool,
    ):
        while True:
            yield pool.next()
            _publish(served)


def _publish(served: Mapping[str, ServedPolicy]) -> None:
    for policy in served.values():
        policy.publish()


def _pool(work: _Work, server: ProxyServer, *, num_workers: int, config: WorkersConfig) -> Pool:
    try:
        return POOLS[config.backend](
            work,
            server,
            num_workers=num_workers,
            start_method=config.start_method,
            deadline_s=config.deadline,
            max_restarts=config.max_restarts,
            seed=work.seed,
        )
    except MessageError:
        raise
    except ValueError as error:
        raise UserError(f"workers.start_method={config.start_method}: {error}") from None


@contextmanager
def _failures_as_user_errors(num_workers: int, config: WorkersConfig) -> Iterator[None]:
    """Put the failures of workers that are no exception of the user's code into one line with the options to turn."""
    options = "workers.deadline" if config.backend == "dataloader" else "workers.deadline, workers.max_restarts"
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, UserError):  # of an object that the main process serves, such as the store
            raise UserError(str(error.__cause__)) from error
        if error.__cause__ is not None:
            raise
        raise UserError(f"num_workers={num_workers}: {error} ({options})") from None
    except MessageError as error:
        raise UserError(f"num_workers={num_workers}: {error}") from error


class _Work:
    """Rollouts of every n-th step, made in a worker."""

    def __init__(self, source: TrajectorySource, evaluator: InlineEvaluator, first_step: int) -> None:
        self._source, self._evaluator, self._first_step = source, evaluator, first_step
        self.seed = source.seed

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[Rollout]:
        keep_freed_memory()
        policy: Any = endpoint.proxy("policy")
        teacher: Any = endpoint.proxy("teacher") if self._source.options.num_taught else None
        replay: Any = endpoint.proxy("replay")
        store: Any = endpoint.proxy("store")
        evaluator = self._evaluator.with_store(store)
        for turn in count(info.id + info.num_taken * info.num_workers, info.num_workers):
            step = self._first_step + turn
            seed_all(stream_seed(self._source.seed, step, GLOBAL_STREAM))
            # Several workers share the weights, or their calls could not be merged; one can have its own.
            publication = max(turn, 1) if info.num_workers == 1 else None
            for each in (policy,) if teacher is None else (policy, teacher):
                each.refresh(publication)
            yield self._source.rollout(step, policy=policy, evaluator=evaluator, replay=replay, teacher=teacher)
