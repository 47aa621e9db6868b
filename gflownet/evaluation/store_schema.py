"""Schema of an evaluation store: creation of its tables, refusal of other versions."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sql

from gflownet.errors import UserError
from gflownet.evaluation.store_database import INSERTS, Database
from gflownet.evaluation.store_rows import CONTEXTS, METADATA, SCHEMA, context_digest

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
    with database.read(verb="opened") as connection:
        return _version(connection)


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
    return connection.execute(sql.select(SCHEMA.c.version)).scalar_one()
