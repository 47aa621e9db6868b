"""python -m gflownet.report: rebuild the page of a run, or compare several runs."""

from __future__ import annotations

import argparse
import gc
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gflownet.config import CONFIG_NAME
from gflownet.errors import UserError, printable
from gflownet.files import locked_folder, save_whole, write_whole
from gflownet.records.marker import COMPARISON_FORMAT, MARKER_NAME, PAGE_NAME, not_a_search, read_marker
from gflownet.records.trust import trusting
from gflownet.terminal.arguments import CommandLine, print_plain_messages, program, run_command

if TYPE_CHECKING:
    from gflownet.report.compared import Comparison

_HEAD_BYTES = 4_096
# In the first bytes of every page, see templates/base.html.j2, and of the JSON of a comparison.
_PAGE_MARK, COMPARISON_MARK = b'<meta name="generator" content="gflownet">', COMPARISON_FORMAT.encode()


def write_reports(
    paths: Sequence[Path],
    *,
    output: Path | None = None,
    json_path: Path | None = None,
    is_each: bool = False,
    show: Callable[[Comparison], None] | None = None,
) -> Iterator[Path]:
    """Write the page of one run, of each run, or the comparison of several; yield each path written.

    `paths` are run folders, folders with runs, or patterns; without `output` a page has its default name. `json_path`
    gets the figures of the comparison; `show` gets the comparison, which is then written of one run too.

    Raises:
        UserError: no run at a path, or a file that is not of gflownet or cannot be written.
    """
    folders = run_folders(paths)
    if json_path is not None:
        check_own(json_path, option="--json", mark=COMPARISON_MARK)
    is_page = is_each or (len(folders) == 1 and show is None)
    if is_page:
        for folder in folders:
            yield _write_page(folder, output)
        if json_path is None:
            return
    # Imported here, as in the other functions: --help waits for nothing, and the page of one run not for scipy.
    from gflownet.report.compared import COMPARISON_NAME, comparison_of, comparison_page

    comparison = comparison_of(folders)
    if show is not None:
        show(comparison)
    if not is_page:
        output = output or Path(COMPARISON_NAME)
        check_own(output)
        save_whole(output, comparison_page(comparison, folder=output.parent))
        yield output
    if json_path is not None:
        save_whole(json_path, comparison.to_json())
        yield json_path


def _write_page(folder: Path, output: Path | None) -> Path:
    from gflownet.report.page import page_of, read_run

    if output is not None:
        check_own(output)
        save_whole(output, page_of(read_run(folder)))
        return output
    page = page_of(read_run(folder))
    with locked_folder(folder):  # the run writes the same page
        check_own(folder / PAGE_NAME)
        write_whole(folder / PAGE_NAME, page)
    return folder / PAGE_NAME


def check_own(path: Path, *, option: str = "--output", mark: bytes = _PAGE_MARK) -> None:
    """Raise UserError if a file, folder or link at a path has not the mark of a file of gflownet."""
    head = b""
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    if (path.exists() or path.is_symlink()) and mark not in head:
        kind = "a page of gflownet" if mark is _PAGE_MARK else "an earlier comparison"
        raise UserError(f"{path}: expected no file or {kind}, got another one; choose {option} FILE")


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders in the order of the paths, those inside of one path by name, each once.

    Args:
        paths: run folders, folders with runs at any depth, or patterns with `*`. Of several paths, files are left out:
            a shell expands `logs/*` to all entries.

    Raises:
        UserError: no run at a path.
    """
    folders: dict[Path, Path] = {}
    for path in [path for path in paths if not path.is_file()] or paths:
        matches = [path]
        if not path.exists() and glob.has_magic(str(path)):
            matches = [Path(match) for match in sorted(glob.glob(str(path)), key=_natural)]
        runs = [run for match in matches for run in _runs_below(match)]
        if not runs:
            raise UserError(not_a_search(path) if is_run(path) else _without_run(path))
        for run in runs:
            folders.setdefault(run.resolve(), run)
    return list(folders.values())


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, of this version or an earlier one."""
    return (folder / MARKER_NAME).is_file() or (folder / CONFIG_NAME).is_file()


def _runs_below(folder: Path) -> Iterator[Path]:
    """Yield the folder if it holds the run of a search, else those inside of it."""
    for name, inner, _ in os.walk(folder):
        if is_run(Path(name)):
            inner.clear()
            marker = read_marker(Path(name))
            if marker is None or marker.is_search:
                yield Path(name)
        inner.sort(key=_natural)


def _without_run(path: Path) -> str:
    if not path.exists() and glob.has_magic(str(path)):
        return f"{path}: expected run folders, got a pattern that matches none"
    if not path.exists():
        return f"no such folder: {path}"
    return f"{path}: expected a run folder or a folder with runs, got neither"


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts seed_10 after seed_2."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", text)]


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
