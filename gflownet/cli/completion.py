"""Completion of the command line with argcomplete: commands, flags, names of configs, and KEY=VALUE (no torch)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args, get_origin

from argcomplete.completers import FilesCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line

from gflownet.terminal.arguments import COMMANDS, CommandLine

if TYPE_CHECKING:
    from gflownet.options import Option


def complete(output: TextIO | None = None, exit: Callable[[int], Any] = os._exit) -> None:
    """Write the completions of the last word to the shell, which names the line in COMP_LINE, and end the process."""
    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]
    name = words[0] if words else ""
    if name in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # the arguments begin after two words: gflownet COMMAND
        parser = COMMANDS[name].load().command_line()
        _add_completers(parser, name, words[1:])
    else:
        parser = _all_commands(words)
    _Finder()(parser, always_complete_options=False, exit_method=exit, output_stream=output)


class _Finder(CompletionFinder):
    """Finds completions also of arguments after a flag, which argparse takes for unknown ones without a second pass."""

    def collect_completions(self, active_parsers: Any, parsed_args: argparse.Namespace, cword_prefix: str) -> list[str]:
        """Return the completions of a word."""
        parser = active_parsers[-1]
        if not getattr(parser, "active_actions", ()):
            parser.active_actions = [action for action in parser._get_positional_actions() if action.nargs == "*"]
        return super().collect_completions(active_parsers, parsed_args, cword_prefix)


def _all_commands(words: Sequence[str]) -> CommandLine:
    """Return a parser of `gflownet COMMAND` and `gflownet help COMMAND`."""
    commands = {name: command.summary for name, command in COMMANDS.items()}
    names: list[Mapping[str, str]] = [{**commands, "help": "show the help of a command"}]
    names.append(commands if words[:1] == ["help"] else {})
    parser = CommandLine(prog="gflownet")
    for dest, completions in zip(("command", "topic"), names, strict=True):
        action: Any = parser.add_argument(dest)
        action.completer = lambda completions=completions, **_: completions
    return parser


def _add_completers(parser: CommandLine, command: str, words: Sequence[str]) -> None:
    """Let argcomplete complete names of configs and KEY=VALUE; other values are choices or files."""
    from gflownet.config import config_names
    from gflownet.language.config import FLAG_KEYS, OPTIONS, ROOM

    own = {key: item for key, item in OPTIONS.items() if key not in FLAG_KEYS}  # of gflownet language

    def complete_option(*, prefix: str, **_: Any) -> dict[str, str]:
        options = own if command == "language" else _options_of_run(words, prefix)
        files = FilesCompleter()(prefix) if action.metavar != "KEY=VALUE" and "=" not in prefix else ()
        return _completions(options, prefix) | dict.fromkeys(files, "")

    for action in parser._actions:
        if action.dest == "config":
            action.completer = lambda **_: config_names(ROOM if command == "language" else "")  # type: ignore[attr-defined]
        elif "KEY=VALUE" in str(action.metavar) and not action.option_strings:
            action.completer = complete_option  # type: ignore[attr-defined]


def _completions(options: Mapping[str, Option], prefix: str) -> dict[str, str]:
    """Return KEY= with the help of each option, or KEY=VALUE after the =: its values, files where any value may be."""
    key, equals, value = prefix.partition("=")
    if not equals:
        return {f"{name}=": item.help for name, item in options.items()}
    values = _values(key, options[key].type_hint) if key in options else []
    return dict.fromkeys((f"{key}={each}" for each in values or FilesCompleter()(value)), "")


def _options_of_run(words: Sequence[str], prefix: str) -> dict[str, Option]:
    """Return the options of a run, with those of the classes that the words choose where the prefix begins one."""
    from gflownet.config import OPTIONS, command_config
    from gflownet.options import find_options
    from gflownet.run.extensions import choices
    from gflownet.run.parser import parse

    options = dict(OPTIONS)
    if not prefix.startswith(tuple(f"{name}." for name, item in OPTIONS.items() if item.type_name == "group")):
        return options
    try:
        command = parse(words)
        for point, name in choices(command_config(command.config, command.overrides)):
            if point.options_key and prefix.startswith(point.options_key) and (schema := point.load(name).Config):
                options |= {item.key: item for item in find_options(schema, f"{point.options_key}.")}
    except ValueError:  # a wrong word before has no completions
        pass
    return options


def _values(key: str, hint: Any) -> list[str]:
    """Return the values of an option: names of built-in classes, those of an enumeration, or true and false."""
    from gflownet.run.extensions import EXTENSION_POINTS

    for point in EXTENSION_POINTS:
        if point.key == key:
            return list(point)
    values = [value for part in (hint, *get_args(hint)) if get_origin(part) is Literal for value in get_args(part)]
    values = [True, False] if hint is bool else values
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
