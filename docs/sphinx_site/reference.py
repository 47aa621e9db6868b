"""The reference: one page per public package, its names and docstrings by Sphinx's autodoc."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

# Modules of the reference. gflownet itself comes first; a name is described where it first occurs.
MODULES = (
    "gflownet",
    "gflownet.translation",
    "gflownet.mdp",
    "gflownet.objectives",
    "gflownet.evaluation",
    "gflownet.search",
    "gflownet.autodiff",
)


def reference_section(module: str) -> str:
    """Return the descriptions of the public names of a module, as Markdown; empty for other pages."""
    if module not in MODULES:
        return ""
    described = set()
    for earlier in MODULES[: MODULES.index(module)]:
        described |= {id(member) for _, member in public_members(earlier)}
    lines = [f".. currentmodule:: {module}", ""]
    for name, member in public_members(module):
        if id(member) in described:
            continue
        lines += [*_directive(module, name, member), ""]
    return "\n".join(["", "", "```{eval-rst}", *lines, "```", ""])


def public_members(module: str) -> Iterator[tuple[str, object]]:
    """Yield the names of a module's `__all__` with their objects, without submodules."""
    loaded = importlib.import_module(module)
    for name in sorted(loaded.__all__, key=str.lower):
        member = getattr(loaded, name)
        if not isinstance(member, ModuleType):
            yield name, member


def _directive(module: str, name: str, member: object) -> list[str]:
    if inspect.isclass(member):
        return [f".. autoclass:: {module}.{name}", "   :members:"]
    if inspect.isroutine(member):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. py:data:: {module}.{name}"]
