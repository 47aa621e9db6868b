"""Classes and configs of a package that pip has installed, chosen by the short names of its entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gflownet import train
from gflownet.config import config_names, find_config, load_config
from gflownet.envs.config import ENVIRONMENTS
from gflownet.envs.operation_choices import OperationChoices
from gflownet.errors import UserError
from gflownet.evaluation.store.fingerprint import outside_classes
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs import ComputationGraph
from gflownet.graphs.elements import is_imported, names_classes
from gflownet.graphs.operation import OPERATIONS, operation, read_operation
from gflownet.objectives.config import OBJECTIVES
from gflownet.policy.config import POLICIES
from gflownet.run.extensions import validate
from gflownet.run.parser import help_text
from tests.installed_package import dist_info, install, write_package

NAMES = {
    TASKS: "outside_edges",
    ENVIRONMENTS: "outside_line",
    OBJECTIVES: "outside_balance",
    POLICIES: "outside_network",
    OPERATIONS: "outside_scale",
}
of_every_kind = pytest.mark.parametrize(
    ("point", "name"), NAMES.items(), ids=lambda each: str(getattr(each, "key", ""))
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return a folder into which pip has installed the package."""
    folder = tmp_path_factory.mktemp("package")
    return install(write_package(folder / "source"), folder / "site")


@pytest.fixture
def installed(site, monkeypatch) -> Iterator[Path]:
    """Put the package on the search path."""
    monkeypatch.syspath_prepend(site)
    yield site
    operation.cache_clear()
    for name in [name for name in sys.modules if name.startswith("outside_classes")]:
        del sys.modules[name]


@of_every_kind
def test_entry_point_is_found_without_import(installed, point, name):
    point.check_name(name)
    assert point.home(name).startswith("outside_classes")
    assert "outside_classes" not in sys.modules


@of_every_kind
def test_entry_point_loads_the_class(installed, point, name):
    loaded = point.load(name)
    module, _, class_name = point.home(name).partition(":")
    assert loaded is getattr(sys.modules[module], class_name)


def test_unknown_name_suggests_an_entry_point(installed):
    with pytest.raises(
        UserError, match=r"^task: expected one of .*, outside_edges or .*'outside_edge'; did you mean outside_edges\?"
    ):
        TASKS.check_name("outside_edge")


def test_entry_point_of_another_class_is_refused(tmp_path, monkeypatch, installed):
    dist_info(tmp_path, "wrong", "[gflownet.tasks]", "wrong = outside_classes:SmallNetwork", "odd = outside_classes")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"^task: expected a subclass of GFNTask, got 'wrong'; did you mean outside"):
        TASKS.load("wrong")
    with pytest.raises(UserError, match=r"^task: expected the entry point odd of the package wrong to be module:Class"):
        TASKS.check_name("odd")


def test_name_of_two_packages_is_refused(tmp_path, monkeypatch, installed):
    dist_info(tmp_path, "rival", "[gflownet.tasks]", "outside_edges = rival:Task")
    monkeypatch.syspath_prepend(tmp_path)
    expected = (
        "task: expected outside_classes:EdgesTask or rival:Task, got 'outside_edges', "
        "which the packages outside-classes and rival both define"
    )
    with pytest.raises(UserError, match=f"^{expected}$"):
        validate(load_config(None, ["task=outside_edges"]))
    TASKS.check_name("rival:Task")


def test_built_in_class_hides_an_entry_point(tmp_path, monkeypatch, caplog):
    dist_info(tmp_path, "rival", "[gflownet.tasks]", "digits = rival:Digits")
    monkeypatch.syspath_prepend(tmp_path)
    assert TASKS.home("digits") == "gflownet.tasks.digits:DigitsTask"
    validate(load_config("digits"))
    assert caplog.messages == ["task=digits: the built-in class is used; rival:Digits is that of the package rival"]
    assert "task=digits (package rival; the built-in class has this name: use rival:Digits)" in " ".join(
        help_text().split()
    )


def test_config_of_package_is_found_by_name(installed):
    assert "outside_edges" in config_names()
    assert find_config("outside_edges") == installed / "outside_classes" / "configs" / "outside_edges.yaml"
    assert "outside_classes" not in sys.modules


def test_help_lists_entry_points_without_import(installed):
    text = " ".join(help_text().split())
    for point, name in NAMES.items():
        assert f"{point.key}{' ' if point is OPERATIONS else '='}{name} (package outside-classes)" in text
    assert "outside_classes" not in sys.modules


def test_options_of_entry_point_are_listed_and_checked(installed, capsys):
    assert train.main(["task=outside_edges", "--help"]) == 0
    assert "task_options.target" in capsys.readouterr().out
    assert train.main(["task=outside_edges", "task_options.target=12"]) == 2
    assert capsys.readouterr().err == "error: task_options.target: expected a number in [1, 9], got 12\n"


def test_operation_of_package_has_one_identity(installed):
    """Graphs write module:Class; a graph with the short name is equal and is not imported for that."""
    short, full = (graph_of(name) for name in ("outside_scale", "outside_classes.scale:Scale"))
    assert short.canonical_hash() == full.canonical_hash()
    assert names_classes(short, is_imported)
    assert "outside_classes" not in sys.modules
    assert read_operation({"name": "outside_scale"}).name == "outside_classes.scale:Scale"
    choices = OperationChoices(["outside_scale"], choices={"outside_scale": {}}, activations=["relu"])
    assert choices.operations[0].name == "outside_classes.scale:Scale"


def test_operation_of_package_counts_in_the_fingerprint(installed):
    config: Any = load_config(None, ["env.operation_graph.operations=[linear,outside_scale]"])
    assert [each.__name__ for each in outside_classes(config.env)] == ["Scale"]


def graph_of(name: str) -> ComputationGraph:
    return ComputationGraph.from_dict(
        {
            "nodes": [
                {"id": 0, "node_type": "input", "shape": [4]},
                {"id": 1, "node_type": "hidden", "operation": {"name": name}},
                {"id": 2, "node_type": "output", "operation": {"name": "linear", "features": 3}},
            ],
            "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}],
        }
    )


def test_run_with_classes_of_package(installed, tmp_path):
    """The config of the task, its environment, objective and policy by their short names."""
    options = ["algo.method=outside_balance", "model.name=outside_network", f"log_dir={tmp_path / 'run'}"]
    assert train.main(["task=outside_edges", *options]) == 0
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert "task: outside_edges" in stored
    assert "max_hidden_nodes: 1" in stored
