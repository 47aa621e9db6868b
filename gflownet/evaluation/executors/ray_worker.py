"""Evaluation of jobs in the worker processes of Ray."""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gflownet.evaluation.execution import describe, run_job
from gflownet.evaluation.job import Outcome
from gflownet.evaluation.task import GFNTask


@dataclass(frozen=True)
class Started:
    """The first message of a job: its evaluation begins."""

    host: str
    pid: int


@dataclass(frozen=True)
class Refused:
    """The message of a job that this worker cannot evaluate: the user's code is missing or broken here."""

    error: str


# The last task, and the id of its bytes.
_task: tuple[str, GFNTask] | None = None


def evaluate_job(
    task: list[Any], task_id: str, job: bytes, *, paths: Sequence[str]
) -> Iterator[Started | Refused | tuple[Outcome, ...]]:
    """Yield a `Started` when the task is loaded, then the outcomes of a job. Runs as a Ray task.

    Args:
        task: reference to the pickled task, in a list so that Ray does not fetch it for every job.
        task_id: changes with the task.
        job: pickled.
        paths: folders of the main process's modules.
    """
    try:
        loaded = _loaded_task(task[0], task_id, paths)
        unpickled = pickle.loads(job)
    except Exception as error:
        yield Refused(f"{describe(error)} on {platform.node()}")
        return
    yield Started(platform.node(), os.getpid())
    yield tuple(run_job(loaded, unpickled))


def _loaded_task(reference: Any, task_id: str, paths: Sequence[str]) -> GFNTask:
    global _task
    if _task is None or _task[0] != task_id:
        import ray

        torch.set_num_threads(1)
        sys.path.extend(path for path in paths if path not in sys.path)
        _task = task_id, pickle.loads(ray.get(reference))
    return _task[1]
