"""Figures of processes that the soak of the workers samples, also of one that was killed a moment ago."""

from __future__ import annotations

import os
import signal
import subprocess

from scripts.workers.processes import num_threads, private_bytes, shared_bytes


def test_memory_of_a_killed_process_is_zero() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert private_bytes(process.pid) > 0
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: it has ended and is not reaped
        assert (private_bytes(process.pid), shared_bytes(process.pid)) == (0, 0)
    assert (private_bytes(process.pid), shared_bytes(process.pid)) == (0, 0)
    assert num_threads(os.getpid()) >= 1
