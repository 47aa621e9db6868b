"""Fingerprint of a task: which edits score again."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.store import fingerprint
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.fingerprint import (
    context_of,
    data_digest,
    modules_of,
    report_earlier_versions,
    source_digest,
)
from gflownet.evaluation.tasks import TASKS
from tests.evaluation.candidates import StubTask, config_with
from tests.evaluation.stub_rows import record

TASK = """
from gflownet.evaluation.candidates.supervised import SupervisedTask
from gflownet.evaluation.task import GFNTask
from {package} import scores
import json, torch

class Mine(GFNTask):
    \"\"\"Scores.\"\"\"

    def evaluate(self, graph, *, seed):
        from {package}.inner import late  # used here only
        return scores.score(graph)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], type]:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = f"project_{tmp_path.name}"
    files = {"task.py": TASK.format(package=package), "scores.py": "def score(graph):\n    return 0.5\n"}
    files |= {"__init__.py": "", "inner/__init__.py": "", "inner/late.py": "X = 1\n", "unused.py": "Y = 1\n"}

    def write(changes: dict[str, str]) -> type:
        for name, text in (files | changes).items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("PACKAGE", package))
        for name in [name for name in sys.modules if name.startswith(package)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module(f"{package}.task").Mine

    return write


def test_modules_are_those_of_the_project(project: Callable[[dict[str, str]], type]) -> None:
    names = [name.partition(".")[2] for name in modules_of(project({}))]
    assert sorted(names) == ["inner.late", "scores", "task"]


@pytest.mark.parametrize(
    ("changes", "is_new"),
    [
        ({"scores.py": "def score(graph):\n    return 0.6\n"}, True),
        ({"inner/late.py": "X = 2\n"}, True),
        ({"scores.py": "from . import unused\ndef score(graph):\n    return 0.5\n"}, True),
        ({"unused.py": "Y = 2\n"}, False),
        ({"scores.py": '"""Scores."""\n\ndef score( graph ):  # half\n    return 0.5\n'}, False),
    ],
)
def test_edit_changes_the_source_digest(
    project: Callable[[dict[str, str]], type], changes: dict[str, str], is_new: bool
) -> None:
    before = source_digest(project({}))
    assert (source_digest(project(changes)) != before) is is_new
    assert source_digest(project({})) == before


def test_known_source_is_not_parsed_again(
    project: Callable[[dict[str, str]], type], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = project({"unused.py": f"Z = '{os.urandom(8).hex()}'\n"})
    digest = source_digest(task)
    fingerprint._code_of.cache_clear()  # as in another process
    monkeypatch.setattr(fingerprint.ast, "parse", None)
    assert source_digest(task) == digest
    with pytest.raises(TypeError):
        source_digest(project({"scores.py": "def score(graph):\n    return 0.75\n"}))


def test_digest_of_the_main_script_is_the_same_in_children(
    project: Callable[[dict[str, str]], type], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = project({})
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules[task.__module__])
    task.__module__ = "__main__"
    digest = source_digest(task)
    task.__module__ = "__mp_main__"
    assert source_digest(task) == digest


def test_syntax_error_names_file_and_line(project: Callable[[dict[str, str]], type]) -> None:
    task = project({"inner/late.py": "X = 1\n\ndef late(:\n"})
    with pytest.raises(UserError, match=r"^/.*/inner/late\.py:3: expected Python code, got a syntax error \(.*\)$"):
        source_digest(task)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("digits", marks=pytest.mark.slow),
        "tensor_program",
        pytest.param("language", marks=pytest.mark.slow),
    ],
)
def test_built_in_tasks_depend_on_their_modules(name: str) -> None:
    modules = modules_of(TASKS.load(name))
    assert f"gflownet.tasks.{name}" in modules
    assert not {"gflownet.run.trainer", "gflownet.config", "torch", "numpy"} & modules.keys()
    if name == "digits":
        assert {"gflownet.evaluation.candidates.supervised", "gflownet.evaluation.candidates.trainer"} <= modules.keys()


def test_data_digest_depends_on_values_type_and_shape() -> None:
    values = [torch.arange(6.0), torch.arange(6.0).view(2, 3), torch.arange(6), b"ab", "cd", torch.empty(0)]
    digests = {data_digest([value]) for value in values} | {data_digest(values), data_digest(values[::-1])}
    assert len(digests) == len(values) + 2
    assert data_digest(values) == data_digest([value.clone() if torch.is_tensor(value) else value for value in values])


def test_data_of_built_in_tasks_changes_the_fingerprint() -> None:
    tasks = [TASKS.load("digits")(load_config("digits", [f"evaluation.split_seed={seed}"])) for seed in (0, 0, 1)]
    first, again, other = [task.fingerprint() for task in tasks]
    assert first == again != other


def test_edited_operation_changes_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    contexts = []
    places = ("operations=[linear,edited_blocks:Block]", "activations=[edited_blocks:Block]")
    for number, size in enumerate((3, 3, 4)):
        (tmp_path / "edited_blocks.py").write_text(f"class Block:\n    size = {size}  # version {number}\n")
        os.utime(tmp_path / "edited_blocks.py", (number, number))
        sys.modules.pop("edited_blocks", None)
        importlib.invalidate_caches()
        configs = [config_with(f"env.operation_graph.{place}") for place in places]
        contexts.append([context_of(StubTask({}, config)) for config in configs])
    for first, same, edited in zip(*contexts, strict=True):
        assert first == same != edited


def test_evaluations_of_an_edited_task_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class EditedData(StubTask):
        def fingerprint(self) -> str:
            return "new data"

    path = tmp_path / "evaluations.sqlite"
    with EvaluationStore(path, context=context_of(StubTask({}))) as store:
        store.add([record("a"), record("b")])
        report_earlier_versions(store)
    with EvaluationStore(path, context=context_of(StubTask({}, config_with("seed=1")))) as store:
        report_earlier_versions(store)
    assert caplog.messages == []
    with EvaluationStore(path, context=context_of(EditedData({}))) as store:
        assert store.top(1) == []
        report_earlier_versions(store)
    (line,) = caplog.messages
    assert line.endswith("2 evaluations of an earlier version of the task are not used (its source and data differ)")
