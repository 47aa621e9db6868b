"""Rules of the source tree: layers of docs/architecture.md, circles, lines, function length, names, docstrings."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

MAX_FUNCTION_LINES = 60
FORBIDDEN_NAMES = {"misc", "common", "helpers", "helper", "util"}
# Rooms that should shrink, with at most so many lines of Python each: a commit that shortens one lowers its number. The
# ceilings of package, tests and scripts (lines, functions, nodes of the syntax tree) stand in lines.py, see .ci/run.
SHRINKING_ROOMS = {
    "evaluation": 12_879,
    "envs": 4_707,
    "search": 4_061,
    "operations": 4_674,
    "run": 5_171,
    "graphs": 4_784,
    "translation": 3_671,
    "report": 4_187,
}
NUM_PACKAGE_FILES = 371
NUM_DOC_WORDS = 88_558
# Lines that a room may have below its number before that has to follow.
SLACK = 150
# Top-level folders with Python code.
SOURCE_FOLDERS = ("gflownet", "tasks", "scripts", "tests")

# A package imports only packages in earlier rows, and in the first and the last row also others of its row, without
# circles. A set restricts an import to the named packages and those of the first two rows; None means no restriction.
LAYERS: tuple[dict[str, set[str] | None], ...] = (
    dict.fromkeys(("errors", "files", "options", "plugins", "terminal")),
    dict.fromkeys(("operations", "pictures", "records", "training", "workers")),
    {"graphs": set(), "autodiff": set()},
    {"translation": {"graphs"}, "mdp": {"graphs"}},
    {"envs": {"mdp", "graphs", "autodiff"}, "objectives": {"mdp"}, "policy": {"mdp"}, "rhn": {"graphs", "translation"}},
    {"evaluation": {"graphs", "translation", "autodiff", "rhn"}},
    {"learning": {"evaluation", "mdp", "objectives", "policy"}},
    {"certificate": None, "search": None},
    {"config": None},
    {"report": None},
    {"run": None},
    dict.fromkeys(
        ("cli", "compare", "generate", "language", "scaffold", "store", "testing", "train", "utils", "__main__")
    ),
)
# A string that names a module, alone, before a class or in front of a formatted name.
_ASKS_ATTRIBUTES = re.compile(r'attributes\.get\(|"\w+" (not )?in [\w.]*attributes\b|\b(node|edge)\.attributes\[')
ATTRIBUTE_READERS = {"gflownet/graphs/elements.py", "gflownet/graphs/element_problems.py"}
_MAY_NAME_MODULE = re.compile(r"[\"']gflownet\.\w+\.")
NAMED_MODULE = re.compile(r"(gflownet(\.\w+){2,})(:\w+|\.)?$")
# Files whose strings name modules of any layer: what a command runs, and rows of an extension point of a lower layer.
NAMING_FILES = {"gflownet/terminal/arguments.py", "gflownet/plugins.py"}
# Packages that every other package may import.
EVERYWHERE = {name for layer in LAYERS[:2] for name in layer}
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
ALLOWED_IMPORTS = {name: allowed for layer in LAYERS for name, allowed in layer.items()}
LOWEST_ABOVE_TASKS = DEPTH["learning"]


def python_files(root: Path) -> Iterator[Path]:
    for folder in SOURCE_FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def package_of(module: str) -> str:
    """Return the package of a module: graphs for gflownet.graphs.canonical, the empty string for gflownet itself."""
    return module.partition(".")[2].partition(".")[0]


@dataclass(frozen=True)
class Source:
    """Imports, functions and docstring of a file."""

    imports: list[tuple[int, str, bool]]  # line, module or name as a module, whether under TYPE_CHECKING
    # Line and module of every string that names a module: gflownet.graphs.canonical; whether it goes on with :Class.
    names: list[tuple[int, str, bool]]
    functions: list[tuple[str, int, int]]  # name, line, number of lines
    has_docstring: bool


@functools.cache
def source_of(text: str) -> Source:
    tree = ast.parse(text)
    source = Source([], [], [], has_docstring=bool(ast.get_docstring(tree)))
    for node, is_typing in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            source.functions.append((node.name, node.lineno, length))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                names = [module, *(f"{module}.{name}" for name in names)]
            source.imports.extend((node.lineno, name, is_typing) for name in names)
    for node in ast.walk(tree) if _MAY_NAME_MODULE.search(text) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := NAMED_MODULE.match(node.value)):
            source.names.append((node.lineno, match[1], (match[3] or "").startswith(":")))
    return source


def statements(node: ast.AST, *, is_typing: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield every statement, and whether it is under TYPE_CHECKING; faster than ast.walk, which visits expressions."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child, is_typing
            test = getattr(child, "test", None)
            is_guard = isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test).endswith("TYPE_CHECKING")
            yield from statements(child, is_typing=is_typing or is_guard)


def imports_of(root: Path, folder: str) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and module of every import, including those inside functions, except under TYPE_CHECKING."""
    for path in sorted((root / folder).rglob("*.py")):
        source = source_of(path.read_text(encoding="utf-8"))
        for line, module, is_typing in source.imports:
            if not is_typing:
                yield path.relative_to(root), line, module
        if str(path.relative_to(root)) not in NAMING_FILES:
            for line, module, _ in source.names:
                yield path.relative_to(root), line, module


