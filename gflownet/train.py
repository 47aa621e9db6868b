"""python -m gflownet.train: read the config, build the trainer, run it."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import gflownet
from gflownet.cli import Command, help_text, parse
from gflownet.config import Config, command_config, to_yaml
from gflownet.config_checks import validate
from gflownet.errors import UserError, error_line, printable
from gflownet.extensions import option_schemas
from gflownet.interrupts import discard_output_that_fails, discard_output_without_reader
from gflownet.objectives.config import OBJECTIVES

if TYPE_CHECKING:
    from gflownet.trainer import GFNTrainer

EXIT_USER_ERROR = 2
# Exit status 128 + N for signal N, as in shells.
EXIT_SIGNAL = 128
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for user errors, 130 or 143 when interrupted."""
    try:
        with _refused_values_as_user_errors():
            trainer = _build(parse(sys.argv[1:] if argv is None else argv))
        stopped_by = None if trainer is None else trainer.run()
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        if not discard_output_without_reader():
            raise
        return EXIT_SIGNAL + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        print(
            error_line(UserError(f"{error.filename or 'stdout'}: cannot be written ({error.strerror})")),
            file=sys.stderr,
        )
        return EXIT_USER_ERROR
    finally:
        discard_output_that_fails()
    return 0 if stopped_by is None else EXIT_SIGNAL + stopped_by


def _build(command: Command) -> GFNTrainer | None:
    """Return the trainer; None after --help, --version or --print-config."""
    if command.version:
        print(f"gflownet {gflownet.__version__}")
        return None
    if command.help:
        print(help_text(_chosen_schemas(command)), flush=True)
        return None
    config = command_config(command.config, command.overrides)
    validate(config)
    if command.print_config:
        if config.algo.method != Config().algo.method:
            OBJECTIVES.load(config.algo.method).check_config(config)
        print(to_yaml(config), end="")
        return None
    # Imported here: --help and config errors do not wait for the import of torch.
    from gflownet.trainer import GFNTrainer

    return GFNTrainer(config)


def _chosen_schemas(command: Command) -> dict[str, type | None]:
    """Return the options of the classes that the command chooses; none, with a line on stderr, for a wrong command."""
    if not (command.config or command.overrides):
        return {}
    try:
        return option_schemas(command_config(command.config, command.overrides))
    except ValueError as error:
        print(error_line(error), file=sys.stderr)
        return {}


@contextmanager
def _refused_values_as_user_errors() -> Iterator[None]:
    """Turn a ValueError raised by gflownet into a UserError; other errors keep their traceback."""
    try:
        yield
    except ValueError as error:
        *_, (innermost, _line) = traceback.walk_tb(error.__traceback__)
        if not innermost.f_globals.get("__name__", "").startswith("gflownet."):
            raise
        raise UserError(str(error)) from None


class OneLineFormatter(logging.Formatter):
    """Formats a log record as one line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _line(record.getMessage())


def _line(message: Warning | str) -> str:
    return f"warning: {printable(' '.join(str(message).split()))}"


if __name__ == "__main__":
    warnings.formatwarning = lambda message, *_: f"{_line(message)}\n"
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    sys.exit(main())
