"""Start-up of a run on the console: its steps while they take time, and the details of a verbose run."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gflownet.cli.console import make_console, print_line
from gflownet.errors import counted

if TYPE_CHECKING:
    from gflownet.run.components import Components

# A finished step that took longer is printed where there is no terminal.
LONG_STEP_S = 5.0


class StartUp:
    """The steps before a run has its logs: one line that is replaced on a terminal, lines of long steps elsewhere."""

    def __init__(self, verbosity: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """Take the value of the option console."""
        self._verbosity, self._now = verbosity, now
        self._console = make_console()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show the step of the block."""
        start, shows_line = self._now(), self._console.is_terminal and self._verbosity != "quiet"
        if shows_line:
            self._rewrite(f"start-up: {name} ...")
        try:
            yield
        finally:
            if shows_line:
                self._rewrite("")
        seconds = self._now() - start
        is_long = seconds >= LONG_STEP_S and self._verbosity == "normal" and not self._console.is_terminal
        if is_long or self._verbosity == "verbose":
            print_line(self._console, f"start-up: {name}, {seconds:.1f} s")

    def _rewrite(self, text: str) -> None:
        """Replace the line of the cursor."""
        self._console.file.write(f"\r\x1b[K{text}")
        self._console.file.flush()


def start_details(run: Components) -> Iterator[str]:
    """Yield the details of a run that starts: versions, device, and the size of its components."""
    import torch

    config, num_parameters = run.config, sum(weight.numel() for weight in run.policy.parameters())
    python = platform.python_version()
    yield f"start-up: python {python}, torch {torch.__version__}, {run.device} with {torch.get_num_threads()} threads"
    yield (
        f"start-up: task {config.task}, environment {config.env.name}, policy {config.model.name} with "
        f"{counted(num_parameters, 'parameter')}, objective {config.algo.method}, search method {config.search.method}"
    )
    workers = counted(config.num_workers, "worker")
    yield f"start-up: executor {config.evaluation.executor}, {workers}, seed {config.seed}"
    yield f"start-up: step {run.step} of {run.num_steps}, run {run.run_id}, command {' '.join(sys.argv)}"
