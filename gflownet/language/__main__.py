"""python -m gflownet.language: train a language model on your own text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import gflownet
from gflownet.language.command_line import Command, command_line, help_text, parse
from gflownet.records.trust import trusting
from gflownet.terminal.arguments import EXIT_SIGNAL, print_plain_messages, run_command

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
    from gflownet.config import to_yaml
    from gflownet.language.config import check_start, command_config, validate

    config = command_config(command.config, command.overrides, files=command.files, from_run=command.from_run)
    if command.print_config:
        print(to_yaml(cast(Any, config)), end="")
        return 0
    validate(config)
    check_start(config)
    from gflownet.language.run import train_on_text

    stopped_by = train_on_text(config)
    return 0 if stopped_by is None else EXIT_SIGNAL + stopped_by


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
