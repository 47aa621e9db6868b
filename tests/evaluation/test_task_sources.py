"""The code of a task in its workers: that of the start of the run; an owner that starts later refuses edited code."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.executors.devices import CORE, DEVICES
from gflownet.evaluation.executors.owner import _loaded
from gflownet.evaluation.executors.pool import PickledTask, PoolExecutor
from gflownet.evaluation.executors.worker import PoolSettings
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with

MODULE = "task_edited_during_a_run"
SOURCE = """
import os
from gflownet.evaluation.task import GFNTask, Score

class EditedTask(GFNTask):
    input_sizes = output_sizes = (1,)

    def evaluate(self, graph, *, seed):
        if graph.key == "exit":
            os._exit(3)
        return Score(0.25)
"""
EDITED = SOURCE.replace("0.25", "0.5000")
COMMENT = SOURCE.replace("0.25)", "0.25)  # a quarter")
HALF = SOURCE[:-5]
CHANGED = r"^the code of task EditedTask changed during the run; resume=true scores with the new code$"
CONFIG = config_with("evaluation.capacity=1")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of a task that is imported from a folder of sys.path."""
    file = tmp_path / f"{MODULE}.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop(MODULE, None)


@pytest.fixture
def task(path: Path) -> GFNTask:
    return importlib.import_module(MODULE).EditedTask(CONFIG)


def outcome_of(pool: PoolExecutor, key: str) -> Outcome:
    handle = pool.submit(Job((StubCandidate(key),), (1,)), deadline=60)
    assert pool.wait([handle], timeout=60)
    assert handle.outcomes is not None
    return handle.outcomes[0]


def load(task: PickledTask) -> GFNTask:
    return _loaded(PoolSettings(task.content, task.source, 10**9, (CORE,), DEVICES))


@pytest.mark.slow
def test_workers_have_the_code_of_the_start(path, task):
    with PoolExecutor(task, CONFIG.evaluation) as pool:
        path.write_text(COMMENT)
        assert outcome_of(pool, "good").score == Score(0.25)
        path.write_text(EDITED)
        assert outcome_of(pool, "exit").status is EvaluationStatus.CRASHED
        assert outcome_of(pool, "good").score == Score(0.25)


@pytest.mark.parametrize(("source", "reason"), [(EDITED, CHANGED), (HALF, "got a syntax error")])
def test_code_edited_before_the_load_is_refused(path, task, source, reason):
    """Ray sends the task once; a machine that joins later loads it later."""
    pickled = PickledTask.of(task)
    path.write_text(source)
    with pytest.raises(UserError, match=reason):
        load(pickled)


def test_threads_of_imported_modules_are_refused(task):
    """Workers are forks of the process that has imported the modules: its threads would be missing there."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, name="of a module")
    thread.start()
    try:
        with pytest.raises(UserError, match=r"^task EditedTask: expected imports and a warm_up .*, got of a m"):
            load(PickledTask.of(task))
    finally:
        is_over.set()
        thread.join()


def test_incomplete_source_file_raises(path, task):
    path.write_text(HALF)
    with pytest.raises(UserError, match=r"expected Python code, got a syntax error"):
        PickledTask.of(task)
