"""The virtual environment of torchgfn (it needs numpy < 2), installed once on request and used by the benchmarks.

python scripts/peers/environment.py [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Those that matter for what torchgfn does and how fast; torch is the one of constraints.txt.
REQUIREMENTS = (
    "torchgfn==2.4.1",
    "torch==2.13.0",
    "torch-geometric==2.8.1",
    "tensordict==0.15.3",
    "numpy==1.26.4",
)
_STAMP = "gflownet-bench.txt"  # what is installed; it also says that the folder is ours to delete


class PeerError(RuntimeError):
    """A peer of the benchmarks is not installed or failed; the message is one line."""


def default_folder() -> Path:
    """Return where the environment is kept: in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gflownet-bench" / "torchgfn"


def find_environment(folder: Path | None = None) -> Path:
    """Return the python of the environment in `folder`; install nothing.

    Raises:
        PeerError: it is not there, or has other versions.
    """
    folder = folder or default_folder()
    if not _is_complete(folder):
        raise PeerError(f"torchgfn is not installed in {folder}: python scripts/peers/environment.py")
    return folder / "bin" / "python"


def make_environment(folder: Path | None = None) -> Path:
    """Return the python of the environment in `folder`; where it is not there yet, install it first: about a minute.

    Raises:
        PeerError: the folder holds something else, or an installation failed.
    """
    folder = folder or default_folder()
    python, stamp = folder / "bin" / "python", folder / _STAMP
    if _is_complete(folder):
        return python
    _empty(folder, stamp)
    print(f"torchgfn: making its environment in {folder}", file=sys.stderr)
    _run(sys.executable, "-m", "venv", str(folder))
    print(f"torchgfn: installing {', '.join(REQUIREMENTS)}", file=sys.stderr)
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS)
    stamp.write_text(_required(), encoding="utf-8")
    return python


def _required() -> str:
    return "".join(f"{requirement}\n" for requirement in REQUIREMENTS)


def _is_complete(folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _required()


def _empty(folder: Path, stamp: Path) -> None:
    """Leave nothing in the folder but the mark that it is ours; raise PeerError where that was never said."""
    try:
        if stamp.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise PeerError(f"{folder}: expected torchgfn's environment or an empty folder, got something else")
        stamp.write_text("unfinished\n", encoding="utf-8")
    except OSError as error:
        raise PeerError(f"{folder}: expected a folder to install torchgfn in, got {error}") from error


def _run(*command: str) -> None:
    """Run a command in silence; raise PeerError with the last line that it wrote if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        reasons = [line for line in lines if line.lower().startswith("error")] or lines
        raise PeerError(f"{' '.join(command)}: {reasons[-1].strip()}")


if __name__ == "__main__":
    try:
        print(make_environment(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except PeerError as problem:
        sys.exit(f"environment.py: {problem}")
