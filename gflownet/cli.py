"""Parsing of the command line, and the text of --help."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gflownet.config import OPTIONS, config_names, nearest_key
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.options import Option

USAGE = "usage: python -m gflownet.train [--config NAME|PATH] [--print-config] [--help] [KEY=VALUE ...]"
MAX_WIDTH = 100
_KEY_WIDTH = 39


@dataclass(frozen=True)
class Command:
    """The parsed command line."""

    config: str | None = None
    overrides: tuple[str, ...] = ()
    print_config: bool = False
    help: bool = False


def parse(arguments: Sequence[str]) -> Command:
    """Return the command that the arguments spell; options and overrides may be mixed.

    Raises:
        UserError: an option that does not exist or lacks its value.
    """
    config: str | None = None
    overrides: list[str] = []
    flags = {"--print-config": False, "--help": False}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--config":
            config = value if equals else next(rest, "")
            if not config:
                raise UserError("--config: expected the name or the path of a config, got nothing")
        elif argument == "-h":
            flags["--help"] = True
        elif argument in flags:
            flags[argument] = True
        elif argument.startswith("-"):
            example = f"{nearest_key(name.lstrip('-'))}={value or 'VALUE'}"
            known = "--config, --print-config, --help"
            raise UserError(f"{argument}: expected one of {known} or KEY=VALUE, for example {example}")
        else:
            overrides.append(argument)
    return Command(config, tuple(overrides), print_config=flags["--print-config"], help=flags["--help"])


def help_text() -> str:
    """Return the usage and every option with its type, default and one line, as wide as the terminal, at most 100."""
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    blocks = [
        USAGE,
        textwrap.fill(
            "Searches neural architectures: samples computation graphs in proportion to their reward. "
            "Defaults < the config's values < KEY=VALUE on the command line. Without --config, the config that has "
            "the task's name, where there is one.",
            width,
        ),
        "\n".join(
            textwrap.fill(line, width, subsequent_indent=" " * 9)
            for line in (
                f"configs: {', '.join(config_names())}, or the path of a YAML file",
                f"tasks:   {', '.join(TASKS)}, or module:Class, a subclass of gflownet.GFNTask",
            )
        ),
    ]
    for (group, title), options in groupby(OPTIONS.values(), key=lambda option: (option.group, option.group_help)):
        heading = textwrap.fill(f"{group}: {title}" if group else title, width, subsequent_indent="  ")
        blocks.append("\n".join([heading, *(_option_lines(option, width) for option in options)]))
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
