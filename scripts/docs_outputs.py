"""Run the examples of docs/tutorial and the notebooks of docs/notebooks, and write their outputs into them.

python scripts/docs_outputs.py [--check] [--notebooks | --pages]

Each ```text block after a ```bash or ```python block shows its output. A line `...` in a block stands for lines left
out: as many lines before and after it are written as the block had (at least SHOWN). With --check, nothing is written;
exit status 1 if a page or notebook differs from a new run in more than its numbers.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbclient
import nbformat

CHECKOUT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((CHECKOUT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = sorted((CHECKOUT / "docs" / "tutorial").glob("[0-9]*.md"))
# File of a run -> picture of a page.
PICTURES = {"logs/digits_small/architectures/rank_0.svg": "tutorial-rank-0.svg"}
SHOWN = 3  # lines shown on a side of `...` in a block without others
_BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_OMITTED = "..."
_ANSI = re.compile(r"\x1b\[[\d;]*m")
_PATH = re.compile(r"/\S*/(tmp\w+/)?run\b")  # run folder of a notebook
_MAX_SECONDS = 600  # of a cell, on a busy machine


def run_page(text: str, folder: Path) -> str:
    """Return the page with the outputs of its examples, run in a folder in their order."""
    output: str | None = None

    def block(match: re.Match[str]) -> str:
        nonlocal output
        language, code = match.groups()
        if language == "text":
            shown, output = output, None
            return match[0] if shown is None else f"```text\n{abridged(shown, like=code)}```"
        file = _FILE.match(code)
        if file:
            (folder / file[1]).write_text(code, encoding="utf-8")
        else:
            output = output_of(language, code, folder)
        return match[0]

    return _BLOCK.sub(block, text)


def output_of(language: str, code: str, folder: Path) -> str:
    """Return what an example writes to standard output and standard error."""
    command = ["bash", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if language == "python" and done.returncode:
        raise RuntimeError(f"an example failed:\n{code}\n{done.stdout}")
    return done.stdout


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of the examples."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{folder}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "PYTHONWARNINGS": "ignore::ResourceWarning",
    }


def abridged(text: str, *, like: str) -> str:
    """Return an output with the lines left out that another version of it leaves out."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    if _OMITTED not in like.splitlines():
        return "".join(f"{line}\n" for line in lines)
    before, _, after = like.partition(f"{_OMITTED}\n")
    head = len(before.splitlines())
    tail = len(after.replace(f"{_OMITTED}\n", "").splitlines())
    if head == 0 and tail == 0:
        head, tail = SHOWN, 3 * SHOWN
    if len(lines) <= head + tail:
        return "".join(f"{line}\n" for line in lines)
    return "".join(f"{line}\n" for line in [*lines[:head], _OMITTED, *lines[len(lines) - tail :]])


def without_numbers(text: str) -> list[str]:
    """Return the lines with numbers, rules and runs of spaces made equal, to compare two runs."""
    lines = [re.sub(r"[-+]?[\d,.]*\d%?|─+|\s+", " ", line) for line in text.splitlines()]
    return [" ".join(line.split()) for line in lines]


def merged(outputs: Iterable[Any]) -> list[Any]:
    """Return outputs with the pieces of a stream, which arrive at random, as one; without colours and folders."""
    rows: list[Any] = []
    for output in outputs:
        if "text" not in output:
            rows.append(output)
            continue
        output["text"] = _PATH.sub("RUN", _ANSI.sub("", output["text"])).replace("\r\n", "\n")
        if rows and rows[-1].get("name") == output["name"]:
            rows[-1]["text"] += output["text"]
        else:
            rows.append(output)
    return rows


def run_notebook(text: str) -> str:
    """Return a notebook with the outputs of its cells, run in order in an empty folder."""
    notebook = nbformat.reads(text, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=_MAX_SECONDS, record_timing=False, resources={"metadata": {"path": folder}}
        ).execute(env={**os.environ, **variables(Path(folder))})
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = merged(cell.outputs)
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


def differs(old: str, new: str, *, name: str) -> bool:
    """Return whether two versions differ in more than numbers; print how."""
    lines = list(difflib.unified_diff(without_numbers(old), without_numbers(new), name, f"{name}, new", lineterm=""))
    print("\n".join(lines))
    return bool(lines)


def update(file: Path, new: str, *, check: bool) -> bool:
    """Write a file, or compare it with its new version; return whether it differs."""
    if check:
        return differs(file.read_text(encoding="utf-8"), new, name=file.name)
    file.write_text(new, encoding="utf-8")
    return False


def run_pages(*, check: bool) -> list[bool]:
    """Run the tutorial in one folder; return for each page whether it differs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(CHECKOUT / "tests" / "data", folder / "tests" / "data")
        differing = [update(page, run_page(page.read_text(encoding="utf-8"), folder), check=check) for page in PAGES]
        if not check:
            for source, picture in PICTURES.items():
                shutil.copyfile(folder / source, CHECKOUT / "docs" / "images" / picture)
    return differing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; compare, numbers aside")
    parser.add_argument("--notebooks", action="store_true", help="only the notebooks")
    parser.add_argument("--pages", action="store_true", help="only the tutorial")
    options = parser.parse_args(arguments)
    differing: list[bool] = []
    if not options.pages:
        differing += [
            update(path, run_notebook(path.read_text(encoding="utf-8")), check=options.check) for path in NOTEBOOKS
        ]
    if not options.notebooks:
        differing += run_pages(check=options.check)
    return int(any(differing))


if __name__ == "__main__":
    sys.exit(main())
