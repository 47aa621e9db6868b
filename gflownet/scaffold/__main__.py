"""gflownet new KIND NAME: write a package with a class of your own."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from gflownet.config import config_names
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs.operation import OPERATIONS
from gflownet.objectives.config import OBJECTIVES
from gflownet.plugins import ExtensionPoint
from gflownet.policy.config import POLICIES
from gflownet.terminal.arguments import CommandLine, print_plain_messages, program, run_command

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")
# Words that YAML reads as truth values or as nothing.
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_RESERVED = {"tests", "test", "configs", "src"}


@dataclass(frozen=True)
class Kind:
    """A kind of class that a package may contain."""

    point: ExtensionPoint
    suffix: str  # of the class
    summary: str


KINDS = {
    "task": Kind(TASKS, "Task", "score of an architecture"),
    "environment": Kind(ENVIRONMENTS, "Context", "search space"),
    "objective": Kind(OBJECTIVES, "Objective", "loss of the policy"),
    "policy": Kind(POLICIES, "Policy", "policy network"),
    "operation": Kind(OPERATIONS, "Operation", "operation of architectures"),
}


def write_package(kind: str, name: str, *, parent: Path) -> list[Path]:
    """Write the folder `name` in `parent`, and return its files. Nothing is overwritten.

    Raises:
        UserError: a name that is no lower-case identifier, or is taken; a folder that exists or cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _RESERVED | _YAML_WORDS:
        expected = "expected a name of lower-case letters, digits and underscores between them"
        raise UserError(f"{kind}: {expected}, which names a Python module and is text in YAML, got {name!r}")
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{kind}: expected the name of a new folder, got {str(folder)!r}, which exists")
    point = KINDS[kind].point
    if name in point or name in config_names():
        raise UserError(f"{kind}: expected a new name, got {name!r}, which gflownet or an installed package has")
    if name in point.installed or importlib.util.find_spec(name) is not None:
        raise UserError(f"{kind}: expected a new name, got {name!r}, which is an installed module")
    camel = "".join(part.capitalize() for part in name.split("_"))
    values = {
        "name": name,
        "dashed": name.replace("_", "-"),
        "camel": camel,
        "class_name": camel.removesuffix(KINDS[kind].suffix) + KINDS[kind].suffix,
        "group": point.group,
        "kind": kind,
    }
    texts = {f"{name}/__init__.py": f'"""{camel}: a {kind} for gflownet."""\n'}
    places = {"config.yaml": f"{name}/configs/{name}.yaml", "test.py": f"tests/test_{name}.py"}
    for template in sorted((_TEMPLATES / kind).iterdir()):
        file = template.name.removesuffix(".txt")
        place = places.get(file, f"{name}/{file}" if file.endswith(".py") else file)
        texts[place] = Template(template.read_text(encoding="utf-8")).substitute(values)
    try:
        folder.mkdir(parents=True)
        for place, text in texts.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            with (folder / place).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from error
    return [folder / place for place in sorted(texts)]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the package and print the next commands; return the exit status."""
    return run_command(lambda: _write(command_line().parse_args(argv)))


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("new"),
        description="Write a package with a class of your own: the class, entry point, config, test and README. "
        "Nothing is overwritten.",
    )
    kinds = ", ".join(f"{name} ({kind.summary})" for name, kind in KINDS.items())
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=kinds)
    parser.add_argument("name", metavar="NAME", help="name of the class in configs, of the package and of its folder")
    parser.add_argument("--folder", default=".", metavar="FOLDER", help="where to write the package; default: here")
    return parser


def _write(arguments: argparse.Namespace) -> None:
    name = arguments.name
    for path in write_package(arguments.kind, name, parent=Path(arguments.folder)):
        print(f"wrote {path}")
    folder = shlex.quote(str(Path(arguments.folder) / name))
    use = f"task={name}" if arguments.kind in ("task", "environment") else f"--config {name}"
    print("\nnext:")
    print(f"  python -m pip install -e {folder} pytest")
    print(f"  python -m pytest {folder}")
    print(f"  gflownet train {use}")


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
