"""The family of commands, `gflownet COMMAND`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


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
    "store": Command("gflownet.cli.store", "list, show, export, import and requeue evaluations"),
    "sample": Command("gflownet.cli.sample", "sample graphs from a finished run, with log-probabilities"),
    "generate": Command("gflownet.cli.generate", "generate text from a saved language model"),
    "language": Command("gflownet.language.__main__", "train a language model on your own text"),
    "serve": Command("gflownet.rhn.server.__main__", "serve a saved language model with OpenAI's API"),
    "new": Command("gflownet.scaffold.__main__", "write a package with a class of your own"),
    "completion": Command("gflownet.cli.completion", "print the completion script of a shell"),
}
