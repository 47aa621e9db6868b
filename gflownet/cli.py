"""Parsing of the command line, and the text of --help."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gflownet.config import DEFAULT_CONFIG, OPTIONS, config_names, nearest_key
from gflownet.errors import UserError
from gflownet.options import Option, find_options

USAGE = "usage: python -m gflownet.train [--config NAME] [--print-config|--version|--help] [KEY=VALUE ...]"
MAX_WIDTH = 100
_KEY_WIDTH = 39


@dataclass(frozen=True)
class Command:
    """The parsed command line."""

    config: str | None = None
    overrides: tuple[str, ...] = ()
    print_config: bool = False
    version: bool = False
    help: bool = False


def parse(arguments: Sequence[str]) -> Command:
    """Parse the arguments; options and overrides may be mixed.

    Raises:
        UserError: an unknown option, or an option without its value.
    """
    config: str | None = None
    overrides: list[str] = []
    flags = {"--print-config": False, "--version": False, "--help": False}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name == "--config":
            config = value if equals else next(remaining, "")
            if not config:
                raise UserError("--config: expected the name or the path of a config, got nothing")
        elif argument == "-h":
            flags["--help"] = True
        elif argument in flags:
            flags[argument] = True
        elif argument.startswith("-"):
            example = f"{nearest_key(name.lstrip('-'))}={value or 'VALUE'}"
            names = "--config, --print-config, --version, --help"
            raise UserError(f"{argument}: expected one of {names} or KEY=VALUE, for example {example}")
        else:
            overrides.append(argument)
    print_config, version, help = flags.values()
    return Command(config, tuple(overrides), print_config=print_config, version=version, help=help)


def help_text(schemas: Mapping[str, type | None] | None = None) -> str:
    """Return the usage and all options with type, default and help, as wide as the terminal, at most 100 columns.

    Args:
        schemas: further groups of options, those of the chosen classes: group -> dataclass.
    """
    added = [
        option for group, schema in (schemas or {}).items() if schema for option in find_options(schema, f"{group}.")
    ]
    options = [*OPTIONS.values(), *added]
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    blocks = [
        USAGE,
        textwrap.fill(
            "Searches neural architectures: samples computation graphs in proportion to their reward. "
            "Precedence: defaults, then the config, then KEY=VALUE. Without --config, the config with the name of the "
            f"task is used, if there is one, and without a task the config {DEFAULT_CONFIG}. task=NAME --help (or "
            "another class) shows the options of that class, too.",
            width,
        ),
        textwrap.fill(
            f"configs: {', '.join(config_names())}, or the path of a YAML file", width, subsequent_indent=" " * 9
        ),
    ]
    for (group, title), members in groupby(options, key=lambda option: (option.group, option.group_help)):
        heading = textwrap.fill(f"{group}: {title}" if group else title, width, subsequent_indent="  ")
        blocks.append("\n".join([heading, *(_option_lines(option, width) for option in members)]))
    return "\n\n".join(blocks)


def _option_lines(option: Option, width: int) -> str:
    default = _default_text(option.default)
    first = f"  {option.key:<{_KEY_WIDTH}}{option.type_name} = {default}"
    about = textwrap.fill(option.help, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{textwrap.fill(first, width, subsequent_indent=' ' * (_KEY_WIDTH + 2))}\n{about}"


def _default_text(default: object) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return f"[{', '.join(map(str, default))}]"
    return str(default) or '""'
