"""Plant faults one by one and measure the share that the fast tests notice.

    python scripts/mutants.py [--quick] [--json FILE] [--number N] [--seed N] [--jobs N] [--tests FILE] [--record FILE]
        [--replay FILE]

A fault is one of: a wrong sign, off by one, swapped branches, a dropped call, a wrong default. The same number is
planted in every room (a package of gflownet/, or its modules at the top level); the choice depends on the seed and on
the source of the room, and edits elsewhere do not change it. For every fault the tests of its room that are not marked
slow run with -x: the mirror of the module first, then test files that name the module, then the rest of the room with
its contracts. A failed or hanging run notices the fault, if the same test passes without it.

--tests takes the tests of another checkout, so that two suites see the same faults; --record writes every fault with
its verdict as JSON, --replay plants the faults of such a file again (those whose source still exists).
"""

from __future__ import annotations

import ast
import collections
import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench import Row, figure, finish, parse_arguments

ROOT = Path(__file__).resolve().parent.parent
NUM_FAULTS, NUM_QUICK = 80, 2
SECONDS = 400  # a longer run of tests counts as hanging
NOT_MUTATED = {"__init__.py", "__main__.py"}
COPIED = ("gflownet", "tasks", "configs", "scripts", "docs", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile")
OPPOSITES = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
# Contract suites of rooms, tests/contracts/test_NAME.py.
CONTRACTS = {
    "envs": ("environments",),
    "evaluation": ("evaluators", "executors", "tasks"),
    "objectives": ("objectives",),
    "operations": ("operations",),
    "policy": ("policies",),
    "search": ("search_methods", "surrogates"),
}
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\S+)?)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One replaced piece of source."""

    path: str  # relative to the checkout
    kind: str
    function: str  # qualified name, or <module>
    before: str
    after: str
    occurrence: int  # number of earlier places of the module with the same kind, function and texts

    @property
    def room(self) -> str:
        parts = Path(self.path).parts
        return parts[1] if len(parts) > 2 else "top level"

    def order(self, seed: int) -> str:
        """Return a key that sorts the faults of a room in a random order."""
        text = json.dumps([seed, *asdict(self).values()])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """Outcome of the tests with one fault."""

    fault: Fault
    noticed_by: str  # node of the first failing test, "hangs", or empty


class _Sites(ast.NodeVisitor):
    """Collect (kind, node, source afterwards) of every fault that a module can have."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.names: list[str] = []
        self.sites: list[tuple[str, str, ast.expr | ast.stmt, str]] = []

    def add(self, kind: str, node: ast.expr | ast.stmt, after: str) -> None:
        self.sites.append((kind, ".".join(self.names) or "<module>", node, after))

    def text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def visit_scope(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.names.append(node.name)
        if isinstance(node, ast.ClassDef):
            self.defaults([s.value for s in node.body if isinstance(s, ast.AnnAssign) and s.value is not None])
        else:
            self.defaults([*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)])
        for child in node.body:
            self.visit(child)
        self.names.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = visit_scope  # noqa: N815

    def defaults(self, values: Sequence[ast.expr]) -> None:
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float):
                after = str(not value.value) if isinstance(value.value, bool) else str(value.value + 1)
                self.add("wrong default", value, after)

    def visit_If(self, node: ast.If) -> None:
        test = self.text(node.test)
        if test != "TYPE_CHECKING":
            self.add("swapped branches", node.test, f"not ({test})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add("swapped branches", node.test, f"not ({self.text(node.test)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        opposite = OPPOSITES.get(type(node.op))
        strings = any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right))
        if opposite and not strings and not _is_text(node.left) and not _is_text(node.right):
            self.add("wrong sign", node, f"({self.text(node.left)}) {opposite} ({self.text(node.right)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self.add("wrong sign", node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operator = BOUNDARIES.get(type(node.ops[0]))
        if operator and len(node.ops) == 1:
            self.add("off by one", node, f"({self.text(node.left)}) {operator} ({self.text(node.comparators[0])})")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        index = node.slice
        if isinstance(node.ctx, ast.Load) and isinstance(index, ast.Constant) and isinstance(index.value, int):
            self.add("off by one", index, str(index.value + 1))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("dropped call", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:  # annotations are no code
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip the texts of errors."""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def faults_of(path: Path, root: Path) -> Iterator[tuple[Fault, tuple[int, int]]]:
    """Yield every fault of a module with its position: (offset, end) in characters."""
    source = path.read_text(encoding="utf-8")
    sites = _Sites(source)
    for node in ast.parse(source).body:
        sites.visit(node)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    seen: collections.Counter[tuple[str, ...]] = collections.Counter()
    for kind, function, node, after in sites.sites:
        key = (kind, function, sites.text(node), after)
        fault = Fault(str(path.relative_to(root)), *key, occurrence=seen[key])
        seen[key] += 1
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        yield fault, (offset(node.lineno, node.col_offset), offset(end_line, end_column))


def chosen_faults(root: Path, *, number: int, seed: int) -> list[Fault]:
    """Return about `number` faults: the same number in every room, of different kinds where the room has them."""
    rooms: dict[str, list[Fault]] = collections.defaultdict(list)
    for path in sorted((root / "gflownet").rglob("*.py")):
        if path.name not in NOT_MUTATED and "scaffold" not in path.parts:
            for fault, _ in faults_of(path, root):
                rooms[fault.room].append(fault)
    chosen: dict[str, list[Fault]] = {room: [] for room in sorted(rooms)}
    for turn in range(number):
        for room, faults in sorted(rooms.items()):
            if sum(map(len, chosen.values())) < number and faults:
                used = {fault.kind for fault in chosen[room]}
                fresh = [fault for fault in faults if fault.kind not in used] or faults
                chosen[room].append(min(fresh, key=lambda fault: fault.order(seed + turn)))
                faults.remove(chosen[room][-1])
    return sorted(itertools.chain(*chosen.values()), key=lambda fault: (fault.room, fault.path, fault.function))


def planted(fault: Fault, root: Path) -> str | None:
    """Return the source of the module with the fault, or None if the place no longer exists."""
    path = root / fault.path
    if not path.exists():
        return None
    for other, (start, end) in faults_of(path, root):
        if other == fault:
            source = path.read_text(encoding="utf-8")
            return source[:start] + fault.after + source[end:]
    return None


def test_files(fault: Fault, tests: Path) -> list[str]:
    """Return the test files of a fault's room, those most likely to notice it first."""
    module = Path(fault.path)
    dotted = ".".join(module.with_suffix("").parts)
    named = re.compile(
        rf"{re.escape(dotted)}\b|from {re.escape('.'.join(module.parent.parts))} import .*\b{module.stem}\b"
    )
    mirror = tests.joinpath(*module.parts[1:-1], f"test_{module.stem}.py")
    contracts = [tests / "contracts" / f"test_{name}.py" for name in CONTRACTS.get(fault.room, ())]
    ranked = []
    for path in sorted(tests.rglob("test_*.py")):
        inside = fault.room != "top level" and path.is_relative_to(tests / fault.room)
        names_it = bool(named.search(path.read_text(encoding="utf-8")))
        if path == mirror or inside or names_it or path in contracts:
            ranked.append(((path != mirror, not names_it, not inside), str(path.relative_to(tests.parent))))
    if fault.room == "top level" and len(ranked) < 3:
        ranked += [((True, True, True), f"tests/{name}") for name in ("test_trainer.py", "test_cli.py")]
    return list(dict.fromkeys(name for _, name in sorted(ranked)))


def copied_checkout(folder: Path, tests: Path) -> Path:
    """Copy what tests read into a folder, with the tests of `tests`; return its root."""
    for name in (
        *COPIED,
        "constraints.txt",
        "hashes.txt",
        "Makefile",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CITATION.cff",
        ".ci",
        ".github",
        ".gitignore",
    ):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    shutil.copytree(tests, folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run("git init -q && git add -A", shell=True, cwd=folder, check=True)  # some tests list its files
    return folder


def run_tests(root: Path, names: Sequence[str]) -> tuple[int, str]:
    """Run tests of a checkout with -x; return the exit status (-1: hangs) and the output."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *names],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return -1, ""
    return process.returncode, output


def verdict(fault: Fault, root: Path, source: str) -> Verdict:
    """Plant a fault, run its tests, restore the module."""
    module = root / fault.path
    original = module.read_text(encoding="utf-8")
    module.write_text(source, encoding="utf-8")
    try:
        status, output = run_tests(root, test_files(fault, root / "tests"))
    finally:
        module.write_text(original, encoding="utf-8")
    if status == -1:
        return Verdict(fault, "hangs")
    if status in (0, 5):  # 5: no test was collected
        return Verdict(fault, "")
    failed = FAILED.search(output)
    return Verdict(fault, failed[1] if failed else "collection of the tests")


def without_false_alarms(verdicts: Sequence[Verdict], root: Path) -> list[Verdict]:
    """Return the verdicts without tests that fail without any fault."""
    nodes = sorted({v.noticed_by for v in verdicts if v.noticed_by.startswith("tests/")})
    failing: set[str] = set()
    if nodes:
        _, output = run_tests(root, ["--maxfail=1000", *nodes])
        failing = set(FAILED.findall(output))
    return [Verdict(v.fault, "") if v.noticed_by in failing else v for v in verdicts]


def measured(faults: Sequence[Fault], tests: Path, *, jobs: int) -> list[Verdict]:
    """Return the verdict of every fault whose place exists, with a copy of the checkout per job."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        roots = [copied_checkout(Path(folder, str(job), "gflownet"), tests) for job in range(jobs)]
        free = collections.deque(roots)

        def judge(fault: Fault) -> Verdict | None:
            root = free.popleft()
            try:
                source = planted(fault, root)
                result = verdict(fault, root, source) if source is not None else None
            finally:
                free.append(root)
            outcome = "place is gone" if result is None else result.noticed_by or "SURVIVES"
            change = f"{fault.before!r} -> {fault.after!r}"
            print(f"{fault.path} {fault.function}: {fault.kind}: {change}: {outcome}", flush=True)
            return result

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            verdicts = [result for result in pool.map(judge, faults) if result is not None]
        return without_false_alarms(verdicts, roots[0])


def rows_of(verdicts: Sequence[Verdict]) -> list[Row]:
    """Return the shares of noticed faults: of all, and by kind."""
    rows = []
    for kind in ("all", *sorted({v.fault.kind for v in verdicts})):
        outcomes = [bool(v.noticed_by) for v in verdicts if kind in ("all", v.fault.kind)]
        rows.append(figure(f"noticed, {kind}", sum(outcomes) / len(outcomes), f"of {len(outcomes)} faults"))
    return rows


def main() -> int:
    """Plant the faults and return the exit status."""
    arguments = parse_arguments(
        __doc__,
        numbers={"number": "faults to plant", "seed": "seed of the choice", "jobs": "processes"},
        paths={"tests": "folder of tests", "record": "verdicts, as JSON", "replay": "faults of an earlier record"},
    )
    tests = (arguments.tests or ROOT / "tests").resolve()
    if arguments.replay:
        records = json.loads(arguments.replay.read_text(encoding="utf-8"))
        faults = [Fault(**{key: value for key, value in record.items() if key != "noticed_by"}) for record in records]
    else:
        number = arguments.number or (NUM_QUICK if arguments.quick else NUM_FAULTS)
        faults = chosen_faults(ROOT, number=number, seed=arguments.seed or 0)
    verdicts = measured(faults, tests, jobs=arguments.jobs or 1)
    if arguments.record:
        records = [{**asdict(v.fault), "noticed_by": v.noticed_by} for v in verdicts]
        arguments.record.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return finish(rows_of(verdicts), json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
