"""Parsing of the command line of gflownet.train, and the text of its --help."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gflownet.cli.arguments import CommandLine, help_width, program
from gflownet.config import DEFAULT_CONFIG, OPTIONS, config_names
from gflownet.errors import NEAR, UserError, did_you_mean, likeness
from gflownet.graphs.operation import OPERATIONS
from gflownet.options import Option, find_options, hint_of_option
from gflownet.records.trust import HELP
from gflownet.run.extensions import EXTENSION_POINTS

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


def command_line() -> CommandLine:
    """Return the parser of the flags; the other arguments are KEY=VALUE."""
    parser = CommandLine(
        prog=program("train"),
        description="Search neural architectures: sample computation graphs in proportion to their reward. "
        "Precedence: defaults, then the config, then KEY=VALUE, where the last one wins. Without --config, the config "
        f"with the name of the task is used, if there is one, and without a task the config {DEFAULT_CONFIG}.",
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this help and exit; with task=NAME, also its options")
    add("--version", action="store_true", help="show the version of gflownet and exit")
    add("--config", metavar="NAME", help="config to start from: a name, or the path of a YAML file")
    add("--print-config", action="store_true", help="print the merged config and exit")
    add("--trust", action="store_true", help=HELP)
    add("-q", "--quiet", action="store_true", help="only warnings, errors and the final table: console=quiet")
    add("-v", "--verbose", action="store_true", help="a line for each evaluation and start-up step: console=verbose")
    add(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="options, listed by --help; --KEY=VALUE and --KEY VALUE are accepted, too",
    )
    return parser


def parse(arguments: Sequence[str]) -> Command:
    """Parse the arguments; options and overrides may be mixed.

    Raises:
        UserError: an unknown option, or an option without its value.
    """
    parser = command_line()
    values = parser.parse_intermixed_args(list(_overrides_without_dashes(arguments, parser.option_names())))
    return Command(
        values.config,
        (*values.overrides, *console_overrides(values)),
        print_config=values.print_config,
        version=values.version,
        help=values.help,
        trust=values.trust,
    )


def console_overrides(values: argparse.Namespace) -> list[str]:
    """Return the overrides of --quiet and --verbose, after a check of --config. Raises UserError."""
    if values.config == "":
        raise UserError("--config: expected the name or the path of a config, got nothing")
    if values.quiet and values.verbose:
        raise UserError("expected at most one of --quiet and --verbose, got both")
    return ["console=quiet"] * values.quiet + ["console=verbose"] * values.verbose


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

    Args:
        schemas: further groups of options, those of the chosen classes: group -> dataclass.
    """
    added = [
        option for group, schema in (schemas or {}).items() if schema for option in find_options(schema, f"{group}.")
    ]
    options = [*OPTIONS.values(), *added]
    width = help_width()
    blocks = [
        command_line().format_help().rstrip(),
        textwrap.fill(
            f"configs: {', '.join(config_names())}, or the path of a YAML file", width, subsequent_indent=" " * 9
        ),
        *_installed_lines(width),
    ]
    for (group, title), members in groupby(options, key=lambda option: (option.group, option.group_help)):
        heading = textwrap.fill(f"{group}: {title}" if group else title, width, subsequent_indent="  ")
        blocks.append("\n".join([heading, *(option_lines(option, width) for option in members)]))
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


def option_lines(option: Option, width: int) -> str:
    """Return key, type, default and help of an option, for --help."""
    first = f"  {option.key:<{_KEY_WIDTH}}{option.type_name} = {option.default_text}"
    about = textwrap.fill(option.help, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{textwrap.fill(first, width, subsequent_indent=' ' * (_KEY_WIDTH + 2))}\n{about}"
