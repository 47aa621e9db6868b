"""python -m gflownet.report: rebuild the page of a run, or compare several runs."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from gflownet.errors import UserError, printable
from gflownet.terminal.arguments import CommandLine, print_plain_messages, program, run_command

_DESCRIPTION = """Rebuild report.html of a run, or write a page that compares several runs.

Runs that differ only in their seed are one group, with 95 % intervals over its seeds."""
_EXAMPLES = """examples:
  gflownet report logs/run                      rebuild logs/run/report.html
  gflownet report logs/a logs/b                 write comparison.html
  gflownet report 'logs/*' --output all.html    compare all runs below logs
  gflownet report logs --each                   rebuild the page of every run below logs"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""
    return run_command(lambda: report(sys.argv[1:] if argv is None else argv))


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("report"),
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folder, folder with runs, or pattern with *"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="page (default: report.html in the folder of one run, comparison.html for several)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--each", action="store_true", help="rebuild the page of each run instead of a comparison")
    parser.add_argument(
        "--trust", action="store_true", help="also connect to the store that a run of another user names"
    )
    return parser


def report(arguments: Sequence[str]) -> None:
    """Write the pages, and print their paths."""
    options = command_line().parse_args(arguments)
    if options.each and options.output:
        raise UserError("--each: expected no --output, each page is report.html in the folder of its run")
    if options.each and options.json:
        raise UserError("--each: expected no --json, which holds the figures of a comparison")
    # Imported here: --help and wrong arguments do not wait for the import of the database.
    from gflownet.records.trust import trusting
    from gflownet.report.command import write_reports

    gc.disable()  # a fifth of the time of a large page: its rows live as long as the command
    try:
        with trusting(options.trust):
            for path in write_reports(
                options.runs, output=options.output, json_path=options.json, is_each=options.each
            ):
                print(printable(f"report: {path}"))
    finally:
        gc.enable()


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
