"""Schema of an evaluation store: creation, migration of older versions, recovery of readable rows of a damaged file."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from gflownet.errors import UserError
from gflownet.evaluation.store_database import INSERTS, Database
from gflownet.evaluation.store_rows import (
    CONTEXTS,
    DAMAGED,
    EVALUATIONS,
    METADATA,
    SCHEMA,
    Identity,
    context_digest,
    digest_of_values,
    with_checksum,
)

SCHEMA_VERSION = 4
OLDEST_VERSION = 2
# Rows that a migration reads and writes at a time.
_CHUNK = 2_000
_OLD_TABLE = "evaluations_before_4"
# Columns under the checksum of version 3; version 2 has them without a checksum.
_OLD_COLUMNS = (
    *("context", "hash", "key", "identity_digest", "graph", "score", "status", "seconds", "step", "run", "error"),
    *("num_parameters", "metrics", "created"),
)
# Key of the lock that PostgreSQL holds while one process creates or migrates the tables.
_LOCK = 0x67666C6F
_log = logging.getLogger(__name__)


def prepare_schema(database: Database) -> None:
    """Create the tables of an empty database, or migrate those of an older version, in one transaction.

    Raises:
        UserError: not an evaluation store, of an unknown version, or it cannot be written.
    """
    version = stored_version(database)
    if version is None or OLDEST_VERSION <= version < SCHEMA_VERSION:
        version = database.write(_create_or_migrate, verb="opened")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{database.location}: expected an evaluation store of schema version {SCHEMA_VERSION}, got {version}; "
            "use another log_dir or store_url"
        )


def stored_version(database: Database) -> int | None:
    """Return the schema version of a database, None without an evaluation store."""
    with database.read(verb="opened") as connection:
        if not sql.inspect(connection).has_table(SCHEMA.name):
            return None
        return connection.execute(sql.select(SCHEMA.c.version)).scalar_one()


def upgraded_row(old: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the row of this version, and its context, for a row of version 2 or 3; damaged ones stay hidden."""
    values = {name: old[name] for name in _OLD_COLUMNS}
    context, row = values["context"], dict(values)
    row |= {"fidelity": 0, "seed": 0, "is_transient": False, "curve": "[]", "attempts": 1, "parent": None}
    if old.get("checksum") not in (None, digest_of_values(values)) or not isinstance(context, str):
        row |= {"context": DAMAGED, "identity_digest": f"{DAMAGED} {old['id']}"}
        return row | {"owner": None, "lease_until": None, "started": 0, "checksum": None}, DAMAGED
    digest = context_digest(context)
    row |= {"context": digest, "identity_digest": Identity(row["hash"], row["key"]).digest(digest)}
    return with_checksum(row), context


def _create_or_migrate(connection: sql.Connection) -> int:
    """Return the version after it; another process may have done the same meanwhile."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
    if not sql.inspect(connection).has_table(SCHEMA.name):
        METADATA.create_all(connection)
        connection.execute(sql.insert(SCHEMA).values(id=1, version=SCHEMA_VERSION))
        return SCHEMA_VERSION
    version = connection.execute(sql.select(SCHEMA.c.version)).scalar_one()
    if not OLDEST_VERSION <= version < SCHEMA_VERSION:
        return version
    connection.execute(sql.text(f"ALTER TABLE evaluations RENAME TO {_OLD_TABLE}"))
    METADATA.create_all(connection)
    num_rows = 0
    for rows in _old_chunks(connection):
        upgraded = [upgraded_row(row) for row in rows]
        add_contexts(connection, {context for _, context in upgraded} - {DAMAGED})
        connection.execute(sql.insert(EVALUATIONS), [row for row, _ in upgraded])
        num_rows += len(rows)
    connection.execute(sql.text(f"DROP TABLE {_OLD_TABLE}"))
    connection.execute(sql.update(SCHEMA).values(version=SCHEMA_VERSION))
    _log.warning("evaluation store: migrated %d rows from schema version %d to %d", num_rows, version, SCHEMA_VERSION)
    return SCHEMA_VERSION


def add_contexts(connection: sql.Connection, contexts: Iterable[str]) -> None:
    """Add the texts of contexts; known ones stay."""
    rows = [{"digest": context_digest(context), "context": context} for context in sorted(contexts)]
    if rows:
        connection.execute(INSERTS[connection.dialect.name](CONTEXTS).on_conflict_do_nothing(), rows)


def _old_chunks(connection: sql.Connection) -> Iterator[list[dict[str, Any]]]:
    query = sql.text(f"SELECT * FROM {_OLD_TABLE} WHERE id > :last ORDER BY id LIMIT {_CHUNK}")
    last = -1
    while rows := [row._asdict() for row in connection.execute(query, {"last": last})]:
        yield rows
        last = rows[-1]["id"]


DAMAGED_SUFFIX = ".damaged"
# A row is longer than this: two digests of 64 characters, a context and a graph.
_MIN_ROW_BYTES = 200


def recover(path: Path) -> int:
    """Replace a damaged store by one with its readable rows, and return their number.

    The damaged file stays, with DAMAGED_SUFFIX. No other process may use the store meanwhile.

    Raises:
        UserError: the new store cannot be written.
    """
    damaged = path.with_name(path.name + DAMAGED_SUFFIX)
    for end in ("", "-wal", "-shm"):
        source = path.with_name(path.name + end)
        if source.exists():
            source.replace(damaged.with_name(damaged.name + end))
    with closing(Database(str(path))) as database:
        prepare_schema(database)
    with closing(sqlite3.connect(damaged)) as old, closing(sqlite3.connect(path)) as new:
        old.text_factory = lambda text: text.decode(errors="replace")
        num_rows = sum(_insert(new, "evaluations", row) for row in _readable_rows(old, damaged.stat().st_size, new))
        new.commit()
    return num_rows


def _readable_rows(old: sqlite3.Connection, size: int, new: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Yield the readable rows in the columns of this version, and add their contexts."""
    old.row_factory = sqlite3.Row
    for row in _readable(old, "SELECT * FROM evaluation_contexts"):
        _insert(new, "evaluation_contexts", dict(row))
    for number in range(1, size // _MIN_ROW_BYTES + 1):  # ids are given one after the other
        for row in _readable(old, f"SELECT * FROM evaluations NOT INDEXED WHERE id = {number}"):
            values = dict(row)
            if "fidelity" not in values:  # before version 4
                upgraded, context = upgraded_row(values)
                _insert(new, "evaluation_contexts", {"digest": upgraded["context"], "context": context})
                values = {"id": number, **upgraded}
            yield values


def _readable(connection: sqlite3.Connection, query: str) -> list[sqlite3.Row]:
    """Return the rows of a query, none where they cannot be read."""
    try:
        return connection.execute(query).fetchall()
    except sqlite3.DatabaseError:
        return []


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> int:
    """Insert a row unless there is one like it, and return the number of new rows."""
    known = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    names = [name for name in values if name in known]
    marks = ", ".join("?" * len(names))
    columns = ", ".join(f'"{name}"' for name in names)
    statement = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})"
    return connection.execute(statement, [values[name] for name in names]).rowcount
