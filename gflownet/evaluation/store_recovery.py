"""Recovery of the readable rows of a damaged evaluation store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.store_migrations import upgraded_row

DAMAGED_SUFFIX = ".damaged"
# A row is longer than this: two digests of 64 characters, a context and a graph.
_MIN_ROW_BYTES = 200


def damage_of(path: Path) -> str | None:
    """Return the first problem of a SQLite file in one line, None where it is intact or absent.

    The full check and not `quick_check`: a row that its index does not find can be neither replaced nor hidden.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as connection:
            (first,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if first == "ok" else " ".join(str(first).split())


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
    EvaluationStore(path).close()  # makes the tables
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
