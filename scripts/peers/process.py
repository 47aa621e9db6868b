"""A peer that runs in a process of its own beside ours, and does one batch at a time when it is told to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from scripts.peers.environment import PeerError

TORCHGFN_SIDE = Path(__file__).with_name("torchgfn_side.py")
AS_IT_COMES: Mapping[str, str] = {}
# To glibc what gflownet.workers.process.keep_freed_memory is to a process that runs already.
KEEPS_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


@dataclass(frozen=True)
class Cost:
    """What one batch cost and gave."""

    cpu_seconds: float  # of the peer's process, one thread
    system_seconds: float  # the part of them that the kernel took
    num_trajectories: int
    num_states: int  # which the policy was asked about: those before each action, with the last before Stop
    num_policy_calls: int


class PeerProcess:
    """A long-lived process that answers one JSON line for each that it is sent; a context manager.

    Args:
        python: the interpreter, e.g. the one that `make_environment` returns.
        script: what it runs.
        variables: of its environment, beside those of this process; here, what it does with freed memory.
    """

    def __init__(
        self, python: Path, script: Path = TORCHGFN_SIDE, *, variables: Mapping[str, str] = AS_IT_COMES
    ) -> None:
        self._name = script.name
        # A pipe that nobody reads would fill up.
        self._complaints = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed on exit)
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def ask(self, do: str, *, batch: int, **settings: Any) -> Cost:
        """Let the peer `sample` a batch, or `train` one step on it, and return what that cost.

        Raises:
            PeerError: the peer refused, or its process ended.
        """
        return Cost(**self.request({"do": do, "batch": batch, **settings}))

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send the peer one message and return its answer.

        Raises:
            PeerError: the peer refused, or its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and there is no answer to read
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise PeerError(f"{self._name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().strip().splitlines() or ["without a word"]
        return f"ended with status {status}: {lines[-1].strip()}"
