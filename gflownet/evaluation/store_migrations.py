"""Schema of an evaluation store: creation, and migration of older versions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
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
    "context",
    "hash",
    "key",
    "identity_digest",
    "graph",
    "score",
    "status",
    "seconds",
    "step",
    "run",
    "error",
    "num_parameters",
    "metrics",
    "created",
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
    """Yield the rows of the renamed table in the order of their ids."""
    query = sql.text(f"SELECT * FROM {_OLD_TABLE} WHERE id > :last ORDER BY id LIMIT {_CHUNK}")
    last = -1
    while rows := [row._asdict() for row in connection.execute(query, {"last": last})]:
        yield rows
        last = rows[-1]["id"]
