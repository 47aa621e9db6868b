"""The family of commands: list, help, errors, exit status, old entry points."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gflownet
from gflownet.__main__ import main
from gflownet.errors import UserError
from gflownet.terminal.arguments import COMMANDS, CommandLine, run_command

# Packages that no --help needs; each takes a tenth of a second or more.
SLOW = ("torch", "numpy", "omegaconf.base", "yaml.reader", "sqlalchemy", "rich", "wandb", "jinja2", "networkx")


def test_list_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert text.startswith("usage: ")
        for name, command in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(command.summary)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_help_and_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    text = capsys.readouterr().out
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out == text
    assert text.startswith(f"usage: gflownet {name} ")
    for words in ("-h, --help", "--version", "options:"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100
    assert main([name, "--version"]) == 0
    assert capsys.readouterr().out == f"gflownet {gflownet.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_is_one_line_with_the_nearest_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--hlep"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"error: --hlep: .*\n", printed.err)
    if name != "train":  # which names the nearest option of the config
        assert "did you mean --help?" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "trian: unknown command, expected one of train, .*; did you mean train?"),
        (["help", "stroe"], "stroe: unknown command, .*; did you mean store?"),
        (["--versoin"], "--versoin: unknown option, .*; did you mean --version?"),
        (["store", "shwo", "x"], "COMMAND: expected one of ls, .*, got 'shwo'; did you mean show?"),
        (["store", "best", "x", "--num", "0"], "--num: expected a number >= 1, got '0'"),
        (["store", "requeue", "x", "--status", "crash"], "--status: expected one of crashed, .* mean crashed?"),
        (["generate"], "expected FOLDER, got nothing; see gflownet generate --help"),
        (["generate", "x", "--top-k", "many"], "--top-k: expected an integer, got 'many'"),
        (["compare", "--budget"], "--budget: expected one argument"),
    ],
)
def test_error_names_argument_and_nearest_word(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert re.match(f"error: {words.replace('?', '[?]')}", printed.err)


def test_help_of_every_command_imports_no_slow_package(checkout: Path) -> None:
    code = (
        "import sys, contextlib, io; from gflownet.__main__ import main\n"
        f"for name in {tuple(COMMANDS)}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()): assert main([name, '--help']) == 0\n"
        f"    print(name, [package for package in {SLOW} if package in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} []" for name in COMMANDS]


@pytest.mark.parametrize(
    "module", ["gflownet", "gflownet.train", "gflownet.store", "gflownet.compare", "gflownet.generate"]
)
def test_entry_points_run_and_show_themselves(module: str, checkout: Path) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: python -m {module} ")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(None, 0), (0, 0), (130, 130), (KeyboardInterrupt(), 130), (SystemExit(0), 0), (UserError("a\nb"), 2)],
)
def test_exit_status(outcome: int | BaseException | None, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int | None:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    assert run_command(command) == status
    assert capsys.readouterr().err == ("error: a b\n" if status == 2 else "")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS])
def test_refused_path_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise OSError(number, os.strerror(number), "run/.lock")

    assert run_command(command) == 2
    assert capsys.readouterr().err == f"error: run/.lock: cannot be opened or changed ({os.strerror(number)})\n"


def test_folder_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    for arguments in (["report", str(tmp_path)], ["report", str(tmp_path / "run"), "--output", str(tmp_path / "page")]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {tmp_path}")
        assert error.count("\n") == 1


def test_abbreviations_are_no_options() -> None:
    parser = CommandLine(prog="x")
    parser.add_argument("--number")
    with pytest.raises(UserError, match=r"--num: unknown option; did you mean --number\?"):
        parser.parse_args(["--num", "3"])
