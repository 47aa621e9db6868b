"""Start the HTTP server in another process, on a port of the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

CHECKOUT = Path(__file__).resolve().parent.parent
_SERVING = re.compile(r"serving (\S+) at (http://\S+)/v1")


@dataclass(frozen=True)
class RunningServer:
    """A running server process and its address."""

    process: subprocess.Popen[str]
    model: str
    url: str  # without /v1

    @property
    def port(self) -> int:
        """Return the port number."""
        return int(self.url.rpartition(":")[2])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of /metrics by name, followed by the values of their labels."""
        return metrics_of(self.url)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def metrics_of(url: str) -> dict[str, float]:
    """Return the metrics of a server's /metrics by name, followed by the values of their labels."""
    from prometheus_client.parser import text_string_to_metric_families  # of the extra [serve]

    with urlopen(f"{url}/metrics", timeout=60) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def serving_at(line: str) -> tuple[str, str]:
    """Return the model and the URL (without /v1) from the line that a server prints at start.

    Raises:
        RuntimeError: the line has another form.
    """
    match = _SERVING.fullmatch(line.rstrip("\n"))
    if match is None:
        raise RuntimeError(f"expected the server's line 'serving MODEL at URL/v1', got {line!r}")
    return match[1], match[2]


@contextmanager
def running_server(folder: Path, *, port: int = 0, **options: object) -> Iterator[RunningServer]:
    """Start `python -m gflownet.rhn.server`; kill it at the end if it still runs.

    Args:
        folder: the model's folder.
        port: 0 chooses a free port.
        options: command-line options by name.

    Raises:
        RuntimeError: the process ended before it served.
    """
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "gflownet.rhn.server", str(folder), "--port", str(port), *flags]
    # One compute thread leaves the other cores to the clients.
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RunningServer(process, *serving_at(process.stdout.readline()))
        finally:
            process.kill()
