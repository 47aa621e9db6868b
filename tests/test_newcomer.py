"""The script that walks the path of a newcomer: its checks, its page and, in slow tests, the whole path."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def newcomer(checkout: Path) -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("newcomer", checkout / "scripts" / "newcomer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["newcomer"] = module
    spec.loader.exec_module(module)
    return module


def test_problems_of_a_step(newcomer, tmp_path):
    step = newcomer.Step("", "", "command", status=0, shows=["best"], files=["report.html"])
    bad = newcomer.Result(1, "Traceback (most recent call last)", 0.0)
    assert newcomer.problems_of(step, bad, tmp_path) == [
        "expected exit status 0, got 1",
        "expected 'best' in the output",
        "expected the file report.html",
        "a traceback in the output",
    ]
    (tmp_path / "report.html").touch()
    assert newcomer.problems_of(step, newcomer.Result(0, "the best", 0.0), tmp_path) == []


def test_walk_runs_checks_and_interrupts(newcomer, tmp_path, capsys):
    walk = newcomer.Walk(tmp_path, {"PATH": "/usr/bin:/bin"})
    walk.take(newcomer.Step("Title", "Text.", "echo one; exit 3", status=3, shows=["one"]))
    walk.take(newcomer.Step("", "", "echo 'step 1/9 | loss'; sleep 60", status=130, interrupts=True))
    walk.take(newcomer.Step("", "", "false"))
    assert walk.problems == ["false: expected exit status 0, got 1"]
    assert walk.blocks[0] == "## Title\n\nText.\n\n```\n$ echo one; exit 3\none\n(exit status 3)\n```\n"
    assert "^C  (Ctrl-C)" in walk.blocks[1]
    assert "PROBLEM: expected exit status 0, got 1" in capsys.readouterr().out


def test_output_is_plain_and_short(newcomer):
    assert newcomer.plain(f"\x1b[1mbold\x1b[0m  \nold\rnew\n{newcomer.CHECKOUT}/x\n") == "bold\nnew\n~/gflownet/x"
    step = newcomer.Step("", "", "command")
    lines = newcomer.block_of(step, 0, "\n".join(map(str, range(100)))).split("\n")
    assert len(lines) < 40
    assert "... (70 lines)" in lines


def test_every_part_of_the_path_is_a_step(newcomer):
    commands = " ".join(step.command for step in newcomer.steps(quick=True))
    for part in (
        "train --config",
        "report logs/first",
        "seed=1",
        "max_hiden",
        "resume=true",
        "new task",
        "pip install",
    ):
        assert part in commands
    for part in ("gflownet sample", "report logs/first logs/second", "store export", "to_source", "gflownet.load("):
        assert part in commands


@pytest.mark.slow
def test_path_of_a_newcomer(checkout):
    command = [sys.executable, str(checkout / "scripts" / "newcomer.py"), "--skip-install", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr
    assert "16 steps, 0 problems" in done.stdout
