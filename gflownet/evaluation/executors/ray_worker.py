"""Evaluation of jobs in the worker processes of Ray, each by a pool of one process."""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import describe
from gflownet.evaluation.executors.devices import DEVICES, Slot, slots_of
from gflownet.evaluation.executors.machine import memory_per_process, num_cores
from gflownet.evaluation.executors.pool import PoolExecutor
from gflownet.evaluation.job import Outcome

_GIGABYTE = 10**9


@dataclass(frozen=True)
class Evaluated:
    """The outcomes of a job, as in a `Handle`."""

    outcomes: tuple[Outcome, ...]
    num_finished: int
    remark: str = ""  # line for the user


@dataclass(frozen=True)
class Failed:
    """The text of the error of a job without outcomes."""

    error: str
    is_lost: bool  # a node, an owner or an object of the cluster; else the user's code is missing or broken there


# The pool of the last task on the last devices, the id of that task, and the devices.
_pool: tuple[str, str, PoolExecutor] | None = None


def evaluate_job(
    task: Sequence[Any],
    task_id: str,
    job: bytes,
    *,
    deadline: float | None,
    memory_limit: float | None,
    paths: Sequence[str],
    num_gpus: float = 0.0,
) -> Evaluated | Failed:
    """Return the outcomes of a job. Runs as a Ray task.

    The pool isolates candidates from Ray's process, which takes seconds to start, and keeps deadline and memory limit.

    `task` is the reference to the `PickledTask`, in a list so that Ray does not fetch it for every job; `task_id`
    changes with it. The deadline is in seconds from the start of the job, the memory limit in gigabytes; None: an equal
    share of this machine's. `paths` are folders of the main process's modules. A candidate trains on the first of its
    GPUs.
    """
    try:
        pool = _pool_of(task[0], task_id, memory_limit=memory_limit, paths=paths, num_gpus=num_gpus)
        handle = pool.submit(pickle.loads(job), deadline=deadline)
        pool.wait([handle], timeout=None)
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else describe(error)
        return Failed(f"{text} (on {platform.node()})", is_lost=type(error).__module__ == "ray.exceptions")
    assert handle.outcomes is not None
    return Evaluated(handle.outcomes, handle.num_finished, _remark(num_gpus))


def _pool_of(
    reference: Any, task_id: str, *, memory_limit: float | None, paths: Sequence[str], num_gpus: float = 0.0
) -> PoolExecutor:
    """Return the pool of a task; it starts with its first job, and again after Ray assigns other GPUs."""
    global _pool
    import ray

    devices = str(ray.get_runtime_context().get_accelerator_ids())
    if _pool is None or _pool[:2] != (task_id, devices):
        if _pool is not None:
            _pool[2].close()
        sys.path.extend(path for path in paths if path not in sys.path)
        if memory_limit is None:  # the other processes of this machine get a share too
            memory_limit = memory_per_process(None, capacity=num_cores()) / _GIGABYTE
        config = EvaluationConfig(capacity=1, memory_limit=memory_limit)
        _pool = task_id, devices, PoolExecutor(ray.get(reference), config, slots=_slots(num_gpus))
    return _pool[2]


def _remark(num_gpus: float) -> str:
    """Return a line about a GPU that Ray has assigned and torch does not see; empty: none."""
    if not num_gpus or DEVICES.memories():
        return ""
    cause = DEVICES.cause() or "no device answers"
    return f"evaluation.ray.num_gpus: no GPU on {platform.node()}, its candidates train on cores: {cause}"


def _slots(num_gpus: float) -> tuple[Slot, ...]:
    """Return the slot on the first GPU that Ray has assigned; none where torch sees no GPU: a core."""
    if not num_gpus or not DEVICES.memories():
        return ()
    config = EvaluationConfig(device="cuda:0", slots_per_device=max(1, int(1 / num_gpus)), capacity=1)
    return slots_of(config, DEVICES)
