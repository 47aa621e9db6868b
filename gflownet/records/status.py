"""status.json of a run folder: state of the run, its sessions with command and versions, and where the time went.

A session is one process: the start of a run, or a resume.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from gflownet.errors import UserError
from gflownet.files import parse_sealed, sealed
from gflownet.records.marker import LOCK_NAME, is_locked

_log = logging.getLogger(__name__)

STATUS_NAME = "status.json"
STATUS_FORMAT = 1
# Interval of `StatusLog.refresh` in seconds: a killed run loses this much of its times.
REFRESH_EVERY_S = 15.0
# Age of status.json in seconds up to which a run on another host counts as running without a look at its lock.
_RECENT_S = 4 * REFRESH_EVERY_S
# Distributions whose versions are recorded.
RECORDED_VERSIONS = ("torch", "torch_geometric", "numpy", "scikit-learn")


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"  # by a signal that the run has handled
    FAILED = "failed"  # by an error
    KILLED = "killed"  # the process ended without a word; never written, `read_status` infers it


class Phase(StrEnum):
    """Phases of a session, in order; a search method has `SEARCH` and `SAMPLER`, other runs only `TRAINING`."""

    START = "start-up"
    TRAINING = "training"
    SEARCH = "search"
    SAMPLER = "training of the sampler"
    FINAL = "final stage"
    CERTIFICATE = "certificate"
    REPORT = "report"


@dataclass
class Session:
    """One process of a run."""

    command: list[str]  # sys.argv
    started: str  # UTC, ISO 8601
    host: str
    pid: int
    process_created: float  # seconds since 1970: with the pid, identifies the process
    versions: dict[str, str]
    phase: str = Phase.START
    seconds: dict[str, float] = field(default_factory=dict)  # of each phase, the running one up to the last write

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs on this host."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.process_created) < 1.0
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass(frozen=True)
class RunStatus:
    """Content of status.json."""

    state: RunState
    sessions: tuple[Session, ...]
    message: str = ""  # of the error, or the name of the signal
    plan: Mapping[str, Any] = field(default_factory=dict)  # gflownet.run.plan.RunPlan

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each phase, summed over the sessions."""
        totals: dict[str, float] = {}
        for session in self.sessions:
            for phase, seconds in session.seconds.items():
                totals[phase] = totals.get(phase, 0.0) + seconds
        return totals


def read_status(folder: Path) -> RunStatus | None:
    """Return the status of the run in a folder; None without one, or for a damaged file."""
    try:
        content = parse_sealed((folder / STATUS_NAME).read_bytes())
        sessions = tuple(Session(**session) for session in content["sessions"])
        state, message = RunState(content["state"]), str(content["message"])
        plan = content["plan"]
        if not isinstance(plan, dict):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if state is RunState.RUNNING and not (sessions and _is_alive(folder, sessions[-1])):
        state = RunState.KILLED
    return RunStatus(state, sessions, message, plan)


def _is_alive(folder: Path, session: Session) -> bool:
    """Return whether the process of a session runs.

    The process of another host, or of an earlier container, runs if status.json is recent or the run folder is locked.
    """
    if session.host == platform.node():
        return session.is_alive
    try:
        age = time.time() - (folder / STATUS_NAME).stat().st_mtime
    except OSError:
        return True
    return age < _RECENT_S or is_locked(folder / LOCK_NAME)


class StatusLog:
    """Writes status.json of one session."""

    def __init__(
        self,
        folder: Path,
        *,
        resumed: bool,
        write: Callable[[Path, str], None],
        plan: Mapping[str, Any] | None = None,
        start_seconds: float = 0.0,
    ) -> None:
        """Write the state RUNNING.

        `start_seconds` are those of the session so far: imports, data, policy.
        """
        self._plan = dict(plan or {})
        self.path, self._write = folder / STATUS_NAME, write
        before = read_status(folder) if resumed else None
        if resumed and before is None and self.path.exists():
            _log.warning("%s: expected the status of the run, got a damaged file; its times are lost", self.path)
        self._session = Session(
            command=list(sys.argv),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            host=platform.node(),
            pid=os.getpid(),
            process_created=psutil.Process().create_time(),
            versions=recorded_versions(),
        )
        self._sessions = (*(() if before is None else before.sessions), self._session)
        self._began = time.monotonic() - start_seconds
        self.state, self.message = RunState.RUNNING, ""
        self._save()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add the time of the block to a phase; the time outside of such blocks belongs to START."""
        before = self._session.phase
        self._enter(phase)
        try:
            yield
        finally:
            self._enter(before)

    def refresh(self) -> None:
        """Save the time of the running phase, every REFRESH_EVERY_S; a file that cannot be written is no error."""
        if time.monotonic() - self._saved >= REFRESH_EVERY_S:
            self._add_time()
            with suppress(UserError):
                self._save()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each phase of this session, up to the last change of the phase."""
        return dict(self._session.seconds)

    @property
    def run(self) -> RunStatus:
        """Return the status so far, of all sessions."""
        return RunStatus(self.state, self._sessions, self.message, self._plan)

    def mark_interrupted(self, message: str) -> None:
        """Write the state INTERRUPTED of a run that goes on to its end; called by signal handlers."""
        self.state, self.message = RunState.INTERRUPTED, message
        with suppress(UserError):
            self._save()

    def end(self, state: RunState, message: str = "") -> None:
        """Write the final state; a file that cannot be written is no error."""
        self.state, self.message = state, message
        self._add_time()
        with suppress(UserError):
            self._save()

    def _enter(self, phase: str) -> None:
        self._add_time()
        self._session.phase = phase
        with suppress(UserError):  # on a full disk, files that matter report it
            self._save()

    def _add_time(self) -> None:
        now = time.monotonic()
        seconds = self._session.seconds
        seconds[self._session.phase] = seconds.get(self._session.phase, 0.0) + now - self._began
        self._began = now

    def _save(self) -> None:
        content = {
            "format": STATUS_FORMAT,
            "state": self.state,
            "message": self.message,
            "plan": self._plan,
            "sessions": [asdict(session) for session in self._sessions],
        }
        self._write(self.path, json.dumps(sealed(content), indent=1) + "\n")
        self._saved = time.monotonic()


def recorded_versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the installed distributions behind its results."""
    import gflownet

    versions = {"gflownet": gflownet.__version__, "python": platform.python_version()}
    for name in RECORDED_VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
