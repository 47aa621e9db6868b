"""python -m gflownet.compare: run search methods on one config with several seeds, and compare them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING

from gflownet.terminal.arguments import (
    EXIT_SIGNAL,
    CommandLine,
    positive_integer,
    print_plain_messages,
    program,
    run_command,
)
from gflownet.terminal.interrupts import stop_signals

if TYPE_CHECKING:
    from gflownet.comparison.plan import Plan

_STOP_MESSAGE = "\nstopping: running evaluations are cancelled; repeat the command to continue\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: compare(parse(arguments), command=arguments))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line.

    Raises:
        UserError: an unknown option, or a wrong or missing value.
    """
    from gflownet.comparison.methods import check_overrides

    options = command_line().parse_intermixed_args(arguments)
    check_overrides(options.overrides)
    return options


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("compare"),
        description="Run search methods on one config with several seeds, and compare them per evaluation.",
    )
    add = parser.add_argument
    add("--config", metavar="NAME", help="name or path of a config (default: that of the task)")
    add("--methods", default="", metavar="A,B,C", help="search methods (search.method), separated by commas")
    add(
        "--method",
        action="append",
        default=[],
        metavar='"LABEL: KEY=VALUE ..."',
        help="a further method: a label and its options, for example --method "
        '"sharp: search.method=surrogate search.acquisition.beta=8"; may be repeated',
    )
    add("--budget", type=positive_integer, default=100, metavar="N", help="new evaluations of each run (default: 100)")
    add("--seeds", type=positive_integer, default=5, metavar="S", help="seeds of each method: 0 to S - 1 (default: 5)")
    add("--parallel", type=positive_integer, default=1, metavar="P", help="runs at the same time (default: 1)")
    add("--out", type=Path, metavar="FOLDER", help="folder of all runs (default: logs/compare_CONFIG)")
    add("--json", type=Path, metavar="FILE", help="copy of comparison.json")
    add("--at", type=_numbers, default=(), metavar="N,N", help="evaluations at which the table shows the figures")
    add("-q", "--quiet", action="store_true", help="only warnings, errors and the final tables")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="options of all runs, as in gflownet train")
    return parser


def compare(options: argparse.Namespace, *, command: Sequence[str]) -> int:
    """Run or read all runs, write and print the result, and return the exit status."""
    from gflownet.command_line.start_checks import check_resources
    from gflownet.config import load_config

    plan = plan_of(options)
    plan.check(copy=options.json)
    for jobs in plan.jobs().values():
        check_resources(load_config(jobs[0].config, jobs[0].options()))
    # Imported here: --help and errors of the command line wait for nothing.
    from rich.console import Console

    from gflownet.comparison.report import print_comparison
    from gflownet.comparison.result_file import write_comparison
    from gflownet.comparison.session import run_plan
    from gflownet.terminal.console import make_console, print_line

    console = make_console()
    progress_console = Console(quiet=True) if options.quiet else console
    with stop_signals(message=_STOP_MESSAGE) as stop:
        comparison = run_plan(plan, num_processes=options.parallel, console=progress_console, stop=stop)
    if comparison is None:
        return EXIT_SIGNAL + (stop.signal or SIGINT)
    print_comparison(comparison, console)
    paths = write_comparison(comparison, plan.folder, command=command, copy=options.json)
    print_line(console, f"written: {', '.join(map(str, paths))}")
    return 0


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan of a command line. Raises UserError for unknown methods."""
    from gflownet.comparison.methods import read_methods
    from gflownet.comparison.plan import Plan
    from gflownet.config import config_of_task

    source = options.config or config_of_task(options.overrides)
    name = Path(source).stem if source else "task"
    return Plan(
        config=source,
        methods=tuple(read_methods(options.methods, options.method)),
        num_evaluations=options.budget,
        seeds=tuple(range(options.seeds)),
        overrides=tuple(options.overrides),
        folder=options.out or Path("logs", f"compare_{name}"),
        checkpoints=tuple(options.at),
    )


def _numbers(text: str) -> list[int]:
    return [positive_integer(part.strip()) for part in text.split(",")]


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
