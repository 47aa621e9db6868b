"""Metrics of the executor: busy share over a window, counts, values of this process."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.run.progress import COUNTS, ExecutorStatus
from tests.evaluation.candidates import StubTask


def dispatcher_with(executor: Any) -> Any:
    return SimpleNamespace(
        executor=executor, counts=Counter(num_timeout=2), num_in_flight=3, mean_seconds=0.0, evaluation_seconds=0.0
    )


def test_status_of_inline_executor_has_no_busy_share():
    metrics = ExecutorStatus(cast(Any, dispatcher_with(InlineExecutor(StubTask({}))))).metrics()
    assert metrics == {"in_flight": 3, **dict.fromkeys(COUNTS, 0), "num_timeout": 2}


def test_busy_share_covers_the_last_evaluations():
    now = [0.0]
    dispatcher = dispatcher_with(SimpleNamespace(capacity=2))
    status = ExecutorStatus(dispatcher, now=lambda: now[0])
    assert status.metrics()["busy_share"] == 0
    for now[0] in range(1, 41):
        dispatcher.evaluation_seconds += 1.5  # of 2 per second
        share = status.metrics()["busy_share"]
    assert share == pytest.approx(0.75)
    for now[0] in range(41, 56):
        share = status.metrics()["busy_share"]
    assert share == pytest.approx(0.75 / 2), "idle in the second half of 30 seconds"
    for now[0] in range(56, 90):
        share = status.metrics()["busy_share"]
    assert share == 0
    dispatcher.evaluation_seconds += 1e6  # a long evaluation, reported at its end
    assert status.metrics()["busy_share"] == 1
