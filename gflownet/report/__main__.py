"""python -m gflownet.report: rebuild report.html of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gflownet.command_line import CommandLine, print_plain_messages, program, run_command
from gflownet.errors import printable
from gflownet.files import write_whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""
    return run_command(lambda: report(sys.argv[1:] if argv is None else argv))


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(prog=program("report"), description="Rebuild report.html of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    return parser


def report(arguments: Sequence[str]) -> None:
    """Rebuild the report of each run."""
    options = command_line().parse_args(arguments)
    from gflownet.report.page import PAGE_NAME, page_of, read_run

    for folder in options.runs:
        write_whole(folder / PAGE_NAME, page_of(read_run(folder)))
        print(printable(f"report: {folder / PAGE_NAME}"))


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
