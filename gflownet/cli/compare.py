"""python -m gflownet.compare: run search methods on one config with several seeds, and compare them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING

from gflownet.errors import UserError, printable
from gflownet.files import locked_folder
from gflownet.terminal.arguments import EXIT_SIGNAL, CommandLine, positive_integer, program, run_command
from gflownet.terminal.interrupts import stop_signals

if TYPE_CHECKING:
    from gflownet.cli.comparison import Plan

_STOP_MESSAGE = "\nstopping: running evaluations are cancelled; repeat the command to continue\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: compare(parse(arguments)))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line.

    Raises:
        UserError: an unknown option, or a wrong or missing value.
    """
    from gflownet.cli.comparison import check_overrides

    options = command_line().parse_intermixed_args(arguments)
    words, options.overrides, options.runs = options.overrides, [], []
    for word in words:
        if "=" not in word and (Path(word).exists() or "*" in word):  # run folder, folder with runs, or pattern
            options.runs.append(Path(word))
        else:
            options.overrides.append(word)
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
    add("--out", type=Path, metavar="FOLDER", help="folder of all runs (default: logs/compare_CONFIG)")
    add("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    add("-q", "--quiet", action="store_true", help="only warnings, errors and the final table")
    add(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE|RUN",
        help="options of all runs, as in gflownet train; folders of other runs, for the page",
    )
    return parser


def compare(options: argparse.Namespace) -> int:
    """Run or read all runs, write and print the result, and return the exit status; or compare given runs."""
    from gflownet.report.__main__ import COMPARISON_MARK, check_own
    from gflownet.report.compared import COMPARISON_NAME
    from gflownet.run.extensions import check_resources

    if options.runs and not (options.methods or options.method):
        if options.overrides or options.out:
            raise UserError("--methods: expected at least one method for the given options, got only run folders")
        return _show(options, options.runs, None)
    plan = plan_of(options)
    page = plan.folder / COMPARISON_NAME
    check_own(page, option="--out")
    if options.json is not None:
        check_own(options.json, option="--json", mark=COMPARISON_MARK)
    plan.check()
    for job in plan.jobs()[: len(plan.methods)]:
        check_resources(job.config())
    plan.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(
        plan.folder, refusal=f"--out: expected a folder without an active comparison, got {plan.folder}"
    ):
        return _run_methods(plan, options, page)


def _run_methods(plan: Plan, options: argparse.Namespace, page: Path) -> int:
    # Imported here: --help and errors of the command line wait for nothing.
    from rich.console import Console

    from gflownet.terminal.console import make_console

    console = Console(quiet=True) if options.quiet else make_console()
    with stop_signals(message=_STOP_MESSAGE) as stop:
        is_finished = plan.run(console=console, stop=stop)
    if not is_finished:
        return EXIT_SIGNAL + (stop.signal or SIGINT)
    return _show(options, [*(job.folder for job in plan.jobs()), *options.runs], page)


def _show(options: argparse.Namespace, runs: Sequence[Path], page: Path | None) -> int:
    """Print the groups of runs, and write their page as `gflownet report` does."""
    from gflownet.report.__main__ import write_reports
    from gflownet.report.compared import print_comparison

    for path in write_reports(runs, output=page, json_path=options.json, show=print_comparison):
        print(printable(f"report: {path}"))
    return 0


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan of a command line. Raises UserError for unknown methods."""
    from gflownet.cli.comparison import Plan, read_methods
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
    )
