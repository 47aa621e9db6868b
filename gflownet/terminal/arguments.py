"""The family of commands, `gflownet COMMAND`, and their style: parser, usage line, messages and exit status."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from signal import SIGINT, SIGPIPE
from typing import Any, NoReturn

import gflownet
from gflownet.errors import UserError, did_you_mean, error_line, printable, summary_lines
from gflownet.terminal.interrupts import discard_output_that_fails, discard_output_without_reader


@dataclass(frozen=True)
class Command:
    """A command of the family."""

    module: str  # has main(argv) -> exit status, and command_line() -> CommandLine
    summary: str

    def load(self) -> Any:
        """Return the module."""
        return importlib.import_module(self.module)


COMMANDS = {
    "train": Command("gflownet.train", "search architectures"),
    "report": Command("gflownet.report.__main__", "rebuild the report of a run, or compare several runs"),
    "compare": Command("gflownet.cli.compare", "run search methods with several seeds and compare them"),
    "store": Command("gflownet.cli.store", "list, show, export and requeue evaluations"),
    "sample": Command("gflownet.cli.sample", "sample graphs from a finished run, with log-probabilities"),
    "generate": Command("gflownet.language.generate", "generate text from a saved language model"),
    "language": Command("gflownet.language.__main__", "train a language model on your own text"),
    "serve": Command("gflownet.rhn.server.__main__", "serve a saved language model with OpenAI's API"),
    "new": Command("gflownet.scaffold.__main__", "write a package with a class of your own"),
}

# Exit status 128 + N for signal N, as in shells.
EXIT_SIGNAL = 128
MAX_WIDTH = 100
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG)
_REQUIRED = "the following arguments are required: "
_UNKNOWN = "unrecognized arguments: "
_MISTYPED = re.compile(r"invalid (int|float) value: ")
_KINDS = {"int": "an integer", "float": "a number"}


class CommandLine(argparse.ArgumentParser):
    """Argument parser of a command: it raises UserError, and a misspelt word gets the nearest one."""

    def __init__(self, **options: Any) -> None:
        """Take the arguments of ArgumentParser; --version is added where --help is."""
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", partial(argparse.HelpFormatter, max_help_position=30, width=help_width()))
        super().__init__(**options)
        if self.add_help:
            self.add_argument(
                "--version",
                action="version",
                version=f"gflownet {gflownet.__version__}",
                help="show the version of gflownet and exit",
            )

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the name of the option first."""
        if message.startswith(_UNKNOWN):
            word = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
            hint = f"unknown option{did_you_mean(word, sorted(self.option_names()))}"
            message = f"{word}: {hint if word.startswith('-') else 'unexpected argument'}"
        elif message.startswith(_REQUIRED):
            message = f"expected {message.removeprefix(_REQUIRED)}, got nothing"
        message = _MISTYPED.sub(lambda match: f"expected {_KINDS[match[1]]}, got ", message)
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown option is reported before missing arguments."""
        for word in [] if args is None else args:
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self.option_names():
                self.error(f"{_UNKNOWN}{name}")
        return super().parse_known_args(args, namespace)

    def option_names(self) -> set[str]:
        """Return all options, those of subcommands included."""
        names = {name for action in self._actions for name in action.option_strings}
        return names.union(*(parser.option_names() for parser in self.subcommands().values()))

    def subcommands(self) -> dict[str, CommandLine]:
        """Return the parsers of subcommands by name."""
        return {
            name: parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, parser in action.choices.items()
        }

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        message = f"expected one of {', '.join(choices)}, got {value!r}{did_you_mean(str(value), choices)}"
        raise argparse.ArgumentError(action, message)


def help_width() -> int:
    """Return the width of help texts: of the terminal, at most MAX_WIDTH columns."""
    return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)


def program(command: str) -> str:
    """Return the words that start a command, as the user typed them: python -m or the installed script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "" if spec is None else spec.name.removesuffix(".__main__")
    if name == "gflownet":
        return f"python -m gflownet {command}".rstrip()
    return f"python -m {name}" if name.startswith("gflownet.") else f"gflownet {command}".rstrip()


def run_command(command: Callable[[], int | None]) -> int:
    """Run a command; return its exit status.

    0, 2 for an error of the user (one line on stderr; also a path that the system refuses), 1 for a run folder that was
    deleted, 128 + N after signal N, as in shells.
    """
    try:
        status = command()
        sys.stdout.flush()
    except SystemExit as exit:  # of argparse after --help and --version, of rich after a closed pipe
        if isinstance(exit.__context__, BrokenPipeError):
            return EXIT_SIGNAL + SIGPIPE
        return exit.code if isinstance(exit.code, int) else 0
    except UserError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return EXIT_SIGNAL + SIGINT
    except BrokenPipeError:
        if not discard_output_without_reader():
            raise
        return EXIT_SIGNAL + SIGPIPE
    except OSError as error:
        if error.errno in _REFUSED and error.filename:
            return _failed(UserError(f"{error.filename}: cannot be opened or changed ({error.strerror})"))
        if error.errno not in _FULL_DISK:
            raise
        return _failed(UserError(f"{error.filename or 'stdout'}: cannot be written ({error.strerror})"))
    finally:
        discard_output_that_fails()
    return status or 0


def print_plain_messages() -> None:
    """Print warnings and log records as single lines on stderr."""
    warnings.formatwarning = lambda message, *_: f"{_message_line(message)}\n"
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class OneLineFormatter(logging.Formatter):
    """Formats a log record as one line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _message_line(record.getMessage())


def positive_integer(text: str) -> int:
    """Return the number >= 1 of an argument."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text!r}")
    return int(text)


def _failed(error: UserError) -> int:
    for line in (*summary_lines(error.summary), error_line(error)):
        print(line, file=sys.stderr)
    return error.status


def _message_line(message: Warning | str) -> str:
    return f"warning: {printable(' '.join(str(message).split()))}"
