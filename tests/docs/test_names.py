"""Every option, file, command, class and function that the pages mention exists.

Checked are the words in backticks and the commands in code blocks.
"""

from __future__ import annotations

import builtins
import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from sphinx_site import options

from gflownet.config import OPTIONS
from gflownet.terminal.arguments import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
# Pages about earlier states of the project.
HISTORY = {"CHANGELOG.md", "changelog.md", "upgrading.md"}
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "_build" not in path.parts and path.name not in HISTORY
)
SUFFIXES = "py|pyi|yaml|yml|json|jsonl|md|ipynb|html|svg|csv|gz|npz|sqlite|safetensors|pt|toml|txt|sh|sbatch|xz|mk"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_OPTION = re.compile(r"([a-z_]+(?:\.[A-Za-z_]\w*)+)(?:=.*)?")
_FILE = re.compile(rf"[\w./*-]*\w\.(?:{SUFFIXES})")
_CLASS = re.compile(r"(?:[A-Z]\w*[a-z]\w*)(?:\.\w+)?(?:\(.*\))?")
_DEFINITION = re.compile(r"^\s*(?:async )?(?:class|def) (\w+)|^\s*(\w+)\s*(?::[^=\n]+)?=", re.MULTILINE)
# Suffixes, and names without one, of files whose text counts as source.
TEXTS = {".py", ".pyi", ".yaml", ".yml", ".toml", ".j2", ".html", ".css", ".js", "run", "Makefile"}
# Mistakes that a page shows, variables of an example in prose, formulas, headers, names of other libraries in prose.
OTHER_WORDS = {
    *("env.max_hiden_nodes", "model.to", "replay.add", "replay.sample", "search.end"),
    *("$ gflownet trian", "gflownet help COMMAND", "store --nmu", "train --opt", "train --wandb"),
    *("tasks_folder/choices.yaml", "Host", "P_e", "act(bias)", "act(post(aggregate) + bias)"),
    *("down(SiLU(gate(x) + beta) * up(x))", "MolBuildingEnv", "DiffusionSampling", "Box"),
}
# Libraries whose classes the pages name.
LIBRARIES = (
    *("torch", "torch.nn", "torch.optim", "torch.utils.data", "torch.nn.functional", "torch.distributions"),
    *("torch_geometric.data", "networkx", "numpy", "optuna", "optuna.samplers", "pathlib", "dataclasses", "typing"),
    *("sklearn.ensemble", "sklearn.neural_network", "sklearn.datasets", "sklearn.svm", "sklearn.neighbors", "signal"),
    *(
        "collections.abc",
        "functools",
        "multiprocessing",
        "http",
        "rich.console",
        "concurrent.futures",
        "torch.multiprocessing",
    ),
)


def text_of(page: Path) -> str:
    """Return a page without the cells of tables with a column `here` that stand in other columns.

    On the pages for users of other libraries, also without blocks that name no language.
    """
    text = page.read_text(encoding="utf-8")
    if page.parent.name == "coming-from":
        text = re.sub(r"^```\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines, column, is_table = [], None, False
    for line in text.splitlines():
        cells = line.strip("|").split("|") if line.startswith("|") else []
        if cells and not is_table:
            column = next((i for i, cell in enumerate(cells) if cell.strip() == "here"), None)
        is_table = bool(cells)
        lines.append(cells[column] if is_table and column is not None and column < len(cells) else line)
    return "\n".join(lines)


def words_of(page: Path) -> Iterator[str]:
    yield from _WORD.findall(_FENCE.sub("", text_of(page)))


@cache
def known_options() -> tuple[set[str], set[str]]:
    """Return all options, those of built-in classes included, and their groups."""
    keys = {row.option.key for row in options.documented_options()} | set(OPTIONS)
    groups = {key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1)}
    return keys, groups


def is_option(name: str) -> bool:
    keys, groups = known_options()
    parts = name.split(".")
    starts = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    # A key within an option with free keys, such as env.choices.places.width, or a group.
    return name in groups or bool(starts & keys)


def wrong_options(page: Path) -> Iterator[str]:
    keys, _ = known_options()
    first = {key.partition(".")[0] for key in keys if "." in key}
    for word in words_of(page):
        match = _OPTION.fullmatch(word)
        if match and match[1].partition(".")[0] in first and not _FILE.fullmatch(match[1]) and not is_option(match[1]):
            yield match[1]
    for _, code in _FENCE.findall(text_of(page)):
        for line in code.splitlines():
            if re.match(r"(python -m )?gflownet[. ]train ", line):
                yield from (
                    name for name in re.findall(r"(?<=\s)'?([a-z_]+(?:\.[a-z_]\w*)*)=", line) if not is_option(name)
                )


@cache
def sources() -> str:
    """Return the text of the package, tasks, scripts and configs: what a run writes is named there."""
    files = [
        path
        for name in ("gflownet", "tasks", "scripts", "configs", ".ci", ".github")
        for path in (ROOT / name).rglob("*")
    ]
    files += [ROOT / name for name in ("Makefile", "pyproject.toml", "tests/conftest.py")]
    return "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.is_file() and (path.suffix in TEXTS or path.name in TEXTS)
    )


@cache
def repository_files() -> set[str]:
    """Return the paths of the checkout, and every end of them."""
    folders = ("gflownet", "tasks", "scripts", "configs", "docs", "tests", ".ci", ".github")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
    parts = [path.relative_to(ROOT).parts for path in (*paths, *ROOT.iterdir())]
    return {"/".join(each[start:]) for each in parts for start in range(len(each))}


