"""Tasks by name: built-in ones and a user's own classes from outside the package."""

import re
import sys

import pytest

from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.run.extensions import load_extensions
from tests.evaluation.candidates import StubTask

KNOWN = ", ".join(TASKS)


def test_own_task_loads():
    assert TASKS.load("tests.evaluation.candidates:StubTask") is StubTask


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("os.system", f"expected one of {KNOWN} or module:Class, got 'os.system'; did you mean "),
        ("digit", f"expected one of {KNOWN} or module:Class, got 'digit'; did you mean digits?"),
        ("", f"expected one of {KNOWN} or module:Class, got ''; did you mean "),
        ("os:system", "expected a subclass of GFNTask, got 'os:system'"),
        ("collections:OrderedDict", "expected a subclass of GFNTask"),
        ("tests.evaluation.candidates:Missing", "expected a subclass of GFNTask"),
        ("no_such_module:Task", "expected an importable module, got 'no_such_module'"),
    ],
)
def test_load_refuses_other_names(name, complaint):
    with pytest.raises(ValueError, match=r"^task: ") as caught:
        TASKS.load(name)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_name_imports_nothing(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    TASKS.check_name("no_such_module:Task")


OUTSIDE = """
from dataclasses import dataclass

from gflownet import GFNTask, Score


@dataclass
class EdgesConfig:
    target: int = 4


class EdgesTask(GFNTask):
    Config = EdgesConfig
    input_sizes = (4,)
    output_sizes = (2,)

    @classmethod
    def check_config(cls, config):
        if config.task_options.target > config.env.max_edges:
            raise ValueError(f"task_options.target: expected <= env.max_edges, got {config.task_options.target}")

    def evaluate(self, graph, *, seed):
        return Score(1 / (1 + abs(len(graph.edges) - self.config.task_options.target)))


class NoEvaluate(GFNTask):
    pass


class WrongConfig(EdgesTask):
    Config = dict
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "outside_tasks.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "outside_tasks"
    sys.modules.pop("outside_tasks", None)


def test_outside_task_gets_its_options(module):
    config, extensions = load_extensions(load_config(None, [f"task={module}:EdgesTask", "task_options.target=3"]))
    assert extensions.task(config).config.task_options.target == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task={module}:NoEvaluate"], "task: expected outside_tasks:NoEvaluate to define evaluate, got an abstract"),
        (["task={module}:WrongConfig"], "task: expected outside_tasks:WrongConfig.Config to be a dataclass, got"),
        (["task={module}:EdgesTask", "task_options.tarrget=3"], "did you mean task_options.target?"),
        (["task={module}:EdgesTask", "task_options.target=x"], "task_options.target: expected an integer, got 'x'"),
        (["task={module}:EdgesTask", "task_options.target=99"], "target: expected <= env.max_edges, got 99"),
    ],
)
def test_misuse_of_an_outside_task_is_a_user_error(module, options, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_extensions(load_config(None, [option.format(module=module) for option in options]))
    assert "\n" not in str(caught.value)
