"""Contract of every built-in task with the trainer and the evaluator."""

from typing import Any

import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.execution import run_job
from gflownet.evaluation.job import Job
from gflownet.evaluation.tasks import TASKS
from gflownet.testing import TaskContract
from tests.benchmark_tables import table_options
from tests.device_with_values import device_with_values
from tests.tiny_run import TINY_TASKS

# Names of configs where they differ from the task's.
CONFIGS = {"recorded": "recorded_digits"}
REFERENCES = "check_references_have_one_score_per_seed"
FAST_REFERENCES = ("digits", "cells", "tensor_mixing", "recorded")  # the others train larger networks


@pytest.fixture(scope="module", params=TASKS)
def contract(request, tmp_path_factory) -> TaskContract:
    name: str = request.param
    config_name = CONFIGS.get(name, name)
    options = ["evaluation.num_epochs=1", *table_options(name, tmp_path_factory.mktemp("tables"))]
    config = load_config(config_name, [*options, *TINY_TASKS.get(config_name, ())])
    return TaskContract(TASKS.load(name)(with_task_options(config, TASKS.load(name).Config)))


@pytest.mark.parametrize("check", [name for name in TaskContract.names() if name != REFERENCES])
def test_task(contract, check):
    contract.run(check)


def test_scores_on_a_device_equal_those_of_the_cpu(contract):
    task = contract.task
    training: dict[str, Any] = {"fidelity": task.max_fidelity, "saves_training": True} if task.max_fidelity else {}
    job = Job((contract.graph,), (7,), tests=True, **training)
    (here,) = run_job(task, job)
    with device_with_values() as device:
        task.to_device(device)
        try:
            (there,) = run_job(task, job)
        finally:
            task.to_device(torch.device("cpu"))
    assert (here.status, here.error, here.test_error) == (there.status, there.error, there.test_error)
    results = [
        [each.score.value, each.test or 0.0, *each.curve, *each.score.metrics.values()] for each in (here, there)
    ]
    assert results[1] == pytest.approx(results[0], rel=1e-4)  # recurrent layers have other kernels
    assert run_job(task, job)[0].score == here.score


@pytest.mark.parametrize(
    "contract",
    [name if name in FAST_REFERENCES else pytest.param(name, marks=pytest.mark.slow) for name in TASKS],
    indirect=True,
)
def test_references_of_task(contract):
    contract.run(REFERENCES)
