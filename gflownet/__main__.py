"""python -m gflownet: list the commands and run one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import gflownet
from gflownet.errors import UserError, error_line


@dataclass(frozen=True)
class Command:
    """A command of the family."""

    module: str  # has main(argv) -> exit status
    summary: str


COMMANDS = {
    "train": Command("gflownet.train", "search architectures"),
    "report": Command("gflownet.report.__main__", "rebuild the report of a run, or compare several runs"),
    "compare": Command("gflownet.compare", "run search methods with several seeds and compare them"),
    "store": Command("gflownet.store", "list, show, export, import and requeue evaluations"),
    "generate": Command("gflownet.generate", "generate text from a saved language model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status, 2 for an unknown one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"gflownet {gflownet.__version__}")
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(error_line(UserError(f"expected one of {', '.join(COMMANDS)}, got {arguments[0]!r}")), file=sys.stderr)
        return 2
    return importlib.import_module(command.module).main(arguments[1:])


def _usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: gflownet COMMAND [ARGUMENT ...]", "", *lines, "", "gflownet COMMAND --help: its options"])


if __name__ == "__main__":
    sys.exit(main())
