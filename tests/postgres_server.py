"""A PostgreSQL server for tests: own data in a temporary folder, a Unix socket, no TCP."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

START_DEADLINE_S = 120.0
_USER = "tester"
_numbers = itertools.count()


def missing_server() -> str | None:
    """Return why no server can be started, None if one can."""
    if _programs() is None:
        return "needs the programs of PostgreSQL (Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"needs the extra [postgres] ({error})"
    return None


@dataclass
class PostgresServer:
    """A server that can be killed and started again on its data."""

    folder: Path  # of the socket
    _programs: Path
    _as_user: dict[str, Any]
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder]
        command += ["-c", "listen_addresses="]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, text=True, **self._as_user)
        _wait_until_ready(self.folder, self._process)

    def kill(self) -> None:
        """Kill the server, and wait until the processes of its connections have noticed."""
        assert self._process is not None
        connections = psutil.Process(self._process.pid).children()
        self._process.kill()
        self._process.wait(timeout=START_DEADLINE_S)
        psutil.wait_procs(connections, timeout=START_DEADLINE_S)

    def stop(self) -> None:
        """Stop the server at once: the data are thrown away."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=START_DEADLINE_S)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Start a server on new data."""
    programs = _programs()
    assert programs is not None
    # A short path: that of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        account = _account()
        if account is not None:
            shutil.chown(folder, account, account)
        folder.chmod(0o755)
        as_user = {} if account is None else {"user": account, "group": account, "extra_groups": []}
        initdb = [programs / "initdb", "-D", folder / "data", "-U", _USER, "-A", "trust", "-E", "UTF8"]
        initdb += ["--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **as_user)
        server = PostgresServer(folder, programs, {"cwd": folder, **as_user})
        try:
            server.start()
            yield server
        finally:
            server.stop()


def new_database(folder: Path) -> str:
    """Create an empty schema, a hundred times cheaper than a database, and return the URL of its tables."""
    import psycopg

    name = f"store_{next(_numbers)}"
    with psycopg.connect(host=str(folder), user=_USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"postgresql://{_USER}@/postgres?host={folder}&options=-csearch_path%3D{name}"


def _wait_until_ready(folder: Path, server: subprocess.Popen[str]) -> None:
    import psycopg

    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            psycopg.connect(host=str(folder), user=_USER, dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}") from None
            time.sleep(0.02)


def _programs() -> Path | None:
    """Return the folder of initdb and postgres; Debian's is not on the PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(os.path.realpath(found)).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


def _account() -> str | None:
    """Return the account that runs the server: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