def owner_of(path: Path) -> str:
    """Return the package or top-level module of gflownet that a file belongs to; the empty string for __init__.py."""
    name = path.with_suffix("").parts[1]
    return "" if name == "__init__" else name


def layer_problems(root: Path) -> list[str]:
    """Return the imports inside gflownet/ that violate the layers."""
    problems = []
    for path, line, module in imports_of(root, "gflownet"):
        owner, target = owner_of(path), package_of(module)
        where = f"{path}:{line}: {owner or 'gflownet'} imports {module}"
        if module.startswith("."):
            problems.append(f"{where}, relative")
        elif module.partition(".")[0] in ("tasks", "configs") or target in ("tasks", "configs"):
            problems.append(f"{where}, which is above the package")
        elif module.partition(".")[0] == "gflownet" and target and owner != target:
            if not owner:
                problems.append(f"{where}, but the package itself imports nothing")
            elif owner not in DEPTH or target not in DEPTH:
                problems.append(f"{where}, one of them has no layer")
            elif DEPTH[target] >= DEPTH[owner] and not DEPTH[target] == DEPTH[owner] in (0, len(LAYERS) - 1):
                problems.append(f"{where}, which is not below it")
            elif ALLOWED_IMPORTS[owner] is not None and target not in (ALLOWED_IMPORTS[owner] or set()) | EVERYWHERE:
                problems.append(f"{where}, which is not among {sorted(ALLOWED_IMPORTS[owner] or ())}")
    return problems


def task_problems(root: Path) -> list[str]:
    """Return the imports inside tasks/ from layers above the evaluation."""
    return [
        f"{path}:{line}: a task imports {module}"
        for path, line, module in imports_of(root, "tasks")
        if module.startswith("gflownet.")
        and package_of(module) != "tasks"
        and DEPTH.get(package_of(module), LOWEST_ABOVE_TASKS) >= LOWEST_ABOVE_TASKS
    ]


def circle_problems(root: Path) -> list[str]:
    """Return the packages of gflownet/ that are on an import circle."""
    graph: dict[str, set[str]] = {}
    for path, _, module in imports_of(root, "gflownet"):
        owner, target = owner_of(path), package_of(module)
        if module.startswith("gflownet.") and owner and owner != target:
            graph.setdefault(owner, set()).add(target)

    def reachable(start: str) -> set[str]:
        visited: set[str] = set()
        frontier = [start]
        while frontier:
            new = graph.get(frontier.pop(), set()) - visited
            visited |= new
            frontier.extend(new)
        return visited

    return [f"{package} imports itself through others" for package in sorted(graph) if package in reachable(package)]


