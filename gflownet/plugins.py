"""Extension points: each kind of pluggable class, chosen by a short name or by `module:Class` for a user's own.

Short names are those of built-in classes and of the entry points of installed packages (`installed_classes`). Only
subclasses of the contract are returned, so that a config cannot call arbitrary code.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gflownet.errors import NEAR, UserError, did_you_mean, likeness

# Groups of entry points that packages may declare.
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
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)  # of a top-level module: imports nothing
            places = [] if spec is None else spec.submodule_search_locations or []
            folders += [Path(place) / _CONFIG_FOLDER for place in places if (Path(place) / _CONFIG_FOLDER).is_dir()]
    return tuple(folders)


T = TypeVar("T")
_MODULE_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MAX_FILES = 1_000  # that are searched for a class
# Packages of which data of another user may name any class or function.
_KNOWN_PACKAGES = ("gflownet", "torch")
_foreign_source = ContextVar("_foreign_source", default="")  # file or folder of another user; empty: none


def is_module_class(name: object) -> bool:
    """Return whether a name has the form module:Class."""
    return isinstance(name, str) and _MODULE_CLASS.fullmatch(name) is not None


def is_available(home: str) -> bool:
    """Return whether data of another user may name module:Class: built in, already imported, or an entry point."""
    module, _, name = home.partition(":")
    if module.partition(".")[0] in _KNOWN_PACKAGES or isinstance(vars(sys.modules.get(module, sys)).get(name), type):
        return True
    return any(home == each.home for group in GROUPS for row in installed_classes(group).values() for each in row)


@contextmanager
def foreign_names(source: str) -> Iterator[None]:
    """Refuse to import what is not available, see `is_available`, inside of the block; `source` is for the error."""
    token = _foreign_source.set(source)
    try:
        yield
    finally:
        _foreign_source.reset(token)


def refusal(source: object, actions: str) -> str:
    """Return the error message for data of another user."""
    return f"{source}: written by another user's run; it would {actions}; pass --trust (in Python trust=True)"


class Configurable:
    """Base of the contracts whose classes may declare options: tasks, environments, policies and objectives."""

    # A dataclass of the class's own options, set under the option key of its extension point (`env.options.NAME`).
    Config: ClassVar[type | None] = None

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Check the root config before anything is built; overridden by classes that restrict other options.

        Raises:
            ValueError: an option that does not fit, in one line that starts with its key.
        """


@dataclass(frozen=True)
class BuiltIn:
    """A built-in class of an extension point."""

    home: str  # module:Class
    summary: str  # one phrase for --help and the docs


# Rows of packages above the package of their extension point, which names no class above it.
HIGHER_ROWS: Mapping[str, Mapping[str, BuiltIn]] = {
    "activation": {"rhn": BuiltIn("gflownet.rhn.operation:RHNActivation", "layer of a Recurrent Hyper Network")},
    "environment": {
        "catalogue": BuiltIn("gflownet.tasks.catalogue:CatalogueContext", "graphs listed in a file"),
        "recurrent_stack": BuiltIn("gflownet.tasks.recurrent_stacks:RecurrentStackContext", "stacks of RNN layers"),
    },
    "operation": {"rhn": BuiltIn("gflownet.rhn.operation:RHN", "layer of a Recurrent Hyper Network over a sequence")},
}


@dataclass(frozen=True, eq=False)
class ExtensionPoint:
    """A kind of pluggable class and its built-in ones. Iterates over their names."""

    key: str  # option that names the class: env.name
    contract: str  # module:Class of the base class
    built_in: Mapping[str, BuiltIn]
    options_key: str = ""  # group of the class's own options: env.options; empty: it has none
    group: str = ""  # of the entry points of installed packages: gflownet.environments; empty: none

    def __iter__(self) -> Iterator[str]:
        return iter(self.built_in)

    def __len__(self) -> int:
        return len(self.built_in)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in

    @property
    def homes(self) -> dict[str, str]:
        """Names of the built-in classes with their module:Class."""
        return {name: row.home for name, row in self.built_in.items()}

    def help(self, noun: str) -> str:
        """Return the help text of the option that names the class."""
        names = ", ".join(f"{name} ({row.summary})" for name, row in self.built_in.items())
        return f"{noun}: {names}, or module:Class of your own"

    @property
    def installed(self) -> dict[str, list[InstalledClass]]:
        """Entry points of installed packages by name, those with the name of a built-in class included."""
        return installed_classes(self.group) if self.group else {}

    def home(self, name: str) -> str:
        """Return module:Class of a built-in or moved class, or of an entry point; else `name`. Imports nothing.

        Raises:
            UserError: several packages have this entry point, or its value is not module:Class.
        """
        if name in self.built_in:
            return self.built_in[name].home
        if is_module_class(name) or name not in (installed := self.installed):
            return name
        offers = installed[name]
        if len({offer.home for offer in offers}) > 1:
            packages = " and ".join(offer.package for offer in offers)
            homes = " or ".join(offer.home for offer in offers)
            raise UserError(f"{self.key}: expected {homes}, got {name!r}, which the packages {packages} both define")
        if not is_module_class(offers[0].home):
            place = f"the entry point {name} of the package {offers[0].package}"
            raise UserError(f"{self.key}: expected {place} to be module:Class, got {offers[0].home!r}")
        return offers[0].home

    def check_name(self, name: str) -> None:
        """Raise ValueError unless `name` is built in, an entry point or of the form module:Class; imports nothing."""
        if name not in self.built_in and not is_module_class(self.home(name)):
            check_name(self.key, name, {**self.homes, **dict.fromkeys(self.installed, "")})

    def load(self, name: str, *others: type) -> Any:
        """Return the class of a built-in name, an entry point or `module:Class`. Raises as `load_class`.

        `others`: contracts that are accepted, too.
        """
        self.check_name(name)
        module, _, class_name = self.contract.partition(":")
        contract = getattr(importlib.import_module(module), class_name)
        return load_class(self.key, name, {name: self.home(name)}, contract=(contract, *others))


