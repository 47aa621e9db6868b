"""The database of an evaluation store: SQLite or PostgreSQL, connections, errors in one line."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoFreeConnectionError

from gflownet.errors import UserError
from gflownet.evaluation.store.rows import CONTEXTS, METADATA, SCHEMA, context_digest

T = TypeVar("T")
# File of a run folder.
STORE_NAME = "evaluations.sqlite"
# Maximum time that a writer waits for the others, seconds.
BUSY_TIMEOUT = 60.0
INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "afs", "lustre", "gpfs", "ceph", "glusterfs", "beegfs", "fuse.ssh")
# A transaction that PostgreSQL ended to resolve a deadlock, or that clashed with another, is run again.
_RETRIED_STATES = frozenset({"40P01", "40001"})
_NUM_RETRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_NO_PRIVILEGE = "42501"
_log = logging.getLogger(__name__)


class Database:
    """Connections of one process to a database."""

    def __init__(self, location: str) -> None:
        """Prepare the connections of a path (SQLite) or a URL; nothing is opened.

        Raises:
            UserError: not a URL of SQLite or PostgreSQL, or a driver that is not installed.
        """
        url = _url_of(location)
        self.dialect = url.get_backend_name()
        self.location = url.difference_update_query(["password"]).render_as_string(hide_password=True)
        self._secrets = [text for text in (url.password, url.query.get("password")) if isinstance(text, str) and text]
        self.path = Path(url.database) if self.dialect == "sqlite" and url.database else None
        self.insert = INSERTS[self.dialect]
        self._engine = _sqlite_engine(url) if self.dialect == "sqlite" else _postgresql_engine(url)
        self._pid = os.getpid()
        self.patience = 0.0  # seconds for which an absent server is waited for
        self._inode: int | None = None  # of the file in use; None: not opened yet

    def read(self, query: Callable[[sql.Connection], T], *, verb: str = "used") -> T:
        """Return the result of a function that reads. Raises UserError where the database cannot be read."""

        def attempt() -> T:
            with self._errors_in_one_line(verb), self._connected() as connection:
                return query(connection)

        return self._patiently(attempt)

    def write(
        self,
        change: Callable[[sql.Connection], T],
        *,
        verb: str = "used",
        is_result: bool = True,
        is_patient: bool = True,
    ) -> T:
        """Return the result of a function within one transaction, which a kill of the process does not undo.

        `verb` is that of the error message. `is_result`: wait for the disk, so that a power failure does not undo it
        either; `is_patient`: wait for a server that went away.

        Raises:
            UserError: the database cannot be written, for example on a full disk; it is unchanged.
        """

        def attempt() -> T:
            with self._errors_in_one_line(verb), self._connected() as connection:
                connection = connection.execution_options(writes="FULL" if is_result else "NORMAL")
                with connection.begin():
                    if self.dialect == "postgresql" and not is_result:
                        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                    return change(connection)

        for retries in range(_NUM_RETRIES, -1, -1):
            try:
                return self._patiently(attempt) if is_patient else attempt()
            except UserError as error:
                if not retries or _state_of(error.__cause__) not in _RETRIED_STATES:
                    raise
        raise AssertionError

    @contextmanager
    def _connected(self) -> Iterator[sql.Connection]:
        """Open a connection; a file that was deleted since the last use is written again from the open one.

        Raises:
            UserError: another file has its place.
        """
        found = _inode_of(self.path)
        if self._inode is not None and found is None:
            try:
                with closing(self._engine.raw_connection()) as connection:
                    connection.cursor().execute("VACUUM INTO ?", (str(self.path),))
            except sqlite3.Error as error:
                raise UserError(
                    f"{self.location}: deleted during the run, and cannot be written again ({error})"
                ) from None
            self._engine.dispose()
            _log.warning("%s: deleted while it was in use; written again with all results", self.location)
        elif self._inode not in (None, found):
            raise UserError(f"{self.location}: expected the evaluation store of this run, another file replaced it")
        with self._engine.connect() as connection:
            self._inode = _inode_of(self.path)
            yield connection

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Return the result of an attempt, repeated for `patience` seconds while the PostgreSQL server is away.

        Every change of the store may be repeated: it changes nothing where it was committed before the answer was lost.
        """
        pause, end = 0.0, time.monotonic() + self.patience
        while True:
            try:
                return attempt()
            except UserError as error:
                if not _is_away(error.__cause__) or time.monotonic() >= end:
                    raise
                if not pause:
                    _log.warning("%s; tried again for up to %g s", error, self.patience)
            pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            time.sleep(pause)

    def now(self) -> Any:
        """Return the time in seconds since 1970: PostgreSQL's clock, which all machines share, or the system's."""
        if self.dialect == "postgresql":
            return sql.cast(sql.extract("epoch", sql.func.clock_timestamp()), sql.Double)
        return sql.bindparam("now", time.time(), sql.Double, unique=True)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def check_intact(self, shown: str) -> None:
        """Raise UserError for a SQLite file that was not closed and is damaged; `shown` is its name in the error."""
        path = self.path
        log = None if path is None else path.with_name(f"{path.name}-wal")
        if path is None or log is None or not (path.exists() and log.exists() and log.stat().st_size):
            return
        try:
            damage = _first_problem(path, "quick_check")
        except sqlite3.OperationalError:
            return  # reported when it is opened
        except sqlite3.DatabaseError as error:
            damage = str(error)
        if damage is not None:
            raise UserError(f"{shown}: expected an intact database, got a damaged one ({damage})")

    @contextmanager
    def _errors_in_one_line(self, verb: str) -> Iterator[None]:
        assert os.getpid() == self._pid, "an evaluation store must not be used across a fork: open one per process"
        try:
            yield
        except (DBAPIError, NoFreeConnectionError) as error:
            if isinstance(error, IntegrityError | ProgrammingError) and _state_of(error) != _NO_PRIVILEGE:
                raise
            reason = " ".join(str(error.orig if isinstance(error, DBAPIError) else error.args[0]).split())
            for secret in self._secrets:
                reason = reason.replace(secret, "***")
            raise UserError(f"{self.location}: cannot be {verb} as an evaluation store ({reason})") from error


