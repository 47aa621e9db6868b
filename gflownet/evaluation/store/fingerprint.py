"""Fingerprint of a task: digests of its source and of its data, so that an edited task scores again."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.config import scoring_context
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.task import GFNTask
from gflownet.files import cached
from gflownet.graphs.operation import graph_name
from gflownet.plugins import load_function


def data_digest(values: Iterable[Tensor | np.ndarray | bytes | str]) -> str:
    """Return a digest of arrays and texts, for `GFNTask.fingerprint`."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            value = array.tobytes()
        digest.update(len(value).to_bytes(8, "big"))
        digest.update(value)
    return digest.hexdigest()[:_DIGITS]


_DIGITS = 32
_FINGERPRINT = {"source", "data"}
_CLASS_NAME = re.compile(r"\w+(\.\w+)*:\w+")
# Name of the main script in processes that multiprocessing starts; __main__ is the same module there.
_MAIN_OF_CHILD = "__mp_main__"
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
# Modules that do not change the score of a graph: contracts, options, rewards, storage.
_NEUTRAL = (
    "gflownet.errors",
    "gflownet.files",
    "gflownet.options",
    "gflownet.plugins",
    "gflownet.evaluation.conditioning",
    "gflownet.evaluation.config",
    "gflownet.evaluation.presentation",
    "gflownet.evaluation.task",
)
# Options under `env` that do not change the score of a graph.
_NO_SCORE = {"name", "options", "choices", "start"}
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_log = logging.getLogger(__name__)


def context_of(task: GFNTask) -> str:
    """Return the scoring context of a task: its options, its source and its data."""
    digests = [source_digest(type(task)), *map(function_digest, outside_classes(task.config.env))]
    source = digests[0] if len(digests) == 1 else data_digest(digests)
    return scoring_context(task.config, source=source, data=task.fingerprint())


def outside_classes(env: Any) -> list[Callable[..., Any]]:
    """Return the operations, modules and activations that the options under `env` name as module:Class.

    The classes of torch and the environment itself do not count: neither changes the score of a graph.
    """
    options = OmegaConf.to_container(OmegaConf.create(env), resolve=True)
    assert isinstance(options, dict)
    names = {graph_name(text) for key, value in options.items() if key not in _NO_SCORE for text in _texts(value)}
    classes = []
    for name in sorted(names):
        if not _CLASS_NAME.fullmatch(name) or name.startswith(("torch.", "torch:")):
            continue
        try:
            loaded = load_function("env", name)
        except UserError:  # no class; the environment reports a missing one
            continue
        classes.append(loaded)
    return classes


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in nested containers, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from (*_texts(key), *_texts(entry))
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _texts(entry)


def source_digest(task_class: type) -> str:
    """Return a digest of the code of a class: its modules, and what they import from the same project folder.

    It is the same in every process that can import the class, and is computed from the files, not the loaded code.
    Docstrings, comments and the layout of the text do not count. Other installed packages do not count.

    Raises:
        UserError: a file that the class depends on has a syntax error.
    """
    return code_digest(modules_of(task_class))


def function_digest(function: Callable[..., Any]) -> str:
    """Return a digest of the code of a function, as `source_digest` does for a class. Raises as it does."""
    return code_digest(_modules_behind([function.__module__]))


def modules_of(task_class: type) -> dict[str, Path]:
    """Return names and files of the modules behind a class; a package counts where something is imported from it."""
    return _modules_behind(base.__module__ for base in task_class.__mro__)


def project_modules(names: Iterable[str]) -> dict[str, Path]:
    """Return names and files of those modules that are in no installed package, and of what they import likewise."""
    return _modules_behind(name for name in names if (path := _file_of(name)) and not _is_installed(path))


def _modules_behind(names: Iterable[str]) -> dict[str, Path]:
    modules: dict[str, Path] = {}
    for name in names:
        _add_module(name, modules)
    return modules


def _add_module(module_name: str, modules: dict[str, Path]) -> None:
    name = "__main__" if module_name == _MAIN_OF_CHILD else module_name
    path = _file_of(name)
    if path is not None and not _is_standard(path):
        _add_with_imports(name, path, _project_of(name, path), modules, {})


def code_digest(modules: dict[str, Path]) -> str:
    """Return a digest of the code of modules. Raises as `source_digest`."""
    digest = hashlib.sha256()
    for name, path in sorted(modules.items()):
        code, _ = _code_of(path, _package_of(name, path), path.stat().st_mtime_ns)
        digest.update(f"{name}\0{code}\0".encode())
    return digest.hexdigest()[:_DIGITS]


