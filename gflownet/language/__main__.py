"""python -m gflownet.language: train a language model on your own text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import gflownet
from gflownet.config import config_names
from gflownet.language.config import FLAG_KEYS, OPTIONS, ROOM
from gflownet.records.trust import trusting
from gflownet.run.parser import Command as RunCommand
from gflownet.run.parser import run_help, run_parser
from gflownet.terminal.arguments import EXIT_SIGNAL, CommandLine, print_plain_messages, run_command

_OVERRIDE = re.compile(r"(--)?[A-Za-z_][\w.]*=.*", re.DOTALL)


@dataclass(frozen=True)
class Command(RunCommand):
    """The parsed command line."""

    files: tuple[str, ...] = ()
    from_run: str | None = None


def command_line() -> CommandLine:
    """Return the parser of the flags; the other arguments are FILE and KEY=VALUE."""
    parser = run_parser(
        "language",
        "Train a language model on your own text: UTF-8 files, or folders of them. The model in LOG_DIR/model answers "
        "prompts with gflownet generate and gflownet.rhn.server. Ctrl-C stops at the next step; resume=true continues.",
        verbose="a line for every step",
    )
    add = parser.add_argument
    add("--from", metavar="RUN", dest="from_run", help="train a model that a search has found, see rank=")
    add("words", nargs="*", metavar="FILE|KEY=VALUE", help="text files, folders, and the options listed below")
    return parser


def parse(arguments: Sequence[str]) -> Command:
    """Parse the arguments in any order; a word with = is an option unless a file has this name.

    Raises:
        UserError: an unknown option of the command line, or one without its value.
    """
    parser = command_line()
    flags = parser.option_names()
    plain = [
        word.removeprefix("--") if _OVERRIDE.fullmatch(word) and word.partition("=")[0] not in flags else word
        for word in arguments
    ]
    values = parser.parse_intermixed_args(plain)
    files = [word for word in values.words if os.path.exists(word) or not _OVERRIDE.fullmatch(word)]
    overrides = [word for word in values.words if word not in files]
    return Command.of(values, overrides, files=tuple(files), from_run=values.from_run)


def help_text() -> str:
    """Return the usage and all options with type, default and help."""
    shown = [option for option in OPTIONS.values() if option.key not in FLAG_KEYS]
    return run_help(command_line(), config_names(ROOM), shown)


__all__ = ["command_line", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for user errors, 130 or 143 when interrupted."""

    def language() -> int:
        command = parse(sys.argv[1:] if argv is None else argv)
        with trusting(command.trust):
            return train(command)

    return run_command(language)


def train(command: Command) -> int:
    """Train a model; return 0, or 128 + the signal that stopped the training."""
    if command.version:
        print(f"gflownet {gflownet.__version__}")
        return 0
    if command.help:
        print(help_text(), flush=True)
        return 0
    # Imported here and below: --help waits neither for OmegaConf nor for torch.
    from gflownet.config import default_folder, to_yaml
    from gflownet.language.config import check_start, command_config, validate

    config = command_config(command.config, command.overrides, files=command.files, from_run=command.from_run)
    if command.print_config:
        print(to_yaml(cast(Any, config)), end="")
        return 0
    validate(config)
    default = default_folder(config, command.config, command.overrides, ROOM)
    check_start(config)
    from gflownet.language.run import train_on_text

    stopped_by = train_on_text(config, default_folder=default)
    return 0 if stopped_by is None else EXIT_SIGNAL + stopped_by


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