def _inode_of(path: Path | None) -> int | None:
    """Return the inode of a file, None without one."""
    try:
        return None if path is None else path.stat().st_ino
    except FileNotFoundError:
        return None


def _state_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of PostgreSQL, None without one."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _is_away(error: BaseException | None) -> bool:
    """Return whether an error says that the PostgreSQL server cannot be reached, is starting or ending."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = _state_of(error)
    is_lost = error.connection_invalidated or (state is None and isinstance(error, OperationalError))
    return is_lost or (state or "").startswith(("08", "57P"))


def is_network_file_system(path: Path) -> str | None:
    """Return the type of the network file system of a path, None for a local one."""
    import psutil

    path, kind, longest = path.resolve(), "", -1
    for partition in psutil.disk_partitions(all=True):
        if path.is_relative_to(partition.mountpoint) and len(partition.mountpoint) > longest:
            kind, longest = partition.fstype, len(partition.mountpoint)
    return kind if kind.startswith(_NETWORK_FILE_SYSTEMS) else None


def damage_of(path: Path) -> str | None:
    """Return the first problem of a SQLite file in one line, None where it is intact or absent.

    The full check and not `quick_check`: a row that its index does not find can be neither replaced nor hidden.
    """
    try:
        return _first_problem(path, "integrity_check") if path.exists() else None
    except sqlite3.DatabaseError as error:
        return str(error)


def _first_problem(path: Path, check: str) -> str | None:
    with closing(sqlite3.connect(path)) as connection:
        (first,) = connection.execute(f"PRAGMA {check}(1)").fetchone()
    return None if first == "ok" else " ".join(str(first).split())


def _url_of(location: str) -> sql.URL:
    try:
        url = sql.make_url(location) if "://" in location else sql.URL.create("sqlite", database=location)
    except (ArgumentError, ValueError):
        raise UserError("evaluation.store_url: expected a database URL such as postgresql://user@host/name") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    dialect = url.get_backend_name()
    if dialect not in INSERTS:
        raise UserError(f"evaluation.store_url: expected one of {', '.join(INSERTS)}, got {dialect}")
    return url


def _postgresql_engine(url: sql.URL) -> sql.Engine:
    try:
        return sql.create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise UserError(
            f"evaluation.store_url: PostgreSQL needs a driver that is not installed ({error}): "
            "pip install 'gflownet[postgres]'"
        ) from error


def _sqlite_engine(url: sql.URL) -> sql.Engine:
    """Return an engine in WAL mode: readers and one writer do not wait."""
    engine = sql.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT})

    @event.listens_for(engine, "connect")
    def use_write_ahead_log(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # BEGIN below, also before changes of the schema
        connection.text_factory = lambda text: text.decode(errors="replace")  # a damaged text fails by its checksum
        connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: sql.Connection) -> None:
        # A writer that begins as a reader would fail, not wait, where another one wrote meanwhile.
        synchronous = connection.get_execution_options().get("writes")
        if synchronous:
            connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if synchronous else "BEGIN")

    return engine


SCHEMA_VERSION = 4
# Key of the lock that PostgreSQL holds while one process creates the tables.
_LOCK = 0x67666C6F


def prepare_schema(database: Database) -> None:
    """Create the tables of an empty database, in one transaction.

    Raises:
        UserError: not an evaluation store, of another version, or it cannot be written.
    """
    version = stored_version(database)
    if version is None:
        version = database.write(_create, verb="opened")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{database.location}: expected an evaluation store of schema version {SCHEMA_VERSION}, got {version}; "
            "use another log_dir or store_url"
        )


def stored_version(database: Database) -> int | None:
    """Return the schema version of a database, None without an evaluation store."""
    return database.read(_version, verb="opened")


def add_contexts(connection: sql.Connection, contexts: Iterable[str]) -> None:
    """Add the texts of contexts; known ones stay."""
    rows = [{"digest": context_digest(context), "context": context} for context in sorted(contexts)]
    if rows:
        connection.execute(INSERTS[connection.dialect.name](CONTEXTS).on_conflict_do_nothing(), rows)


def _create(connection: sql.Connection) -> int:
    """Return the version after it; another process may have done the same meanwhile."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
    if (version := _version(connection)) is not None:
        return version
    METADATA.create_all(connection)
    connection.execute(sql.insert(SCHEMA).values(id=1, version=SCHEMA_VERSION))
    return SCHEMA_VERSION


def _version(connection: sql.Connection) -> int | None:
    if not sql.inspect(connection).has_table(SCHEMA.name):
        return None
    versions = connection.execute(sql.select(SCHEMA.c.version)).scalars().all()
    return versions[0] if len(versions) == 1 else 0  # 0: damaged