def report_earlier_versions(store: EvaluationStore) -> None:
    """Log one line if the store has evaluations of an earlier version of the task."""
    current = json.loads(store.context)
    num, changed = 0, set()
    for text, num_rows in store.num_by_context().items():
        try:
            other = json.loads(text)
        except ValueError:
            continue
        different = {key for key in current | other if current.get(key) != other.get(key)}
        if different and different <= _FINGERPRINT:
            num += num_rows
            changed |= different
    if num:
        names = " and ".join(sorted(changed, reverse=True))
        verb = "differ" if len(changed) > 1 else "differs"
        _log.warning(
            "%s: %d evaluations of an earlier version of the task are not used (its %s %s)",
            store.location,
            num,
            names,
            verb,
        )


def _add_with_imports(
    name: str, path: Path, project: Path, modules: dict[str, Path], known: dict[str, tuple[str, Path] | None]
) -> None:
    """Add a module and, recursively, the modules of the project folder that it imports."""
    if name in modules or name in _NEUTRAL:
        return
    modules[name] = path
    _, imports = _code_of(path, _package_of(name, path), path.stat().st_mtime_ns)
    for imported in imports:
        found = _found(imported, project, known)
        if found and found[0] not in modules and _is_in_project(*found, project=project, importer=name):
            _add_with_imports(*found, project, modules, known)


def _found(name: str, project: Path, known: dict[str, tuple[str, Path] | None]) -> tuple[str, Path] | None:
    """Return the module of a dotted name: the name itself, or the module of which it is an attribute."""
    if name not in known:
        parent = name.rpartition(".")[0]
        above = _found(parent, project, known) if parent else None
        has_modules = above is None or above[0] != parent or above[1].name == "__init__.py"
        path = _file_of(name) or (_unloaded_file_of(name, project) if has_modules else None)
        known[name] = above if path is None else (name, path)
    return known[name]


def _file_of(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return _resolved(file) if file is not None and file.endswith(".py") and os.path.isfile(file) else None


def _unloaded_file_of(name: str, project: Path) -> Path | None:
    top, *rest = name.split(".")
    parent = sys.modules.get(name.rpartition(".")[0])
    if parent is not None and not hasattr(parent, "__path__"):  # an attribute of a module
        return None
    for folder in getattr(sys.modules.get(top), "__path__", [project / top]):
        base = os.path.join(folder, *rest)
        for path in ([f"{base}.py"] if rest or not os.path.isdir(base) else []) + [os.path.join(base, "__init__.py")]:
            if os.path.isfile(path):
                return _resolved(path)
    return None


@lru_cache(maxsize=4096)
def _resolved(path: str) -> Path:
    return Path(path).resolve()


def _project_of(name: str, path: Path) -> Path:
    top = _file_of(name.partition(".")[0]) or path
    return top.parent.parent if top.name == "__init__.py" else top.parent


def _package_of(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _is_in_project(name: str, path: Path, *, project: Path, importer: str) -> bool:
    """Return whether a module is of the project; of an installed one, whether it is of the same package."""
    if not path.is_relative_to(project) or _is_standard(path):
        return False
    if _is_installed(project):
        return name.partition(".")[0] == importer.partition(".")[0]
    return not _is_installed(path)


def _imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, _BLOCKS):
            is_typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            if not is_typing:
                yield from _imported_names(node, package)


@lru_cache(maxsize=1024)
def _code_of(path: Path, package: str, _mtime: int) -> tuple[str, tuple[str, ...]]:
    """Return a digest of the code of a file, and the absolute names that it imports.

    Raises:
        UserError: the file is no Python code.
    """
    source = path.read_bytes()

    def analysed() -> bytes:
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            where = str(path) if error.lineno is None else f"{path}:{error.lineno}"
            raise UserError(f"{where}: expected Python code, got a syntax error ({error.msg})") from error
        imports = tuple(dict.fromkeys(_imported_names(tree, package)))
        return json.dumps([hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest(), imports]).encode()

    def read(content: bytes) -> tuple[str, tuple[str, ...]]:
        digest, imports = json.loads(content)
        return digest, tuple(imports)

    key = json.dumps([sys.version, package, hashlib.sha256(source).hexdigest()])
    return cached("sources.json", key, compute=analysed, parse=read)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows; expressions, most of a tree, have no docstrings
        nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, _BLOCKS)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


@lru_cache(maxsize=4096)
def _is_standard(path: Path) -> bool:
    return path.is_relative_to(_STANDARD) and not _is_installed(path)


@lru_cache(maxsize=4096)
def _is_installed(path: Path) -> bool:
    return any(part in _INSTALLED for part in path.parts)
