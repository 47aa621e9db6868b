"""A Ray cluster on this machine for tests, and tasks that misbehave in its workers."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.executors.ray_cluster import RayCluster
from gflownet.evaluation.task import Score
from tests.toy_tasks import RewardsHiddenNodes

NUM_CPUS = 2


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Start Ray with two CPUs; executors of this process use it."""
    pytest.importorskip("ray", reason="Ray is not installed")
    try:
        cluster = RayCluster("", num_cpus=NUM_CPUS)
    except UserError as error:
        pytest.skip(f"Ray does not start here: {error}")
    yield cluster
    cluster.close()


class WaitsOnce(RewardsHiddenNodes):
    """Waits to be killed in the first attempt, and scores 0.5 in the second; writes its process id into a folder."""

    def __init__(self, config, folder: Path) -> None:
        super().__init__(config)
        self.folder = str(folder)

    def evaluate(self, graph, *, seed):
        is_first = not list(Path(self.folder).glob("attempt-*"))
        Path(self.folder, f"attempt-{os.getpid()}").touch()
        if is_first:
            spin(self.folder)
        return Score(0.5)


class ActsBySeed(RewardsHiddenNodes):
    """Scores 0.5, or does what is listed for the seed of the candidate; writes its process id into a folder first."""

    def __init__(self, config, folder: Path) -> None:
        super().__init__(config)
        self.folder = str(folder)

    def evaluate(self, graph, *, seed):
        Path(self.folder, f"{seed}-{os.getpid()}").touch()
        action = ACTIONS.get(seed)
        if action is not None:
            action(self.folder)
        return Score(0.5)


def pause(folder: str) -> None:
    time.sleep(0.7)


def spin(folder: str) -> None:
    while True:
        pass


def hold_interpreter(folder: str) -> None:
    """Block in C code that does not release the interpreter's lock."""
    ctypes.PyDLL(None).sleep(1_000)


def start_child_and_wait(folder: str) -> None:
    """Start a process that outlives this one, and note its id."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(folder, f"child-{child.pid}").touch()
    spin(folder)


def allocate(folder: str) -> None:
    bytearray(30 * 2**30)


def read_null(folder: str) -> None:
    ctypes.string_at(0)


PAUSES, SPINS, HOLDS, EXITS, SEGFAULTS, CALLS_EXIT, STARTS_CHILD, ALLOCATES = range(1_000, 1_008)
ACTIONS: dict[int, Callable[[str], None]] = {
    PAUSES: pause,
    SPINS: spin,
    HOLDS: hold_interpreter,
    EXITS: lambda folder: os._exit(3),
    SEGFAULTS: read_null,
    CALLS_EXIT: lambda folder: sys.exit(3),
    STARTS_CHILD: start_child_and_wait,
    ALLOCATES: allocate,
}


def wait_until(condition: Callable[[], bool], *, timeout: float = 20.0) -> bool:
    """Return whether a condition holds within a time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
