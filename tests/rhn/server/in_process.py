"""A server in this process: the command runs in the main thread, its clients in another."""

from __future__ import annotations

import io
import os
import queue
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from gflownet.rhn.server.command import main
from scripts.serving.running_server import metrics_of, serving_at
from tests.rhn.server.clients import PATIENCE


@dataclass
class LocalServer:
    """Where a server of this process listens."""

    url: str  # without /v1
    is_stopping: bool = False

    @property
    def port(self) -> int:
        """That it listens on."""
        return int(self.url.rpartition(":")[2])

    def metrics(self) -> dict[str, float]:
        """Return the figures of /metrics."""
        return metrics_of(self.url)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process while the server handles it."""
        self.is_stopping = True
        os.kill(os.getpid(), number)


class _Lines(io.StringIO):
    """Standard output of the command, whose lines another thread waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.lines.put(text)
        return len(text)


def converse(folder: Path, talk: Callable[[LocalServer], None], **options: object) -> int:
    """Run the command of the server and a conversation with it; return the exit status.

    Args:
        folder: of the model.
        talk: called in another thread once the server listens; the server is stopped when it returns.
        options: of the command line, by name.
    """
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    output = _Lines()

    def run_talk() -> None:
        server = LocalServer(serving_at(output.lines.get(timeout=PATIENCE))[1])
        try:
            talk(server)
        finally:
            if not server.is_stopping:
                server.signal(signal.SIGTERM)

    # The command sets handlers of its own and leaves the defaults behind, of which one ends the process.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(1) as pool, redirect_stdout(output):
            talking = pool.submit(run_talk)
            status = main([str(folder), "--port", "0", *flags])
            talking.result(PATIENCE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status