def file_circle_problems(root: Path) -> list[str]:
    """Return the groups of files of gflownet/ that import each other, also by name in a string or for annotations.

    A string module:Class is a row of an extension point, which `gflownet.plugins` loads.
    """
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / "gflownet").rglob("*.py")
    }
    graph = networkx.DiGraph()
    for name, path in files.items():
        source = source_of(path.read_text(encoding="utf-8"))
        imported = {module for _, module, _ in source.imports}
        if str(path.relative_to(root)) not in NAMING_FILES:
            imported |= {module for _, module, is_class in source.names if not is_class}
        graph.add_edges_from((name, target) for target in (imported & files.keys()) - {name})
    circles = [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]
    return [f"circle of {', '.join(circle)}" for circle in sorted(circles)]


def room_problems(root: Path, rooms: Mapping[str, int]) -> list[str]:
    """Return the rooms with more lines than they may have, or so few that the number can be lowered."""
    paths = {room: (root / "gflownet" / room).rglob("*.py") for room in rooms}
    lines = {room: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths[room]) for room in rooms}
    return [
        f"gflownet/{room}: {lines[room]:,} lines, at most {most:,}"
        for room, most in rooms.items()
        if not 0 <= most - lines[room] <= SLACK
    ]


def length_problems(root: Path) -> list[str]:
    """Return the functions with more than MAX_FUNCTION_LINES lines."""
    return [
        f"{path.relative_to(root)}:{line}: {name} has {length} lines"
        for path in python_files(root)
        for name, line, length in source_of(path.read_text(encoding="utf-8")).functions
        if length > MAX_FUNCTION_LINES
    ]


def name_problems(root: Path) -> list[str]:
    """Return the files with a forbidden name; utils is allowed only as gflownet/utils and tests/utils."""
    problems = []
    for path in python_files(root):
        parts = [part.removesuffix(".py") for part in path.relative_to(root).parts]
        is_plumbing = parts[:2] in (["gflownet", "utils"], ["tests", "utils"])
        if FORBIDDEN_NAMES & set(parts) or "utils" in parts[2 if is_plumbing else 0 :]:
            problems.append(str(path.relative_to(root)))
    return problems


def package_docstring_problems(root: Path) -> list[str]:
    """Return the packages without a docstring."""
    return [
        str(path.relative_to(root))
        for path in sorted((root / "gflownet").rglob("__init__.py"))
        if not source_of(path.read_text(encoding="utf-8")).has_docstring
    ]


def attribute_problems(root: Path) -> list[str]:
    """Return the lines that read single attributes of nodes and edges outside of their readers."""
    return [
        f"{path.relative_to(root)}:{number}: expected a property of Node or Edge, got {found.group()}"
        for path in sorted((root / "gflownet").rglob("*.py"))
        if path.relative_to(root).as_posix() not in ATTRIBUTE_READERS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := _ASKS_ATTRIBUTES.search(line))
    ]


CHECKS = (
    attribute_problems,
    layer_problems,
    task_problems,
    circle_problems,
    file_circle_problems,
    length_problems,
    name_problems,
    package_docstring_problems,
)


@pytest.mark.cpu_seconds(5)
def test_source_tree_satisfies_every_check(checkout: Path) -> None:
    """One test, because the checks share the parsed files."""
    assert [problem for check in CHECKS for problem in check(checkout)] == []


def test_sizes_are_within_their_numbers(checkout: Path) -> None:
    assert room_problems(checkout, SHRINKING_ROOMS) == []
    assert len(list((checkout / "gflownet").rglob("*.py"))) <= NUM_PACKAGE_FILES
    pages = [path for path in (checkout / "docs").rglob("*.md") if "_build" not in path.parts]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in pages) <= NUM_DOC_WORDS


def test_rooms_report_a_module_more_and_many_lines_less(tmp_path: Path) -> None:
    module = tmp_path / "gflownet" / "run" / "a.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n" * 500)
    assert room_problems(tmp_path, {"run": 500}) == room_problems(tmp_path, {"run": 500 + SLACK}) == []
    assert room_problems(tmp_path, {"run": 501 + SLACK}) == ["gflownet/run: 500 lines, at most 651"]
    module.with_name("b.py").write_text("x = 1\n" * 50)
    assert room_problems(tmp_path, {"run": 500}) == ["gflownet/run: 550 lines, at most 500"]


