"""Completion of the command line: candidates, and real shells."""

from __future__ import annotations

import io
import os
import pty
import select
import shutil
import signal
import sys
from pathlib import Path

import pytest
from argcomplete.finders import CompletionFinder
from argcomplete.shell_integration import shellcode

from gflownet.cli.completion import complete
from gflownet.config import OPTIONS, config_names
from gflownet.envs.config import ENVIRONMENTS
from gflownet.terminal.arguments import COMMANDS


def texts(line: str) -> list[str]:
    """Return the completions of the end of `gflownet LINE`."""
    line = f"gflownet {line}"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompletionFinder, "_init_debug_stream", lambda self: None)  # it takes the descriptor 9
        for name, value in variables.items():
            patch.setenv(name, value)
        complete(output, exit=lambda status: None)
    return [text for text in output.getvalue().split("\013") if text]


def test_candidates_of_commands() -> None:
    assert set(texts("")) == {*COMMANDS, "help"}
    assert set(texts("--")) == {"--help", "--version"}
    assert texts("st") == ["store"]
    assert texts("help st") == ["store"]
    assert texts("nonsense ") == []


def test_candidates_of_options_and_choices() -> None:
    assert texts("store requeue x --f") == ["--force"]
    assert texts("store requeue x --status c") == ["crashed"]
    assert texts("store requeue x --status=c") == ["--status=crashed"]
    assert texts("store sh") == ["show"]
    assert "--print-config" in texts("train --")


def test_candidates_of_train() -> None:
    assert set(texts("train ")) == {f"{key}=" for key in OPTIONS}
    assert texts("train env.cells.na") == ["env.cells.name="]
    assert texts("train env.name=") == [f"env.name={name}" for name in ENVIRONMENTS]
    assert texts("train seed=1 --config digits --opt.learning_rate=1 env.name=ce") == ["env.name=cells"]
    assert texts("train wandb.mode=") == ["wandb.mode=online", "wandb.mode=offline", "wandb.mode=disabled"]
    assert texts("train resume=") == ["resume=false", "resume=true", "resume=auto"]
    assert texts("train certify=t") == ["certify=true"]
    assert texts("train --config dig") == [name for name in config_names() if name.startswith("dig")]


def test_candidates_of_language() -> None:
    assert "steps=" in texts("language st")
    assert "text=" not in texts("language ")
    assert texts("language book.txt schedule=tr") == ["schedule=trapezoid"]
    assert texts("language --config qu") == ["quick"]


def test_candidates_of_options_of_the_chosen_task() -> None:
    assert "task_options.num_parameters=" in texts("train task=language task_options.n")
    assert texts("train task=nonsense task_options.n") == []


def test_files_complete_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first").mkdir()
    assert texts("report fi") == ["first/"]
    assert texts("train log_dir=fi") == ["log_dir=first/"]
    assert texts("generate x --prompts fi") == ["first/"]
    assert texts("language fi") == ["first/"]
    assert texts("train fi") == [f"{key}=" for key in OPTIONS if key.startswith("fi")]


@pytest.fixture
def folder(tmp_path: Path, checkout: Path) -> Path:
    """Return a folder with the command gflownet and argcomplete's scripts."""
    command = tmp_path / "gflownet"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={checkout} exec {sys.executable} -m gflownet "$@"\n')
    command.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / shell).write_text(shellcode(["gflownet"], shell="fish" if shell == "fish" else "bash"))
    return tmp_path


# Commands that make an interactive shell complete, without start-up files.
INTERACTIVE = {
    "bash": (["--norc", "--noprofile", "-i"], "source $HOME/bash"),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -d $HOME/dump; source $HOME/zsh"),
}


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab_completes_a_word(shell: str, folder: Path) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    flags, setup = INTERACTIVE[shell]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"}
    process, terminal = pty.fork()
    if not process:
        os.execve(path, [shell, *flags], environment)
    try:
        type_and_wait(terminal, f"{setup}; echo READ''Y\n", b"READY\r\n")
        type_and_wait(terminal, "gflownet train wandb.mod\t", b"wandb.mod", b"e=")
        type_and_wait(terminal, "dis\t", b"abled ")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def type_and_wait(terminal: int, text: str, *expected: bytes) -> None:
    """Type text, and read until each expected text has come, in this order."""
    os.write(terminal, text.encode())
    output = b""
    for part in expected:
        while part not in output:
            assert select.select([terminal], [], [], 20)[0], f"expected {part!r}, got {output!r}"
            output += os.read(terminal, 65536)
        output = output.partition(part)[2]
