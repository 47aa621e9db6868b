"""The executor that a config chooses."""

from __future__ import annotations

from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.devices import DEVICES, slots_of
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.executors.machine import num_cores
from gflownet.evaluation.task import GFNTask


def chosen_executor(config: EvaluationConfig, task: GFNTask) -> str:
    """Return inline, pool or ray."""
    if config.executor != "auto":
        return config.executor
    if config.device not in ("auto", "cpu"):
        return "pool"
    if task.is_cheap:
        return "inline"
    has_places = num_cores() > 1 or slots_of(config, DEVICES, task=task)[0].is_accelerator
    return "pool" if has_places else "inline"


def places(task: GFNTask, config: EvaluationConfig) -> int:
    """Return the number of jobs that the executor of a config runs at the same time; of a cluster, at this time.

    Raises:
        UserError: evaluation.device names a device that is not there, or no Ray cluster answers.
    """
    name = chosen_executor(config, task)
    if name == "ray":
        with build_executor(task, config) as executor:
            return executor.capacity
    return len(slots_of(config, DEVICES, task=task)) if name == "pool" else 1


def build_executor(task: GFNTask, config: EvaluationConfig) -> Executor:
    """Return the executor of a config; its processes start with the first job.

    Raises:
        UserError: the executor needs a package that is not installed, or the task cannot be sent to a process.
    """
    name = chosen_executor(config, task)
    if name == "ray":
        from gflownet.evaluation.executors.ray_executor import RayExecutor  # Ray is optional

        return RayExecutor(task, config)
    if name == "pool":
        from gflownet.evaluation.executors.pool import PoolExecutor

        return PoolExecutor(task, config)
    return InlineExecutor(task)