# Violations that a check must detect: check, file, text of the file, words of the problem.
VIOLATIONS = (
    (attribute_problems, "gflownet/graphs/typed.py", 'x = node.attributes.get("repeat", 1)', "a property of Node"),
    (attribute_problems, "gflownet/report/a.py", 'x = "operation" in each.attributes', "a property of Node"),
    (attribute_problems, "gflownet/operations/a.py", 'x = edge.attributes["port"]', "a property of Node"),
    (layer_problems, "gflownet/graphs/a.py", "from gflownet.translation.code import x", "not below"),
    (layer_problems, "gflownet/graphs/a.py", "def f():\n    import gflownet.run.trainer", "not below"),
    (layer_problems, "gflownet/graphs/a.py", "from gflownet import mdp", "not below"),
    (layer_problems, "gflownet/operations/a.py", 'x = "gflownet.rhn.layers:RHNBlock"', "not below"),
    (layer_problems, "gflownet/envs/a.py", "import gflownet.policy.base", "not below"),
    (layer_problems, "gflownet/report/a.py", "from gflownet.run.parser import parse", "not below"),
    (layer_problems, "gflownet/terminal/arguments.py", "from gflownet.run.parser import parse", "not below"),
    (layer_problems, "gflownet/translation/a.py", "from gflownet.autodiff import x", "not among"),
    (layer_problems, "gflownet/learning/replay.py", "from gflownet.envs.config import x", "not among"),
    (layer_problems, "gflownet/newroom/a.py", "from gflownet.graphs import x", "no layer"),
    (layer_problems, "gflownet/graphs/a.py", "from .. import trainer", "relative"),
    (layer_problems, "gflownet/trainer.py", "from gflownet.tasks.digits import x", "above the package"),
    (layer_problems, "gflownet/trainer.py", "from tasks.digits import x", "above the package"),
    (layer_problems, "gflownet/__init__.py", "from gflownet.run.trainer import x", "imports nothing"),
    (task_problems, "tasks/mine.py", "from gflownet.run.trainer import GFNTrainer", "a task imports"),
    (task_problems, "tasks/mine.py", "def f():\n    import gflownet.learning.replay", "a task imports"),
    (circle_problems, "gflownet/graphs/a.py", "def f():\n    import gflownet.mdp.a", "through others"),
    (
        file_circle_problems,
        "gflownet/graphs/candidate.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gflownet.mdp.a import y",
        "gflownet.graphs.candidate, gflownet.mdp.a",
    ),
    (
        file_circle_problems,
        "gflownet/graphs/candidate.py",
        'from importlib import import_module\nimport_module("gflownet.mdp.a")',
        "gflownet.graphs.candidate, gflownet.mdp.a",
    ),
    (length_problems, "scripts/long.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
    (name_problems, "gflownet/graphs/helpers.py", "", "helpers"),
    (name_problems, "gflownet/misc/a.py", "", "misc"),
    (name_problems, "gflownet/graphs/utils.py", "", "utils"),
    (name_problems, "gflownet/utils/utils.py", "", "utils"),
    (package_docstring_problems, "gflownet/graphs/__init__.py", "import sys", "graphs"),
)


@pytest.mark.parametrize(("check", "name", "text", "words"), VIOLATIONS)
def test_check_detects_violation(
    check: Callable[[Path], list[str]], name: str, text: str, words: str, tmp_path: Path
) -> None:
    clean = {
        "gflownet/policy/base.py": "if TYPE_CHECKING:\n    from gflownet.run.trainer import GFNTrainer\n",
        "gflownet/mdp/a.py": "import torch\nfrom gflownet.graphs.candidate import x\n",
        "gflownet/utils/shared_buffer.py": "def f():\n" + "    x = 1\n" * 59,
        "tasks/digits.py": "from gflownet.evaluation.candidates.supervised import x\n",
    }
    for path, content in clean.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert check(tmp_path) == []
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    problems = check(tmp_path)
    assert problems
    assert all(words in problem for problem in problems)


def test_every_package_has_a_layer_and_is_documented(checkout: Path) -> None:
    folder = checkout / "gflownet"
    entries = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    names = {path.stem for path in entries} - {"__init__"}
    assert names <= set(DEPTH)
    text = (checkout / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [name for name in sorted(names) if name not in text] == []
