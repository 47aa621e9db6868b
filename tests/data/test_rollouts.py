"""User errors of failed workers."""

import pytest

from gflownet.data.config import WorkersConfig
from gflownet.data.rollouts import _failures_as_user_errors
from gflownet.errors import UserError
from gflownet.workers.pool import WorkerError


def fail(cause: BaseException | None) -> None:
    with _failures_as_user_errors(2, WorkersConfig()):
        raise WorkerError("worker 0 failed") from cause


def test_worker_failure_with_user_error_cause():
    """A full disk under the store is one line, as without workers."""
    with pytest.raises(UserError, match=r"^store: cannot be written$"):
        fail(UserError("store: cannot be written"))


def test_worker_failure_with_other_or_no_cause():
    with pytest.raises(WorkerError):
        fail(RuntimeError("the user's own"))
    with pytest.raises(UserError, match=r"^num_workers=2: worker 0 failed \(workers.deadline, workers.max_restarts\)$"):
        fail(None)
