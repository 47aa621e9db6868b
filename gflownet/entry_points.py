"""Classes and configs of installed packages: entry points in the groups `gflownet.tasks`, `gflownet.environments`, ...

Nothing of a package is imported here: names, values and files come from its metadata and from the path of its module.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GROUPS = ("gflownet.tasks", "gflownet.environments", "gflownet.objectives", "gflownet.policies", "gflownet.operations")
# Folder with YAML files in a package.
_CONFIG_FOLDER = "configs"


@dataclass(frozen=True)
class InstalledClass:
    """An entry point of an installed package."""

    home: str  # module:Class, as the package writes it
    package: str  # name of the distribution


def installed_classes(group: str) -> dict[str, list[InstalledClass]]:
    """Return the entry points of a group by name, usually one per name; sorted by name and package."""
    classes: dict[str, list[InstalledClass]] = {}
    for row_group, name, value, package in _rows(tuple(sys.path)):
        if row_group == group:
            classes.setdefault(name, []).append(InstalledClass(value, package))
    return classes


def installed_config_folders() -> list[Path]:
    """Return the folders `configs` inside the packages that have entry points of gflownet."""
    return list(_config_folders(tuple(sys.path)))


@cache
def _rows(path: tuple[str, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Return group, name, value and package of every entry point; `path` is the search path, the key of the cache."""
    if not any(map(_may_have_rows, path)):
        return ()
    from importlib.metadata import entry_points  # 0.1 s with its scan

    points = entry_points()  # one scan for all groups
    rows = {
        (each.group, each.name, each.value.replace(" ", ""), each.dist.name if each.dist else "unknown")
        for each in (row for group in GROUPS for row in points.select(group=group))
    }
    return tuple(sorted(rows))


def _may_have_rows(place: str) -> bool:
    """Return whether metadata in a folder of the search path has one of the groups; True for an archive."""
    folder = Path(place)
    if not folder.is_dir():
        return folder.is_file()
    return any(b"[gflownet." in file.read_bytes() for file in folder.glob("*-info/entry_points.txt"))


@cache
def _config_folders(path: tuple[str, ...]) -> tuple[Path, ...]:
    modules = sorted({value.partition(":")[0].partition(".")[0] for _, _, value, _ in _rows(path)})
    folders = []
    for module in modules:
        try:
            spec = importlib.util.find_spec(module)  # of a top-level module: imports nothing
        except (ImportError, ValueError):
            continue
        places = [] if spec is None else spec.submodule_search_locations or []
        folders += [Path(place) / _CONFIG_FOLDER for place in places if (Path(place) / _CONFIG_FOLDER).is_dir()]
    return tuple(folders)
