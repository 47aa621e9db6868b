"""python -m gflownet.train: read the config, build the trainer, run it."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import gflownet
from gflownet.errors import UserError, error_line
from gflownet.records.trust import limited, trusting
from gflownet.run.parser import Command, command_line, help_text, parse
from gflownet.terminal.arguments import EXIT_SIGNAL, print_plain_messages, run_command

if TYPE_CHECKING:
    from gflownet.run.trainer import GFNTrainer

__all__ = ["command_line", "main", "train"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for user errors, 130 or 143 when interrupted."""

    def search() -> int:
        command = parse(sys.argv[1:] if argv is None else argv)
        with trusting(command.trust):
            return train(command)

    return run_command(search)


def train(command: Command) -> int:
    """Build the trainer and run it."""
    start = time.monotonic()
    with _frozen_start(), _refused_values_as_user_errors():
        trainer = _build(command)
    if trainer is None:
        return 0
    trainer.start_seconds = time.monotonic() - start
    try:
        with limited(Path(trainer.config.log_dir)):
            stopped_by = trainer.run()
    finally:
        gc.unfreeze()
    return 0 if stopped_by is None else EXIT_SIGNAL + stopped_by


@contextmanager
def _frozen_start() -> Iterator[None]:
    """Pause the garbage collector, and let it skip the objects of the block until `gc.unfreeze`.

    Imports and tables make many objects and free few: to look at them again and again takes .6 CPU seconds of a start.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if is_enabled:
            gc.enable()


def _build(command: Command) -> GFNTrainer | None:
    """Return the trainer; None after --help, --version or --print-config."""
    if command.version:
        print(f"gflownet {gflownet.__version__}")
        return None
    if command.help:
        print(help_text(_chosen_schemas(command)), flush=True)
        return None
    # Imported here and below: --help waits neither for the checks nor for torch.
    from gflownet.config import Config, command_config, default_folder, to_yaml
    from gflownet.objectives.config import OBJECTIVES
    from gflownet.run.extensions import check_start, validate
    from gflownet.terminal.console import StartUp

    config = command_config(command.config, command.overrides)
    validate(config)
    if command.print_config:
        if config.algo.method != Config().algo.method:
            OBJECTIVES.load(config.algo.method).check_config(config)
        print(to_yaml(config), end="")
        return None
    default = default_folder(config, command.config, command.overrides)
    check_start(config)
    startup = StartUp(config.console)
    with startup.step("import of the packages"):
        from gflownet.run.trainer import build_trainer
    with startup.step(f"task {config.task} with its data, environment {config.env.name}, policy"):
        trainer = build_trainer(config)
    trainer.default_folder = default
    return trainer


def _chosen_schemas(command: Command) -> dict[str, type | None]:
    """Return the options of the classes that the command chooses; none, with a line on stderr, for a wrong command."""
    if not (command.config or command.overrides):
        return {}
    from gflownet.config import command_config
    from gflownet.run.extensions import option_schemas

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
    except UserError:
        raise
    except ValueError as error:
        *_, (innermost, _line) = traceback.walk_tb(error.__traceback__)
        if not innermost.f_globals.get("__name__", "").startswith("gflownet."):
            raise
        raise UserError(str(error)) from None


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
