"""Contract of every built-in task with the trainer and the evaluator."""

import pytest

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.tasks import TASKS
from gflownet.testing import TaskContract
from tests.benchmark_tables import table_options
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


@pytest.mark.parametrize(
    "contract",
    [name if name in FAST_REFERENCES else pytest.param(name, marks=pytest.mark.slow) for name in TASKS],
    indirect=True,
)
def test_references_of_task(contract):
    contract.run(REFERENCES)
