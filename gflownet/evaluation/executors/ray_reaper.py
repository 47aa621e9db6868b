"""End the processes of a local Ray node after its main process: python ray_reaper.py MAIN_PID RAYLET_PID.

A script of its own process, started by `ray_cluster`. Linux ends gcs_server and raylet with the main process, and
workers end with raylet, but Ray's two agents wait for a minute or more after a kill -9 of the main process.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

import psutil

# Set by Ray for workers and the processes that they start.
_NODE_VARIABLE = "RAY_RAYLET_PID"
_CHECK_EVERY_S, _END_TIMEOUT_S, _PAUSE_S = 2.0, 5.0, 0.02


def end_node_after(main_pid: int, raylet_pid: int) -> None:
    """Wait until stdin is closed or the main process has ended, then kill all processes of the node."""
    raylet = psutil.Process(raylet_pid)
    processes = {raylet}
    is_over = False
    while not is_over:
        with suppress(psutil.Error):
            processes.update(raylet.children(recursive=True))
        is_over = bool(select.select([sys.stdin], [], [], _CHECK_EVERY_S)[0]) or os.getppid() != main_pid
    end = time.monotonic() + _END_TIMEOUT_S
    while (running := _running(processes | _marked_processes(raylet_pid))) and time.monotonic() < end:
        for process in running:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(_PAUSE_S)


def _marked_processes(raylet_pid: int) -> set[psutil.Process]:
    marked = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_NODE_VARIABLE) == str(raylet_pid):
                marked.add(process)
    return marked


def _running(processes: set[psutil.Process]) -> set[psutil.Process]:
    running = set()
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.add(process)
    return running


if __name__ == "__main__":
    end_node_after(int(sys.argv[1]), int(sys.argv[2]))
