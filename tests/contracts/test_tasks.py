"""Contract of every built-in task with the trainer and the evaluator."""

from typing import Any, cast

import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.execution import run_job
from gflownet.evaluation.job import Job
from gflownet.evaluation.task import Score
from gflownet.evaluation.tasks import TASKS
from gflownet.testing import TaskContract
from tests.benchmark_tables import table_options
from tests.device_with_values import device_with_values
from tests.fast_cases import slow_except
from tests.tiny_run import TINY_TASKS

# Names of configs where they differ from the task's.
CONFIGS = {"recorded": "recorded_digits"}
REFERENCES = "check_references_have_one_score_per_seed"
FAST_REFERENCES = ("digits", "recorded")  # the others train larger networks


# Language models, networks of larger data and of a benchmark: tests/tasks has one training of each.
SLOW = ("language", "mnist1d", "nas_bench_201_train", "cells")


@pytest.fixture(scope="module", params=slow_except(set(TASKS) - set(SLOW), TASKS))
def contract(request, tmp_path_factory) -> TaskContract:
    name: str = request.param
    config_name = CONFIGS.get(name, name)
    options = ["evaluation.num_epochs=1", *table_options(name, tmp_path_factory.mktemp("tables"))]
    config = load_config(config_name, [*options, *TINY_TASKS.get(config_name, ())])
    return TaskContract(TASKS.load(name)(with_task_options(config, TASKS.load(name).Config)))


@pytest.mark.parametrize("check", [name for name in TaskContract.names() if name != REFERENCES])
def test_task(contract, check):
    contract.run(check)


@pytest.mark.parametrize("num", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_scores_on_a_device_equal_those_of_the_cpu(contract, num):
    task = contract.task
    training: dict[str, Any] = {"fidelity": task.max_fidelity, "saves_training": True} if task.max_fidelity else {}
    jobs = [Job((TaskContract(task, seed=seed).graph,), (7,), tests=True, **training) for seed in range(1, 1 + num)]
    here = [run_job(task, job)[0] for job in jobs]
    with device_with_values() as device:
        task.to_device(device)
        try:
            there = [run_job(task, job)[0] for job in jobs]
        finally:
            task.to_device(torch.device("cpu"))
    for one, other in zip(here, there, strict=True):
        assert (one.status, one.error, one.test_error) == (other.status, other.error, other.test_error)
        assert (other.test, other.curve) == (pytest.approx(one.test, abs=0.01), pytest.approx(one.curve, abs=0.01))
        score, same = cast(Score, one.score), cast(Score, other.score)
        assert same.metrics == pytest.approx(score.metrics, rel=1e-4)  # recurrent layers have other kernels
    assert run_job(task, jobs[-1])[0].score == here[-1].score


@pytest.mark.parametrize("contract", slow_except(FAST_REFERENCES, TASKS), indirect=True)
def test_references_of_task(contract):
    contract.run(REFERENCES)
