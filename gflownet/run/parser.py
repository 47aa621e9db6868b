"""Parsing of the command line of gflownet.train, and the text of its --help."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from gflownet.config import DEFAULT_CONFIG, OPTIONS, config_names
from gflownet.errors import NEAR, UserError, did_you_mean, likeness
from gflownet.graphs.operation import OPERATIONS
from gflownet.options import Option, find_options, hint_of_option
from gflownet.records.trust import HELP
from gflownet.run.extensions import EXTENSION_POINTS
from gflownet.terminal.arguments import CommandLine, help_width, program

_KEY_WIDTH = 40
_FREE_GROUPS = tuple(f"{key}." for key, option in OPTIONS.items() if option.type_name == "group")


@dataclass(frozen=True)
class Command:
    """The parsed command line."""

    config: str | None = None
    overrides: tuple[str, ...] = ()
    print_config: bool = False
    version: bool = False
    help: bool = False
    trust: bool = False

    @classmethod
    def of(cls, values: argparse.Namespace, overrides: Sequence[str], **further: Any) -> Self:
        """Return the command of the flags; --quiet and --verbose are the last overrides. Raises UserError."""
        if values.config == "":
            raise UserError("--config: expected the name or the path of a config, got nothing")
        if values.quiet and values.verbose:
            raise UserError("expected at most one of --quiet and --verbose, got both")
        console = ["console=quiet"] * values.quiet + ["console=verbose"] * values.verbose
        flags = {name: getattr(values, name) for name in ("config", "print_config", "version", "help", "trust")}
        return cls(overrides=(*overrides, *console), **flags, **further)


def command_line() -> CommandLine:
    """Return the parser of the flags; the other arguments are KEY=VALUE."""
    parser = run_parser(
        "train",
        "Search neural architectures: sample computation graphs in proportion to their reward. "
        "Precedence: defaults, then the config, then KEY=VALUE, where the last one wins. Without --config, the config "
        f"with the name of the task is used, if there is one, and without a task the config {DEFAULT_CONFIG}.",
        help_of_help="; with task=NAME, also its options",
        verbose="a line for each evaluation and start-up step",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="options, listed by --help; --KEY=VALUE and --KEY VALUE are accepted, too",
    )
    return parser


def run_parser(command: str, description: str, *, verbose: str, help_of_help: str = "") -> CommandLine:
    """Return the parser of the flags that all commands have that start a run."""
    parser = CommandLine(prog=program(command), description=description, add_help=False)
    add = parser.add_argument
    add("-h", "--help", action="store_true", help=f"show this help and exit{help_of_help}")
    add("--version", action="store_true", help="show the version of gflownet and exit")
    add("--config", metavar="NAME", help="config to start from: a name, or the path of a YAML file")
    add("--print-config", action="store_true", help="print the merged config and exit")
    add("--trust", action="store_true", help=HELP)
    add("-q", "--quiet", action="store_true", help="only warnings, errors and the final lines: console=quiet")
    add("-v", "--verbose", action="store_true", help=f"{verbose}: console=verbose")
    return parser


def parse(arguments: Sequence[str]) -> Command:
    """Parse the arguments; options and overrides may be mixed.

    Raises:
        UserError: an unknown option, or an option without its value.
    """
    parser = command_line()
    values = parser.parse_intermixed_args(list(_overrides_without_dashes(arguments, parser.option_names())))
    return Command.of(values, values.overrides)


def _overrides_without_dashes(arguments: Sequence[str], flags: set[str]) -> Iterator[str]:
    """Yield the arguments with --KEY=VALUE and --KEY VALUE, as sweeps write them, as KEY=VALUE.

    The value None, Python's name of null, is null.
    """
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if argument == "--config":  # its value is no override
            yield f"--config={next(remaining, '')}"
        elif name in flags or not argument.startswith("-"):
            yield argument
        elif equals and name.startswith("--"):
            yield f"{name.removeprefix('--')}={'null' if value == 'None' else value}"
        elif _is_key(key := name.removeprefix("--")):
            yield f"{key}={_separate_value(key, next(remaining, None))}"
        else:
            names = sorted(flag for flag in flags if flag.startswith("--"))
            hint = hint_of_option(key, next(remaining, "VALUE"), OPTIONS)
            is_flag = any(likeness(key, flag.removeprefix("--")) >= NEAR for flag in names)
            hint = did_you_mean(name, names) if is_flag or not hint else hint
            raise UserError(f"{argument}: expected one of {', '.join(names)} or KEY=VALUE{hint}")


def _separate_value(key: str, value: str | None) -> str:
    """Return the value after --KEY. Raises UserError for none, a flag, or an override of another option."""
    if value is None or value.startswith("--") or (_is_key(value.partition("=")[0]) and "=" in value):
        got = "nothing" if value is None else value
        raise UserError(f"--{key}: expected a value, for example --{key}=VALUE, got {got}")
    return "null" if value == "None" else value


def _is_key(key: str) -> bool:
    return key in OPTIONS or key.startswith(_FREE_GROUPS)


def help_text(schemas: Mapping[str, type | None] | None = None) -> str:
    """Return the usage and all options with type, default and help, as wide as the terminal, at most 100 columns.

    `schemas` are further groups of options with their dataclasses, those of the chosen classes.
    """
    added = [
        option for group, schema in (schemas or {}).items() if schema for option in find_options(schema, f"{group}.")
    ]
    return run_help(command_line(), config_names(), [*OPTIONS.values(), *added], notes=_installed_lines(help_width()))


def run_help(
    parser: CommandLine, configs: Sequence[str], options: Iterable[Option], *, notes: Sequence[str] = ()
) -> str:
    """Return the usage, names of configs, notes, and the options by group."""
    width = help_width()
    names = f"configs: {', '.join(configs)}, or the path of a YAML file"
    blocks = [parser.format_help().rstrip(), textwrap.fill(names, width, subsequent_indent=" " * 9), *notes]
    for (group, title), members in groupby(options, key=lambda option: (option.group, option.group_help)):
        heading = textwrap.fill(f"{group}: {title}" if group else title, width, subsequent_indent="  ")
        blocks.append("\n".join([heading, *(_option_lines(option, width) for option in members)]))
    return "\n\n".join(blocks)


def _installed_lines(width: int) -> list[str]:
    """Return the classes of installed packages, as one block; none without such packages."""
    lines = []
    for point in (*EXTENSION_POINTS, OPERATIONS):
        for name, offers in point.installed.items():
            packages = " and ".join(offer.package for offer in offers)
            hint = f"; the built-in class has this name: use {offers[0].home}" if name in point else ""
            option = f"operation {name}" if point is OPERATIONS else f"{point.key}={name}"
            lines.append(textwrap.fill(f"  {option} (package {packages}{hint})", width))
    return ["\n".join(["installed packages:", *lines])] if lines else []


def _option_lines(option: Option, width: int) -> str:
    """Return key, type, default and help of an option, for --help."""
    first = f"  {option.key:<{_KEY_WIDTH}}{option.type_name} = {option.default_text}"
    about = textwrap.fill(option.help, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{textwrap.fill(first, width, subsequent_indent=' ' * (_KEY_WIDTH + 2))}\n{about}"
