"""Old paths of modules that the docs of the last release name, and `python -m gflownet.NAME` for every command."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any

MOVED = {
    "gflownet.asking": "gflownet.run.asking",
    "gflownet.autodiff.log_softmax": "gflownet.autodiff.factories",
    "gflownet.compare": "gflownet.cli.compare",
    "gflownet.completion": "gflownet.cli.completion",
    "gflownet.components": "gflownet.run.trainer",
    "gflownet.data.uniform": "gflownet.data.sampler",
    "gflownet.envs.hypergrid": "gflownet.envs.slots",
    "gflownet.generate": "gflownet.cli.generate",
    "gflownet.graphs.tensor_shape": "gflownet.operations.tensor_shape",
    "gflownet.graphs.vocabulary": "gflownet.operations.vocabulary",
    "gflownet.operations.composite": "gflownet.graphs.composite",
    "gflownet.rhn.stack_choices": "gflownet.rhn.config",
    "gflownet.sample_command": "gflownet.cli.sample",
    "gflownet.sampling": "gflownet.run.sampling",
    "gflownet.search.evolution": "gflownet.search.baselines",
    "gflownet.search.local_search": "gflownet.search.baselines",
    "gflownet.store": "gflownet.cli.store",
    "gflownet.trainer": "gflownet.run.trainer",
    "gflownet.translation.activations": "gflownet.operations.activations",
    "gflownet.translation.aggregations": "gflownet.operations.aggregations",
}
# Commands that never were modules: programs of `python -m`, not imports, so that they hide no name of the package.
PROGRAMS = {
    "gflownet.new": "gflownet.scaffold.__main__",
    "gflownet.sample": "gflownet.cli.sample",
    "gflownet.serve": "gflownet.rhn.server.__main__",
}
# Packages without some names that they had, and the package of those.
MOVED_NAMES = {"gflownet.metrics": "gflownet.certificate", "gflownet.operations": "gflownet.graphs"}


class _Finder(MetaPathFinder, Loader):
    """Finds old paths, and loads the module of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in MOVED or fullname in PROGRAMS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in PROGRAMS:
            raise ModuleNotFoundError(f"No module named {spec.name!r}; python -m {spec.name} runs it", name=spec.name)
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._specs[spec.name] = module.__spec__
        return module

    def get_code(self, name: str) -> CodeType:
        """Return the program of `python -m NAME`, for a command by its name."""
        return compile(
            f"import runpy; runpy.run_module({(MOVED | PROGRAMS)[name]!r}, run_name='__main__', alter_sys=True)",
            name,
            "exec",
        )

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
