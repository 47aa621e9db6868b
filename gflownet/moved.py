"""Modules that the docs of the last release name under an older path: they stay importable, with one warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

MOVED = {
    "gflownet.certification": "gflownet.certificate",
    "gflownet.graphs.tensor_shape": "gflownet.operations.tensor_shape",
    "gflownet.graphs.vocabulary": "gflownet.operations.vocabulary",
    "gflownet.metrics.automorphisms": "gflownet.certificate.automorphisms",
    "gflownet.metrics.certificate": "gflownet.certificate.figures",
    "gflownet.metrics.estimates": "gflownet.certificate.estimates",
    "gflownet.metrics.exact": "gflownet.certificate.exact",
    "gflownet.metrics.rules": "gflownet.certificate.rules",
    "gflownet.operations.composite": "gflownet.graphs.composite",
    "gflownet.asking": "gflownet.run.asking",
    "gflownet.components": "gflownet.run.trainer",
    "gflownet.trainer": "gflownet.run.trainer",
    "gflownet.translation.activations": "gflownet.operations.activations",
    "gflownet.translation.aggregations": "gflownet.operations.aggregations",
}
# Packages without some names that they had, and the package of those.
MOVED_NAMES = {"gflownet.metrics": "gflownet.certificate"}


class _Finder(MetaPathFinder, Loader):
    """Finds old paths, and loads the module of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import of the old path has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}


def install() -> None:
    """Make the old paths importable; they are looked up after all other places, so that other imports cost nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def with_moved_names(package: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that also finds the names that are elsewhere now."""

    def find(name: str) -> Any:
        try:
            return load(name)
        except AttributeError:
            new = MOVED_NAMES[package]
            if name.startswith("_") or not hasattr(import_module(new), name):
                raise
        warnings.warn(f"{package}.{name} is now {new}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(new), name)

    return find
