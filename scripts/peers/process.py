"""torchgfn in its own virtual environment (it needs numpy < 2) and process; this file installs the environment.

python scripts/peers/process.py [FOLDER]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

# The requirements that affect behaviour and speed; torch has the version of constraints.txt.
REQUIREMENTS = (
    "torchgfn==2.4.1",
    "torch==2.13.0",
    "torch-geometric==2.8.1",
    "tensordict==0.15.3",
    "numpy==1.26.4",
)
_STAMP = "gflownet-bench.txt"  # lists the installed requirements; marks the folder as ours
AS_IT_COMES: Mapping[str, str] = {}
# For glibc the equivalent of gflownet.workers.process.keep_freed_memory.
KEEPS_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


class PeerError(RuntimeError):
    """torchgfn is not installed or its process failed; the message is one line."""


def default_folder() -> Path:
    """Return the folder of the environment, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gflownet-bench" / "torchgfn"


def find_environment(folder: Path | None = None) -> Path:
    """Return the Python of the installed environment.

    Raises:
        PeerError: it is not installed or has other versions.
    """
    folder = folder or default_folder()
    if not _is_complete(folder):
        raise PeerError(f"torchgfn is not installed in {folder}: python scripts/peers/process.py")
    return folder / "bin" / "python"


def install_environment(folder: Path | None = None) -> Path:
    """Install the environment unless it is complete (takes about a minute), and return its Python.

    Raises:
        PeerError: the folder holds other files, or an installation failed.
    """
    folder = folder or default_folder()
    python, stamp = folder / "bin" / "python", folder / _STAMP
    if not _is_complete(folder):
        _clear(folder, stamp)
        print(f"torchgfn: installing {', '.join(REQUIREMENTS)} in {folder}", file=sys.stderr)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS)
        stamp.write_text(_required(), encoding="utf-8")
    return python


def _required() -> str:
    return "".join(f"{requirement}\n" for requirement in REQUIREMENTS)


def _is_complete(folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _required()


def _clear(folder: Path, stamp: Path) -> None:
    """Empty the folder if the stamp marks it as ours; raise PeerError if it holds other files."""
    try:
        if stamp.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise PeerError(f"{folder}: expected torchgfn's environment or an empty folder, got other files")
        stamp.write_text("unfinished\n", encoding="utf-8")
    except OSError as error:
        raise PeerError(f"{folder}: expected a folder to install torchgfn in, got {error}") from error


def _run(*command: str) -> None:
    """Run a command; raise PeerError with its last error line if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise PeerError(f"{' '.join(command)}: {errors[-1].strip()}")


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
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._exit_message()}
        if "error" in answer:
            raise PeerError(f"{self._name}: {answer['error']}")
        return answer

    def _exit_message(self) -> str:
        status = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines() or ["no output"]
        return f"ended with status {status}: {lines[-1].strip()}"


if __name__ == "__main__":
    try:
        print(install_environment(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except PeerError as error:
        sys.exit(f"process.py: {error}")