def check_name(key: str, name: str, homes: Mapping[str, str]) -> None:
    """Raise ValueError unless `name` is one of `homes` or has the form module:Class; imports nothing."""
    if name in homes or is_module_class(name):
        return
    if not homes:
        raise UserError(f"{key}: expected module:Class, got {name!r}")
    module, _, member = name.replace(":", ".").rpartition(".")
    hint = _file_hint(module, member) or did_you_mean(name, homes)
    raise UserError(f"{key}: expected one of {', '.join(homes)} or module:Class, got {name!r}{hint}")


def load_class(key: str, name: str, homes: Mapping[str, str], *, contract: type[T] | tuple[type[T], ...]) -> type[T]:
    """Return the concrete subclass of `contract`, or of one of several, with a built-in name or `module:Class`.

    Raises:
        ValueError: unknown name, a module that cannot be imported, a class that is missing, abstract or not a subclass
            of `contract`.
    """
    check_name(key, name, homes)
    module_name, class_name = homes.get(name, name).split(":")
    module = _imported(key, module_name, class_name)
    loaded = getattr(module, class_name, None)
    if not (isinstance(loaded, type) and issubclass(loaded, contract)):
        types = {n: each for n, each in vars(module).items() if isinstance(each, type) and issubclass(each, contract)}
        fitting = [f"{module_name}:{n}" for n, each in types.items() if not inspect.isabstract(each)]
        file = Path(getattr(module, "__file__", None) or module.__name__).name
        cause = "" if hasattr(module, class_name) else f", which {file} does not define"
        expected = " or ".join(each.__name__ for each in (contract if isinstance(contract, tuple) else (contract,)))
        raise UserError(f"{key}: expected a subclass of {expected}, got {name!r}{cause}{did_you_mean(name, fitting)}")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
        raise UserError(f"{key}: expected {name} to define {missing}, got an abstract class")
    config_class = getattr(loaded, "Config", None)
    if config_class is not None and not (isinstance(config_class, type) and is_dataclass(config_class)):
        raise UserError(f"{key}: expected {name}.Config to be a dataclass, got {config_class!r}")
    return loaded


def load_function(key: str, name: str, *, names: Iterable[str] = ()) -> Callable[..., Any]:
    """Return the function named `module:function`; `names` are short names that the option also allows, for the error.

    Raises:
        UserError: a name of another form, a module that cannot be imported, or a function that is missing.
    """
    if not _MODULE_CLASS.fullmatch(name):
        names = tuple(names)
        expected = f"one of {', '.join(names)} or module:function" if names else "module:function"
        raise UserError(f"{key}: expected {expected}, got {name!r}{did_you_mean(name, names)}")
    module_name, function_name = name.split(":")
    module = _imported(key, module_name, function_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [
            f"{module_name}:{n}" for n, member in vars(module).items() if callable(member) and not n.startswith("_")
        ]
        raise UserError(f"{key}: expected a function, got {name!r}{did_you_mean(name, public)}")
    return function


def _imported(key: str, module_name: str, member: str) -> Any:
    """Return a module. Raises UserError if it cannot be imported, or if data of another user names its member."""
    if _foreign_source.get() and not is_available(f"{module_name}:{member}"):
        raise UserError(refusal(_foreign_source.get(), f"import {module_name}:{member}"))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            hint = _file_hint(module_name, member)
            raise UserError(f"{key}: expected an importable module, got {module_name!r} ({error}){hint}") from error
        raise UserError(f"{key}: importing {module_name!r} failed: {error}") from error
    except Exception as error:  # raised by the user's own module
        raise UserError(f"{key}: importing {module_name!r} failed: {type(error).__name__}: {error}") from error


def _file_hint(module_name: str, member: str) -> str:
    """Return "; did you mean folder.module:Class?" for a near Python file with the class or function; else empty.

    Looks in the working folder and in its folders.
    """
    defines = re.compile(rf"^(class|def) {re.escape(member)}\b", re.MULTILINE)
    stem = module_name.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    homes = []
    for path in islice((path for pattern in ("*.py", "*/*.py") for path in Path().glob(pattern)), _MAX_FILES):
        home = f"{'.'.join(path.with_suffix('').parts)}:{member}"
        is_near = likeness(path.stem, stem) >= NEAR and is_module_class(home) and path.is_file()
        if is_near and defines.search(path.read_text("utf-8", "ignore")):
            homes.append(home)
    return did_you_mean(f"{module_name}:{member}", homes)
