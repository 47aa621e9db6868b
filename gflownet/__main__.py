"""python -m gflownet: list the commands and run one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import gflownet
from gflownet.errors import UserError, did_you_mean
from gflownet.terminal.arguments import COMMANDS, print_plain_messages, program, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0, 2 for an error of the user, 128 + a signal."""
    if argv is None and "_ARGCOMPLETE" in os.environ:  # a Tab in a shell
        from gflownet.cli.completion import complete

        complete()
    if argv is None:
        print_plain_messages()
        _import_from_working_folder()
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _run(arguments))


def _import_from_working_folder() -> None:
    """Let module:function name modules of the working folder, as after python -m; the script does not by itself."""
    with suppress(FileNotFoundError):  # the folder was deleted
        if not sys.flags.safe_path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())


def _run(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names."""
    name, *words = arguments or ["--help"]
    if name == "help" and words:
        name, words = words[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"gflownet {gflownet.__version__}")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        kind = "option" if name.startswith("-") else "command"
        names = ("--help", "--version") if name.startswith("-") else (*COMMANDS, "help")
        raise UserError(f"{name}: unknown {kind}, expected one of {', '.join(names)}{did_you_mean(name, names)}")
    return command.load().main(words)


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items()]
    script = program("")
    return "\n".join(
        [
            f"usage: {script} [-h] [--version] COMMAND [ARGUMENT ...]",
            "",
            "Search neural architectures by sampling graphs in proportion to their reward.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            f"  {'-h, --help':<{width}}show this help and exit",
            f"  {'--version':<{width}}show the version of gflownet and exit",
            "",
            f"{script} COMMAND --help, or {script} help COMMAND: the options of a command",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
