"""python -m gflownet.report: rebuild report.html of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gflownet.errors import CommandLine, UserError, error_line, printable
from gflownet.files import write_whole

EXIT_USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user."""
    parser = CommandLine(prog="python -m gflownet.report", description="Rebuild report.html of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    try:
        options = parser.parse_args(sys.argv[1:] if argv is None else argv)
        from gflownet.report.page import PAGE_NAME, page_of, read_run

        for folder in options.runs:
            write_whole(folder / PAGE_NAME, page_of(read_run(folder)))
            print(printable(f"report: {folder / PAGE_NAME}"))
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
