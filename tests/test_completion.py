"""Completion of the command line: candidates, and real shells that use the scripts."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gflownet.cli.arguments import COMMANDS
from gflownet.cli.completion import SCRIPTS, candidates_of, main
from gflownet.config import OPTIONS, config_names
from gflownet.envs.config import ENVIRONMENTS


def texts(*words: str) -> list[str]:
    return [candidate.text for candidate in candidates_of(words)[0]]


def test_candidates_of_commands() -> None:
    assert set(texts("")) == {*COMMANDS, "help", "--help", "--version"}
    assert texts("st") == ["store"]
    assert texts("help", "st") == ["store"]
    assert texts("nonsense", "") == []


def test_candidates_of_options_and_choices() -> None:
    assert texts("store", "requeue", "x", "--f") == ["--force"]
    assert texts("store", "requeue", "x", "--status", "c") == ["crashed"]
    assert texts("store", "requeue", "x", "--status=c") == ["--status=crashed"]
    assert texts("store", "sh") == ["show"]
    assert texts("completion", "") == list(SCRIPTS)
    assert "--print-config" in texts("train", "--")


def test_candidates_of_train() -> None:
    assert set(texts("train", "")) == {f"{key}=" for key in OPTIONS}
    assert texts("train", "env.cells.na") == ["env.cells.name="]
    assert texts("train", "env.name=") == [f"env.name={name}" for name in ENVIRONMENTS]
    assert texts("train", "wandb.mode=") == ["wandb.mode=online", "wandb.mode=offline", "wandb.mode=disabled"]
    assert texts("train", "resume=") == ["resume=false", "resume=true", "resume=auto"]
    assert texts("train", "certify=t") == ["certify=true"]
    assert texts("train", "--config", "dig") == [name for name in config_names() if name.startswith("dig")]
    assert texts("train", "seed=") == []


def test_candidates_of_language() -> None:
    assert "steps=" in texts("language", "st")
    assert "text=" not in texts("language", "")
    assert texts("language", "book.txt", "schedule=tr") == ["schedule=trapezoid"]
    assert texts("language", "--config", "qu") == ["quick"]
    assert candidates_of(["language", "boo"])[1]


def test_candidates_of_options_of_the_chosen_task() -> None:
    assert "task_options.num_parameters=" in texts("train", "task=language", "task_options.n")
    assert texts("train", "task=nonsense", "task_options.n") == []


def test_files_complete_paths_only() -> None:
    assert candidates_of(["report", ""])[1]
    assert candidates_of(["train", "log_dir=lo"])[1]
    assert candidates_of(["generate", "x", "--prompts", ""])[1]
    assert not candidates_of(["train", "env."])[1]
    assert not candidates_of(["completion", ""])[1]


def test_printed_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        assert main([shell]) == 0
        assert capsys.readouterr().out == script
    assert main(["tcsh"]) == 2
    assert "SHELL: expected one of bash, zsh, fish, got 'tcsh'" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, checkout: Path) -> Path:
    """Return a folder with the command gflownet and the scripts."""
    command = tmp_path / "gflownet"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={checkout} exec {sys.executable} -m gflownet "$@"\n')
    command.chmod(0o755)
    for shell, script in SCRIPTS.items():
        (tmp_path / shell).write_text(script)
    return tmp_path


def run_shell(shell: str, folder: Path, code: str) -> str:
    """Run code in a shell without start-up files; the path has only the folder and the system."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    flags = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"}
    done = subprocess.run(
        [path, *flags, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


def test_fish_completes(folder: Path) -> None:
    code = f"source {folder}/fish; complete -C 'gflownet train env.name=ce'; complete -C 'gflownet sto'"
    rows = run_shell("fish", folder, code).splitlines()
    assert "env.name=cells" in rows
    assert any(row.startswith("store\t") for row in rows)


# Commands that make an interactive shell complete, without start-up files.
INTERACTIVE = {
    "bash": (["--norc", "--noprofile", "-i"], "source $HOME/bash"),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -d $HOME/dump; source $HOME/zsh"),
}


@pytest.mark.parametrize("shell", INTERACTIVE)
@pytest.mark.parametrize(
    ("typed", "completed"), [("gflownet train env.name=ce", b"lls "), ("gflownet train wandb.mod", b"e=")]
)
def test_tab_completes_a_word(shell: str, typed: str, completed: bytes, folder: Path) -> None:
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
        type_and_wait(terminal, f"{typed}\t", typed.encode(), completed)
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
