"""python -m gflownet.store: list, show, export and requeue the evaluations of runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflownet.errors import UserError, counted, printable
from gflownet.files import parse_json, read_yaml
from gflownet.records.trust import CONFIG_NAME, HELP, check_config, trusting
from gflownet.terminal.arguments import CommandLine, positive_integer, program, run_command

if TYPE_CHECKING:
    from gflownet.evaluation.store.overview import Row, StoreOverview

LOCATION_HELP = "run folder, SQLite file or database URL; secrets only by ${oc.env:NAME}"
REQUEUED_STATUSES = ("crashed", "timeout", "out_of_memory", "failed", "refused", "running")
_SHOWN = ("id", "status", "score", "seconds", "attempts", "fidelity", "seed", "num_parameters", "parent")
_MORE_SHOWN = ("run", "step", "created", "hash", "owner", "error")
_DIGEST_LENGTH = 8
_PIPE_WIDTH = 10_000  # a line per row
_HASH_LENGTH = 11  # with its version, as in g1-


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""

    def store() -> None:
        options = command_line().parse_args(sys.argv[1:] if argv is None else argv)
        with trusting(options.trust):
            location = _location(options.location)
            # Imported here: --help and errors of the command line do not wait for SQLAlchemy.
            from gflownet.evaluation.store.overview import StoreOverview

            with StoreOverview(location) as overview, overview.damage_in_one_line():
                options.command(overview, options)

    return run_command(store)


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(prog=program("store"), description="List and export the evaluations of runs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[StoreOverview, argparse.Namespace], None], text: str) -> CommandLine:
        subparser = commands.add_parser(name, help=text, description=f"{text}.")
        subparser.set_defaults(command=command)
        subparser.add_argument("location", metavar="LOCATION", help=LOCATION_HELP)
        subparser.add_argument("--trust", action="store_true", help=HELP)
        return subparser

    add("ls", list_runs, "print tasks and runs: rows by status, best score, times")
    command = add("show", show_rows, "print one row")
    command.add_argument("id", metavar="ID", help="row id, or the first characters of a hash")
    command.add_argument("--graph", action="store_true", help="print only the graph, as JSON")
    command = add("best", print_best, "print the best architectures of each task")
    command.add_argument("--num", type=positive_integer, default=10, metavar="N", help="number of rows (default: 10)")
    command = add("export", export_rows, "write all results to a new file")
    command.add_argument("file", type=Path, metavar="FILE", help="*.jsonl or *.csv")
    command = add("requeue", requeue_rows, "let the next run evaluate rows again; default: claims of ended runs")
    command.add_argument("ids", nargs="*", metavar="ID", help="row ids or first characters of hashes (default: all)")
    command.add_argument("--status", choices=REQUEUED_STATUSES, help="only rows of this status")
    command.add_argument("--force", action="store_true", help="also successful rows and claims of running processes")
    return parser


def list_runs(overview: StoreOverview, options: argparse.Namespace) -> None:
    """Print one line per task and run."""
    runs = overview.runs()
    statuses = sorted({status for run in runs for status in run.num_by_status})
    rows = []
    for run in runs:
        nums = [run.num_by_status.get(status, 0) for status in statuses]
        context = "damaged" if run.context is None else run.digest[:_DIGEST_LENGTH]
        best = "-" if run.best is None else f"{run.best:.6g}"
        times = [time[:19].replace("T", " ") or "-" for time in (run.first, run.last)]
        rows.append([_task(run.context), context, run.run[:_DIGEST_LENGTH], *nums, best, *times])
    _print_table(["task", "context", "run", *statuses, "best", "first", "last"], rows)


def show_rows(overview: StoreOverview, options: argparse.Namespace) -> None:
    """Print a row, or a table of the rows if several match."""
    rows = _matching(overview, options.id)
    graphs = {row["graph"] for row in rows}
    if options.graph and len(graphs) == 1:
        print(_graph(rows[0]))
    elif len(rows) > 1:
        if options.graph:
            raise UserError(f"{options.id}: expected one graph, got {len(graphs)}; name a row id")
        _print_rows(rows, _COLUMNS)
    else:
        _print_row(rows[0])


def print_best(overview: StoreOverview, options: argparse.Namespace) -> None:
    """Print the best successful rows of the search of each task."""
    _print_rows(overview.best(options.num), [name for name in _COLUMNS if name not in ("status", "fidelity", "seed")])


def export_rows(overview: StoreOverview, options: argparse.Namespace) -> None:
    """Write all results to a file."""
    from gflownet.evaluation.store.overview import write_rows

    num_rows = write_rows(options.file, overview.results())
    num_others = overview.count() - num_rows
    others = f"; {num_others} without a valid result were left out" if num_others else ""
    print(printable(f"{counted(num_rows, 'row')} exported to {options.file}{others}"))


def requeue_rows(overview: StoreOverview, options: argparse.Namespace) -> None:
    """Requeue rows by id, by status or both."""
    from gflownet.evaluation.store.rows import EvaluationStatus

    status = EvaluationStatus(options.status) if options.status else None
    ids = None
    if options.ids:
        rows = []
        for text in options.ids:  # a row id, or one hash with its seeds, fidelities and contexts
            rows += (of_text := _matching(overview, text))
            if (num_hashes := len({row["hash"] for row in of_text})) > 1:
                raise UserError(f"{text}: expected the start of one hash, got that of {num_hashes}")
        rows = [row for row in rows if status is None or row["status"] == status]
        successful = [row["id"] for row in rows if row["status"] == EvaluationStatus.OK]
        if successful and not options.force:
            raise UserError(f"row {successful[0]}: expected a row without a score, got a successful one; see --force")
        num_leased = overview.num_leased(rows)
        if num_leased and not options.force:
            raise UserError(f"{num_leased} of the rows are claimed by a running process; see --force")
        ids = {row["id"] for row in rows}
    elif status is None:
        status = EvaluationStatus.RUNNING
    num_rows = overview.requeue(status, ids=ids, is_forced=options.force)
    print(f"{counted(num_rows, 'row')} requeued")


def _location(text: str) -> str:
    """Return the path of a file, or a URL with its interpolations replaced."""
    if "://" in text or "${" in text:
        from gflownet.evaluation.config import check_store_url

        check_store_url(text)
        return _interpolated(text) if "${" in text else text
    folder = Path(text)
    if not folder.exists() or not folder.is_dir():
        return text
    from gflownet.evaluation.store.database import STORE_NAME

    if (folder / STORE_NAME).exists():
        return str(folder / STORE_NAME)
    path = folder / CONFIG_NAME
    try:
        url = read_yaml(path)["evaluation"]["store_url"] if path.is_file() else ""
    except (UserError, KeyError, TypeError) as error:
        raise UserError(f"{path}: expected the config of a run with evaluation.store_url ({error})") from None
    if url:
        check_config(folder, {"evaluation": {"store_url": url}})
        return _interpolated(url)
    raise UserError(f"{folder}: expected a run folder, got one without {STORE_NAME}")


def _interpolated(text: str) -> str:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return str(OmegaConf.create({"location": text}).location)
    except OmegaConfBaseException as error:
        raise UserError(f"{text}: cannot be resolved ({str(error).splitlines()[0]})") from None


def _matching(overview: StoreOverview, text: str) -> list[Row]:
    rows = overview.matching(text)
    if not rows:
        raise UserError(f"{text}: expected a row id or the start of a hash in {overview.location}, found no such row")
    return rows


def _print_row(row: Row) -> None:
    from gflownet.evaluation.store.overview import is_intact

    values = {"task": _task(row["context_text"]), **{name: row[name] for name in (*_SHOWN, *_MORE_SHOWN)}}
    values |= {"metrics": row["metrics"], "curve": row["curve"], "context": row["context_text"] or "damaged"}
    values["checksum"] = "valid" if is_intact(row) else "does not match: the row is ignored"
    for name, value in values.items():
        if value not in (None, "", "{}", "[]"):
            print(f"{name:<15}{printable(' '.join(str(value).split()))}")
    for _, text in _choices([row]):
        print(f"{'choices':<15}{printable(text)}")
    print(f"{'graph':<15}{_graph(row)}")


def _print_rows(rows: Iterable[Row], names: Iterable[str]) -> None:
    rows, names = list(rows), list(names)
    if not any(map(_words, rows)):
        names.remove("architecture")
    _print_table(names, [[_COLUMNS[name](row) for name in names] for row in rows])
    for row, text in _choices(rows):
        print(f"{row['id']}: {printable(text)}")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for name in header:
        is_text = name in ("task", "context", "hash", "run", "status", "architecture")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    with console.capture() as capture:  # a closed pipe is handled by `main`
        console.print(table)
    print(capture.get(), end="")


def _task(context: str | None) -> str:
    try:
        values = parse_json(context or "")
    except ValueError:
        return "-"
    return str(values.get("task", "-")) if isinstance(values, Mapping) else "-"


def _words(row: Row) -> str:
    """Return the words of the task for a candidate; empty without any and for damaged rows."""
    from gflownet.graphs.assignment import words_of

    try:
        return words_of(parse_json(row["graph"]))
    except (ValueError, TypeError):
        return ""


def _choices(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Yield the rows of choices with their YAML, those in which the rows of a task differ first."""
    from gflownet.graphs.assignment import as_yaml, differing, values_of

    contexts: dict[str, list[tuple[Row, dict[str, Any]]]] = {}
    for row in rows:
        with suppress(ValueError):
            if not _words(row) and (values := values_of(parse_json(row["graph"]))):
                contexts.setdefault(row["context"], []).append((row, values))
    for settings in contexts.values():
        first = differing([values for _, values in settings])
        yield from ((row, as_yaml(values, first=first)) for row, values in settings)


def _graph(row: Row) -> str:
    try:
        return json.dumps(parse_json(row["graph"]))
    except ValueError:
        return json.dumps(row["graph"])


_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "id": lambda row: row["id"],
    "task": lambda row: _task(row["context_text"]),
    "context": lambda row: row["context"][:_DIGEST_LENGTH],
    "hash": lambda row: row["hash"][:_HASH_LENGTH],
    "status": lambda row: row["status"],
    "score": lambda row: f"{row['score']:.6g}",
    "fidelity": lambda row: row["fidelity"],
    "seed": lambda row: row["seed"],
    "parameters": lambda row: "-" if row["num_parameters"] is None else row["num_parameters"],
    "seconds": lambda row: f"{row['seconds']:.3g}",
    "run": lambda row: row["run"][:_DIGEST_LENGTH],
    "architecture": lambda row: _words(row),
}
