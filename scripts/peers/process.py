"""Run a peer (torchgfn, gfnx) in its own virtual environment and process; PEER.txt has the commands that install it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

AS_IT_COMES: Mapping[str, str] = {}
# For glibc the equivalent of gflownet.workers.process.keep_freed_memory.
KEEPS_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


class PeerError(RuntimeError):
    """A peer is not installed or its process failed; the message is one line."""


def find_environment(peer: str) -> Path:
    """Return the Python of a peer's environment in the user's cache folder.

    Raises:
        PeerError: it is not installed or has other versions.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "gflownet-bench" / peer
    requirements = Path(__file__).with_name(f"{peer}.txt")
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, version = line.replace("-", "_").split("==")
            if not list(folder.glob(f"lib/python*/site-packages/{name}-{version}*.dist-info")):
                raise PeerError(f"{line} is not installed in {folder}: see scripts/peers/{peer}.txt")
    return folder / "bin" / "python"


class PeerProcess:
    """A process that answers each JSON line with one JSON line; a context manager.

    Args:
        python: the interpreter, as `find_environment` returns it.
        script: a file of this folder, or a path.
        variables: additional environment variables; here, the handling of freed memory.
    """

    def __init__(self, python: Path, script: str | Path, *, variables: Mapping[str, str] = AS_IT_COMES) -> None:
        path = Path(__file__).parent / script
        self._name = path.name
        # A file, because an unread pipe would fill up.
        self._stderr = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed on exit)
        self._process = subprocess.Popen(
            [str(python), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message and return its answer.

        Raises:
            PeerError: the answer is an error, or the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; readline returns nothing
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._stderr.seek(0)
            lines = self._stderr.read().strip().splitlines() or ["no output"]
            raise PeerError(f"{self._name}: ended with status {status}: {lines[-1].strip()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(f"{self._name}: {reply['error']}")
        return reply


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of the input with one line, `{"error": ...}` after an exception."""
    answers, sys.stdout = sys.stdout, sys.stderr  # library output is not an answer
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        try:
            result = handle(json.loads(line))
        except Exception as error:  # reported by the other process
            result = {"error": f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"}
        print(json.dumps(result), file=answers, flush=True)
