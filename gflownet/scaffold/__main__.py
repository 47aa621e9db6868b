"""gflownet new KIND NAME: write a package with a class of your own."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gflownet.scaffold.package import KINDS, write_package
from gflownet.terminal.arguments import CommandLine, print_plain_messages, program, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Write the package and print the next commands; return the exit status."""
    return run_command(lambda: _write(command_line().parse_args(argv)))


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("new"),
        description="Write a package with a class of your own: the class, entry point, config, test and README. "
        "Nothing is overwritten.",
    )
    kinds = ", ".join(f"{name} ({kind.summary})" for name, kind in KINDS.items())
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=kinds)
    parser.add_argument("name", metavar="NAME", help="name of the class in configs, of the package and of its folder")
    parser.add_argument("--folder", default=".", metavar="FOLDER", help="where to write the package; default: here")
    return parser


def _write(arguments: argparse.Namespace) -> None:
    name = arguments.name
    for path in write_package(arguments.kind, name, parent=Path(arguments.folder)):
        print(f"wrote {path}")
    folder = shlex.quote(str(Path(arguments.folder) / name))
    use = f"task={name}" if arguments.kind in ("task", "environment") else f"--config {name}"
    print("\nnext:")
    print(f"  python -m pip install -e {folder} pytest")
    print(f"  python -m pytest {folder}")
    print(f"  gflownet train {use}")


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
