"""Rows of all contexts of a store, for `gflownet store`: summary, search, requeue, export as JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from gflownet.errors import UserError
from gflownet.evaluation.store import rows as store_rows
from gflownet.evaluation.store.database import Database, damage_of, prepare_schema, stored_version
from gflownet.evaluation.store.rows import (
    CONTEXTS,
    DAMAGED,
    EVALUATIONS,
    IS_RUNNING,
    IS_SEARCH_SUCCESS,
    REQUEUED,
    SCHEMA,
    EvaluationRecord,
    EvaluationStatus,
    context_digest,
    is_expired,
)
from gflownet.files import Closing, cannot_write

Row = Mapping[str, Any]
# Columns of exported rows; `context` is the text of the context, not its digest.
COLUMNS = tuple(c for c in EVALUATIONS.columns if c.name not in ("id", "owner", "lease_until", "started"))
# Rows read or written at a time.
_CHUNK = 500
# Longer decimal texts are prefixes of a hash, not row ids.
_MAX_ID_DIGITS = 9


@dataclass
class RunSummary:
    """Rows of one run in one context."""

    digest: str  # of the context
    context: str | None  # None: damaged
    run: str
    first: str = ""  # creation time of the oldest result
    last: str = ""
    best: float | None = None  # score of the search
    num_by_status: dict[str, int] = field(default_factory=dict)


class StoreOverview(Closing):
    """All rows of a store, independent of their context."""

    def __init__(self, location: str) -> None:
        """Open a store at a path (SQLite) or a database URL.

        Raises:
            UserError: no store, a damaged one, or one of another version.
        """
        self._database = Database(location)
        self.location = self._database.location
        try:
            self._check_exists()
            prepare_schema(self._database)
        except UserError:
            self.close()
            raise

    def runs(self) -> list[RunSummary]:
        """Return one summary per context and run, oldest first."""
        columns = EVALUATIONS.c
        score = sql.case((sql.literal_column(f"({IS_SEARCH_SUCCESS.text})"), columns.score))
        keys = (columns.context, CONTEXTS.c.context, columns.run)
        times = (sql.func.min(sql.func.nullif(columns.created, "")), sql.func.max(columns.created))
        query = sql.select(*keys, columns.status, sql.func.count(), sql.func.max(score), *times)
        query = query.select_from(_WITH_CONTEXT).group_by(*keys, columns.status)
        groups = self._database.read(lambda connection: connection.execute(query).all())
        summaries: dict[tuple[str, str], RunSummary] = {}
        for digest, context, run, status, num, best, first, last in groups:
            summary = summaries.setdefault((digest, run), RunSummary(digest, context, run))
            summary.num_by_status[status] = num
            summary.best = summary.best if best is None else best
            summary.first = min(filter(None, (summary.first, first)), default="")
            summary.last = max(summary.last, last)
        return sorted(summaries.values(), key=lambda summary: (summary.first, summary.run))

    def matching(self, text: str) -> list[Row]:
        """Return the row with an id, or the rows whose hash starts with a text."""
        if text.isdecimal() and len(text) <= _MAX_ID_DIGITS:
            rows = self._select(_ROWS.where(EVALUATIONS.c.id == int(text)))
            if rows:
                return rows
        starts = EVALUATIONS.c.hash.startswith(text, autoescape=True)
        return self._select(_ROWS.where(starts).order_by(EVALUATIONS.c.id))

    def best(self, num: int) -> list[Row]:
        """Return the `num` best successful rows of the search of each context, best first, ties by age."""
        digests = sql.select(CONTEXTS.c.digest).order_by(CONTEXTS.c.digest)
        contexts = self._database.read(lambda connection: connection.execute(digests).scalars().all())
        order = (EVALUATIONS.c.score.desc(), EVALUATIONS.c.id)
        queries = [
            _ROWS.where(EVALUATIONS.c.context == digest, IS_SEARCH_SUCCESS).order_by(*order).limit(num)
            for digest in contexts
        ]
        return [row for query in queries for row in self._select(query) if is_intact(row)]

    def results(self, *, run: str | None = None) -> Iterator[Row]:
        """Yield the intact results by age, as they are exported; of one run, if `run` is its id."""
        last, query = -1, _ROWS if run is None else _ROWS.where(EVALUATIONS.c.run == run)
        while rows := self._select(query.where(EVALUATIONS.c.id > last).order_by(EVALUATIONS.c.id).limit(_CHUNK)):
            for row in rows:
                if row["status"] != EvaluationStatus.RUNNING and is_intact(row):
                    yield {c.name: row[c.name] for c in COLUMNS} | {"context": row["context_text"]}
            ids = [last, *(row["id"] for row in rows)]
            if any(second <= first for first, second in pairwise(ids)):
                raise ValueError(f"rows after {last}: expected increasing ids, got {ids[1]} to {ids[-1]}")
            last = ids[-1]

    def records(self, *, run: str | None = None) -> list[EvaluationRecord]:
        """Return `results` as records."""
        return [store_rows.record_of(row) for row in self.results(run=run)]

    def count(self) -> int:
        """Return the number of all rows: results, claims and damaged ones."""
        query = sql.select(sql.func.count()).select_from(EVALUATIONS)
        return self._database.read(lambda connection: connection.execute(query).scalar_one())

    def num_leased(self, rows: Sequence[Row]) -> int:
        """Return how many of the rows are claimed by a process whose lease has not ended."""
        ids = [row["id"] for row in rows]
        query = sql.select(sql.func.count()).where(
            EVALUATIONS.c.id.in_(ids), IS_RUNNING, ~is_expired(self._database.now())
        )
        return self._database.read(lambda connection: connection.execute(query).scalar_one())

    def requeue(self, status: EvaluationStatus | None, *, ids: Collection[int] | None, is_forced: bool) -> int:
        """Turn rows into claims without an owner, which the next run evaluates again, and return their number.

        Without `status` and `ids` all; `is_forced`: also claims with a live lease.
        """
        columns = EVALUATIONS.c
        update = sql.update(EVALUATIONS).where(columns.context != DAMAGED).values(REQUEUED)
        if status is not None:
            update = update.where(columns.status == status.value)
        if ids is not None:
            update = update.where(columns.id.in_(ids))
        if not is_forced:
            update = update.where((columns.status != EvaluationStatus.RUNNING.value) | is_expired(self._database.now()))
        return self._database.write(lambda connection: connection.execute(update).rowcount)

    @contextmanager
    def damage_in_one_line(self) -> Iterator[None]:
        """Raise UserError for an error in the block that a damaged SQLite file causes."""
        try:
            yield
        except (TypeError, ValueError, SQLAlchemyError) as error:
            damage, path = None, self._database.path
            if path is not None and not isinstance(error, UserError):
                damaged = (f"row {row['id']}" for row in self._select(_ROWS) if not is_intact(row))
                damage = damage_of(path) or next(damaged, None)
            if damage is None:
                raise
            raise UserError(f"{self.location}: expected an intact database, got a damaged one ({damage})") from None

    def close(self) -> None:
        """Close every connection; the overview must not be used afterwards."""
        self._database.close()

    def _check_exists(self) -> None:
        path = self._database.path
        if path is None:
            if stored_version(self._database) is None:
                raise UserError(f"{self.location}: no evaluation store here")
            return
        if not path.exists():
            raise UserError(f"no such file: {path}")
        if not _has_schema(path):
            raise UserError(f"{path}: expected an evaluation store, got another file")
        self._database.check_intact(str(path))

    def _select(self, query: sql.Select[Any]) -> list[Row]:
        return self._database.read(lambda connection: [dict(row) for row in connection.execute(query).mappings()])


_WITH_CONTEXT = EVALUATIONS.outerjoin(CONTEXTS, EVALUATIONS.c.context == CONTEXTS.c.digest)
_ROWS = sql.select(EVALUATIONS, CONTEXTS.c.context.label("context_text")).select_from(_WITH_CONTEXT)


def is_intact(row: Row) -> bool:
    """Return whether a row has its context and, except for a claim, sound values that match its checksum."""
    if row["context_text"] is None or context_digest(row["context_text"]) != row["context"]:
        return False
    return row["status"] == EvaluationStatus.RUNNING or store_rows.is_intact(row)


def _has_schema(path: Path) -> bool:
    """Return whether a file is a SQLite database with an evaluation store; the file is only read."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            return connection.execute(query, (SCHEMA.name,)).fetchone() is not None
    except sqlite3.OperationalError as error:
        raise UserError(f"{path}: cannot be opened as an evaluation store ({error})") from None
    except sqlite3.DatabaseError:
        return False


SUFFIXES = (".jsonl", ".csv")


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write exported rows to a new file, whole or not at all, and return their number.

    Raises:
        UserError: the file exists or cannot be written, or another suffix.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a file name that ends in {' or '.join(SUFFIXES)}")
    temporary, num_rows = path.with_name(f".{path.name}.{os.getpid()}.tmp"), 0
    try:
        path.open("xb").close()  # reserves the name
    except FileExistsError:
        raise UserError(f"{path}: expected a new file, got an existing one") from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, [c.name for c in COLUMNS], lineterminator="\n")
            if path.suffix == ".csv":
                table.writeheader()
            for row in rows:
                num_rows += 1
                table.writerow(row) if path.suffix == ".csv" else file.write(json.dumps(dict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        path.unlink()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise
    return num_rows
