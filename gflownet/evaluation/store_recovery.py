"""Recovery of the readable rows of a damaged evaluation store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gflownet.evaluation.store import EvaluationStore

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
        names = ", ".join(name for _, name, *_ in new.execute("PRAGMA table_info(evaluations)"))
        marks = ", ".join("?" * (names.count(",") + 1))
        num_rows = 0
        for number in range(1, damaged.stat().st_size // _MIN_ROW_BYTES + 1):  # ids are given one after the other
            try:
                row = old.execute(f"SELECT {names} FROM evaluations NOT INDEXED WHERE id = ?", (number,)).fetchone()
            except sqlite3.DatabaseError:
                continue
            if row is not None:
                num_rows += new.execute(f"INSERT OR IGNORE INTO evaluations VALUES ({marks})", row).rowcount
        new.commit()
    return num_rows
