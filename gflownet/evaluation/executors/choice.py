"""The executor that a config chooses."""

from __future__ import annotations

import os

from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.task import GFNTask


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen_executor(config: EvaluationConfig, task: GFNTask) -> str:
    """Return inline, pool or ray."""
    if config.executor != "auto":
        return config.executor
    return "inline" if task.is_cheap or num_cores() < 2 else "pool"


def build_executor(task: GFNTask, config: EvaluationConfig) -> Executor:
    """Return the executor of a config; its processes start with the first job.

    Raises:
        UserError: the executor needs a package that is not installed, or the task cannot be sent to a process.
    """
    name = chosen_executor(config, task)
    if name == "inline":
        return InlineExecutor(task)
    if name == "ray":
        from gflownet.evaluation.executors.ray_executor import RayExecutor  # Ray is optional

        return RayExecutor(task, config, num_cpus=config.capacity or num_cores())
    from gflownet.evaluation.executors.inline import InlineExecutor as Fallback  # TEMPORARY until pool and ray land

    return Fallback(task)
