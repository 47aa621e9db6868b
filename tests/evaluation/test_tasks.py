"""The door for tasks: built-in names and the user's own classes, and nothing else."""

import pytest

from gflownet.evaluation.task import GFNTask
from gflownet.evaluation.tasks import TASKS, load_task_class
from tests.evaluation.candidates import StubTask

KNOWN = ", ".join(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_built_in_tasks_load(name):
    assert issubclass(load_task_class(name), GFNTask)


def test_own_task_loads():
    assert load_task_class("tests.evaluation.candidates:StubTask") is StubTask


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("os.system", f"expected one of {KNOWN} or module:Class, got 'os.system'; did you mean "),
        ("digit", f"expected one of {KNOWN} or module:Class, got 'digit'; did you mean digits?"),
        ("", f"expected one of {KNOWN} or module:Class, got ''; did you mean "),
        ("os:system", "expected a subclass of GFNTask, got 'os:system'; did you mean "),
        ("collections:OrderedDict", "expected a subclass of GFNTask"),
        ("tests.evaluation.candidates:Missing", "expected a subclass of GFNTask"),
        ("no_such_module:Task", "expected an importable module, got 'no_such_module'"),
    ],
)
def test_everything_else_is_refused_in_one_line(name, complaint):
    with pytest.raises(ValueError, match=r"^task: ") as caught:
        load_task_class(name)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_is_checked_without_importing(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    TASKS.check_name("no_such_module:Task")
