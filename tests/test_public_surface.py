"""Every package resolves the names of its stub lazily, and the names that docs and tasks import exist."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gflownet

_IMPORT = re.compile(r"^\s*from (gflownet[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def packages(checkout: Path) -> list[str]:
    """Return the packages of gflownet/ with a stub."""
    stubs = sorted((checkout / "gflownet").rglob("__init__.pyi"))
    return [".".join(stub.parent.relative_to(checkout).parts) for stub in stubs]


def stub_names(stub: Path) -> list[str]:
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return sorted(alias.asname or alias.name for node in imports for alias in node.names)


def test_every_package_has_exports(checkout: Path) -> None:
    rooms = {path.parent.name for path in (checkout / "gflownet").glob("*/__init__.py")} - {"utils"}
    assert {name.partition(".")[2] for name in packages(checkout)} >= rooms


def test_package_resolves_every_name_of_its_stub(checkout: Path) -> None:
    for package in packages(checkout):
        module = importlib.import_module(package)
        names = stub_names(checkout / Path(*package.split(".")) / "__init__.pyi")
        assert sorted(module.__all__) == names
        assert set(names) <= set(dir(module))
        for name in names:
            assert getattr(module, name) is not None
            assert not isinstance(getattr(module, name), type(sys)), f"{package}.{name} is a module"
        with pytest.raises(AttributeError, match=rf"^No {package} attribute nonsense$"):
            _ = module.nonsense


def test_top_package_exports_have_their_own_names(checkout: Path) -> None:
    names = stub_names(checkout / "gflownet" / "__init__.pyi")
    assert [getattr(gflownet, name).__name__ for name in names] == names


def test_importing_packages_does_not_import_torch(checkout: Path) -> None:
    code = (
        "import sys, importlib; [importlib.import_module(name) for name in sys.argv[1:]]; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *packages(checkout)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_names_imported_by_docs_exist(checkout: Path) -> None:
    for page in [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]:
        for block in _PYTHON.findall(page.read_text(encoding="utf-8")):
            for module, several, single in _IMPORT.findall(block):
                for name in re.findall(r"\w+(?:\s+as\s+\w+)?", several or single.partition("#")[0]):
                    exported = name.split()[0]
                    assert hasattr(importlib.import_module(module), exported), f"{page.name}: {module}.{exported}"


def test_package_is_typed(checkout: Path) -> None:
    assert (checkout / "gflownet" / "py.typed").is_file()
