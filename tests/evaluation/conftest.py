"""The process pool that the tests of its processes share; a pool takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.evaluation.executors.pool import PoolExecutor
from tests.evaluation.candidates import config_with
from tests.evaluation.poison_tasks import PoisonTask

OPTIONS = ("evaluation.capacity=2", "evaluation.deadline=1.5", "evaluation.memory_limit=4.0")


@pytest.fixture(scope="session")
def evaluation_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with the key of every candidate whose evaluation began."""
    return tmp_path_factory.mktemp("poison") / "evaluations"


@pytest.fixture(scope="session")
def poison_pool(evaluation_log: Path) -> Iterator[PoolExecutor]:
    """Return a pool for `PoisonTask`."""
    pool = PoolExecutor(PoisonTask(evaluation_log), config_with(*OPTIONS).evaluation)
    yield pool
    pool.close()