@cache
def written_files() -> set[str]:
    """Return the names of files and folders in the source; numbers and fields of f-strings are 0."""
    files = re.findall(rf"[\w{{}}.-]+\.(?:{SUFFIXES})\b", sources())
    return {_pattern(name) for name in (*files, *re.findall(r'"(\w+)"', sources()))}


def _pattern(name: str) -> str:
    return re.sub(r"\{[^}]*\}|\d+", "0", name)


def wrong_files(page: Path) -> Iterator[str]:
    """Yield file names that are neither in the checkout, nor written by the package, nor made in an example."""
    code = "\n".join(code for _, code in _FENCE.findall(page.read_text(encoding="utf-8")))
    for word in words_of(page):
        is_folder = bool(re.fullmatch(r"[a-z_]+(/[a-z_]+)*/", word))
        if not (is_folder or _FILE.fullmatch(word)) or "*" in word or re.search(r"\b[A-Z]{2,}\b", word):
            continue
        path = word.rstrip("/")
        name = path.rpartition("/")[2]
        is_made = _pattern(name) in written_files() or re.search(rf"\b{re.escape(name)}", code)
        if not is_made and path not in repository_files():
            yield word


def wrong_commands(page: Path) -> Iterator[str]:
    """Yield commands of gflownet, scripts and targets of make that do not exist, and unknown flags."""
    text = text_of(page)
    blocks = "\n".join(code for language, code in _FENCE.findall(text) if language in ("bash", "text", ""))
    for line in (*words_of(page), *blocks.splitlines()):
        flags = re.findall(r"(?<=\s)--[a-z][a-z-]*", re.split(r"[|#]", line)[0])
        if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?(?:python -m gflownet\.|gflownet )([a-z_.]+)", line):
            module = match[1].replace(".", "/")
            if match[1] in COMMANDS:
                yield from (f"{match[1]} {flag}" for flag in flags if flag not in flags_of(match[1]))
            elif not {f"gflownet/{module}.py", f"gflownet/{module}/__main__.py"} & repository_files():
                yield line
        elif match := re.match(r"(?:\.venv/bin/)?python (scripts/\w+\.py)", line):
            if not (ROOT / match[1]).exists():
                yield line
                continue
            known = ((ROOT / match[1]).read_text() + (ROOT / "scripts" / "bench.py").read_text()).replace("_", "-")
            yield from (f"{match[1]} {flag}" for flag in flags if not re.search(rf"\b{flag[2:]}\b", known))
        elif (match := re.match(r"make ([a-z][a-z-]*)$", line)) and match[1] not in make_targets():
            yield line


@cache
def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return {target for rule in rules for target in rule.split()}


@cache
def flags_of(command: str) -> set[str]:
    """Return the flags of a command; --quiet and --verbose of searches are read before its parser."""
    return COMMANDS[command].load().command_line().option_names()


@cache
def definitions() -> set[str]:
    """Return the names of classes, functions, methods, fields and constants of the package and of tasks/."""
    return {first or second for first, second in _DEFINITION.findall(sources())}


@cache
def library_names() -> set[str]:
    return {name for module in LIBRARIES for name in dir(importlib.import_module(module))} | set(dir(builtins))


def wrong_classes(page: Path) -> Iterator[str]:
    """Yield classes, and functions of gflownet, that neither the package, a library nor an example defines."""
    code = "\n".join(code for _, code in _FENCE.findall(page.read_text(encoding="utf-8")))
    own = {first or second for first, second in _DEFINITION.findall(code)} | set(re.findall(r"import (\w+)", code))
    for word in words_of(page):
        function = re.fullmatch(r"gflownet\.([a-z_.]+)\(.*\)|([a-z_]+)\(.*\)", word)
        if _CLASS.fullmatch(word) and not re.search(r"\s", word.partition("(")[0]):
            parts = word.partition("(")[0].split(".")
        elif function:
            parts = (function[1] or function[2]).split(".")
        else:
            continue
        known = definitions() | library_names() | own
        if any(part not in known for part in parts):
            yield word


@pytest.mark.parametrize("find", [wrong_options, wrong_files, wrong_commands, wrong_classes])
def test_names_of_the_pages_exist(find: Callable[[Path], Iterator[str]]) -> None:
    wrong = [f"{page.relative_to(ROOT)}: {word}" for page in PAGES for word in find(page) if word not in OTHER_WORDS]
    assert wrong == []


def test_names_that_do_not_exist_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`cond.focus_region`, `cond.focus.use`, `best_graph.json`, `run.json`, `top_graphs/`, "
        "`architectures/rank_7.svg`, "
        "`GFNTasks`, `GFNTask.words`, `gflownet.lode(FILE)`, `gflownet.load(FILE)`\n\n"
        "| theirs | here |\n|---|---|\n| `Their.thing` | `Ours.thing` |\n\n"
        "```bash\npython -m gflownet.train env.max_edgs=3 env.max_edges=3\npython -m gflownet.retrain\n"
        "make tests\nmake test\ngflownet store list logs --nun 3\npython scripts/bench_nothing.py\n"
        "python scripts/bench_rhn.py --quik --quick\n```\n"
    )
    assert list(wrong_options(page)) == ["cond.focus_region", "env.max_edgs"]
    assert list(wrong_files(page)) == ["best_graph.json", "top_graphs/"]
    assert list(wrong_classes(page)) == ["GFNTasks", "gflownet.lode(FILE)", "Ours.thing"]
    assert list(wrong_commands(page)) == [
        "python -m gflownet.retrain",
        "make tests",
        "store --nun",
        "python scripts/bench_nothing.py",
        "scripts/bench_rhn.py --quik",
    ]
