"""Edits to a task file during a run: workers that start later refuse the new code."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.executors.pool import PickledTask, PoolExecutor
from gflownet.evaluation.executors.sources import SourceFile, TaskSources, digest_of
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.task import GFNTask
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


def status_of(pool: PoolExecutor, key: str) -> EvaluationStatus:
    handle = pool.submit(Job((StubCandidate(key),), (1,)), deadline=60)
    assert pool.wait([handle], timeout=60)
    assert handle.outcomes is not None
    return handle.outcomes[0].status


def test_worker_after_a_crash_refuses_edited_code(path, task):
    with PoolExecutor(task, CONFIG.evaluation) as pool:
        assert status_of(pool, "good") is EvaluationStatus.OK
        path.write_text(COMMENT)
        assert status_of(pool, "exit") is EvaluationStatus.CRASHED
        assert status_of(pool, "good") is EvaluationStatus.OK
        path.write_text(EDITED)
        assert status_of(pool, "good") is EvaluationStatus.OK  # by the worker that loaded the first version
        assert status_of(pool, "exit") is EvaluationStatus.CRASHED
        for source in (EDITED, HALF):
            path.write_text(source)
            with pytest.raises(UserError, match=CHANGED):
                status_of(pool, "good")
        path.unlink()
        with pytest.raises(UserError, match=CHANGED):
            status_of(pool, "good")
        path.write_text(SOURCE)
        assert status_of(pool, "good") is EvaluationStatus.OK


def test_task_pickled_before_an_edit_is_refused(path, task):
    """Ray sends the task once; a machine that joins later loads it later."""
    pickled = PickledTask.of(task)
    path.write_text(EDITED)
    del sys.modules[MODULE]
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=CHANGED):
        pickled.sources.check(type(pickle.loads(pickled.content)), loaded={})


def test_modules_of_the_fork_server_are_compared_as_loaded(path, task):
    sources = TaskSources.of(type(task))
    loaded = {MODULE: digest_of(path)}
    assert [file.module for file in sources.files if file.path == str(path)] == [MODULE]
    path.write_text(EDITED)
    sources.check(type(task), loaded=loaded)
    with pytest.raises(UserError, match=CHANGED):
        sources.check(type(task), loaded={})
    path.write_text(SOURCE)
    sources.check(type(task), loaded={})


def test_incomplete_source_file_raises(path, task):
    path.write_text(HALF)
    with pytest.raises(UserError, match=r"expected Python code, got a syntax error"):
        TaskSources.of(type(task))


def test_folder_of_another_machine_is_no_edit(tmp_path, task):
    elsewhere = SourceFile("module_of_a_machine", str(tmp_path / "missing" / "module.py"), "0")
    TaskSources("EditedTask", "0", (elsewhere,)).check(None, loaded={})
