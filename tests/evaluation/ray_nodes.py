"""Ray nodes on this machine, as `ray start` starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

_OPTIONS = ("--include-dashboard=false", "--disable-usage-stats")
_START_S = 120.0


@contextmanager
def running_node(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """Run the head of a cluster until the end of the block; yield its process and its address, which answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ("--head", f"--port={address.rpartition(':')[2]}", *_OPTIONS)
    with ray_node(*head, *arguments, **environment) as process:
        end = time.monotonic() + _START_S
        # A node is complete when its monitor writes the file of the cluster's address; a raylet serves jobs before.
        while not any("raylet" in each.name() for each in psutil.Process(process.pid).children()):
            assert process.poll() is None, "ray start has ended"
            assert time.monotonic() < end, "ray start has not finished"
            time.sleep(0.05)
        yield process, address


@contextmanager
def ray_node(*arguments: str, **environment: str) -> Iterator[subprocess.Popen]:
    """Run `ray start` until the end of the block, in the foreground; without tokens unless the environment has one."""
    pytest.importorskip("ray", reason="Ray is not installed")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory=80000000"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", **environment}
    variables.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [*command, *arguments], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(60)
        for child in children:
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                child.kill()
