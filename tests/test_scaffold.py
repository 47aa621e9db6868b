"""gflownet new: packages of every kind, which install, pass their own tests and run."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from gflownet import train
from gflownet.config import OPTIONS, load_config
from gflownet.errors import UserError
from gflownet.scaffold import write_package
from gflownet.scaffold.__main__ import KINDS, main
from tests.installed_package import dist_info, install

SHORT = (
    "num_training_steps=2",
    "budget.evaluations=4",
    "search.train_sampler=false",
    "final.top=0",
    "wandb.mode=disabled",
    "report.every=null",
    "certify=false",
)
of_every_kind = pytest.mark.parametrize("kind", KINDS)


@of_every_kind
def test_package_has_valid_files(kind, tmp_path):
    written = write_package(kind, "two_words", parent=tmp_path)
    folder = tmp_path / "two_words"
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(written)
    assert not any("$" in path.read_text() for path in written)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    homes = project["project"]["entry-points"][KINDS[kind].point.group]
    module, _, class_name = homes["two_words"].partition(":")
    assert f"class {class_name}(" in (folder / f"{module.replace('.', '/')}.py").read_text()
    tree = yaml.safe_load((folder / "two_words" / "configs" / "two_words.yaml").read_text())
    load_config(str(folder / "two_words" / "configs" / "two_words.yaml"))
    assert "two_words" in str(tree)
    assert set(tree) <= {key.partition(".")[0] for key in OPTIONS}
    style = ["--isolated", "--line-length", "120"]
    for words in (["check", "--select", "E,F,I,B,UP", *style], ["format", "--check", *style]):
        command = [sys.executable, "-m", "ruff", *words, "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_package_of_a_task_passes_its_test_and_runs(tmp_path, monkeypatch):
    """In this process, on the search path with its entry points, as an editable install."""
    write_package("task", "generated", parent=tmp_path)
    dist_info(tmp_path / "generated", "generated", "[gflownet.tasks]", "generated = generated.task:GeneratedTask")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "generated")
    (test,) = (tmp_path / "generated").rglob("test_*.py")
    runpy.run_path(str(test))["test_task"]()
    assert train.main(["task=generated", *SHORT, "algo.num_from_policy=2", "evaluation.executor=inline"]) == 0
    assert "task: generated\n" in (tmp_path / "logs" / "generated" / "config.yaml").read_text()
    for name in [name for name in sys.modules if name.partition(".")[0] == "generated"]:
        del sys.modules[name]


@pytest.mark.slow
@of_every_kind
def test_package_passes_its_tests_and_runs(kind, tmp_path, checkout):
    write_package(kind, "generated", parent=tmp_path)
    site = install(tmp_path / "generated", tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{site}", "OMP_NUM_THREADS": "1"}

    def run(*words: str, folder: Path) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "generated")
    choice = ["task=generated"] if kind in ("task", "environment") else ["--config", "generated"]
    run("-m", "gflownet", "train", *choice, *SHORT, folder=tmp_path)
    stored = yaml.safe_load((tmp_path / "logs" / "generated" / "config.yaml").read_text())
    assert "generated" in str({key: value for key, value in stored.items() if key != "log_dir"})


def test_command_prints_the_next_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["objective", "new_balance"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "wrote new_balance/pyproject.toml" in lines
    assert lines[-4:] == [
        "next:",
        "  python -m pip install -e new_balance pytest",
        "  python -m pytest new_balance",
        "  gflownet train --config new_balance",
    ]
    assert main(["task", "other", "--folder", "my folder"]) == 0
    assert "  python -m pip install -e 'my folder/other' pytest" in capsys.readouterr().out


MISTAKES = {
    "digits": "task: expected a new name, got 'digits', which gflownet or an installed package has",
    "exact": "task: expected a new name, got 'exact', which gflownet or an installed package has",
    "json": "task: expected a new name, got 'json', which is an installed module",
    "taken": "task: expected the name of a new folder, got 'taken', which exists",
    **{
        name: "task: expected a name of lower-case letters, digits and underscores between them, which names a Python "
        f"module and is text in YAML, got {name!r}"
        for name in ("3d", "My-Task", "class", "../up", "a.b", "tests", "", "edges_", "yes")
    },
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_and_writes_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert main(["task", name]) == 2
    assert capsys.readouterr().err == f"error: {MISTAKES[name]}\n"
    assert list(tmp_path.rglob("*")) == [tmp_path / "taken"]


def test_existing_files_are_not_overwritten(tmp_path):
    write_package("task", "edges", parent=tmp_path)
    path = tmp_path / "edges" / "edges" / "task.py"
    path.write_text("mine")
    with pytest.raises(UserError, match="which exists"):
        write_package("operation", "edges", parent=tmp_path)
    assert path.read_text() == "mine"


def test_page_lists_the_kinds(checkout):
    page = (checkout / "docs" / "extending.md").read_text()
    kinds = page.partition("KIND is ")[2].partition(".")[0]
    assert re.findall(r"`(\w+)`", kinds) == list(KINDS)
