"""Rows of all contexts of a store, for `gflownet store`: summary, search, requeue, files (JSON lines and Parquet)."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sql

from gflownet.errors import UserError
from gflownet.evaluation import store_rows
from gflownet.evaluation.store_database import Database
from gflownet.evaluation.store_rows import (
    CONTEXTS,
    DAMAGED,
    EVALUATIONS,
    IS_RUNNING,
    IS_SEARCH_SUCCESS,
    REQUEUED,
    SCHEMA,
    EvaluationStatus,
    Identity,
    checksum_of,
    context_digest,
    is_expired,
)
from gflownet.evaluation.store_schema import add_contexts, prepare_schema, stored_version
from gflownet.files import Closing, cannot_write, parse_json

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

    def __init__(self, location: str, *, creates: bool = False) -> None:
        """Open a store at a path (SQLite) or a database URL; older versions are migrated.

        Args:
            location: path or URL.
            creates: create the store if there is none.

        Raises:
            UserError: no store, a damaged one, or one of a newer version.
        """
        self._database = Database(location)
        self.location = self._database.location
        try:
            self._check_exists(creates=creates)
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
        with self._database.read() as connection:
            groups = connection.execute(query).all()
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
        with self._database.read() as connection:
            contexts = connection.execute(sql.select(CONTEXTS.c.digest).order_by(CONTEXTS.c.digest)).scalars().all()
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
            last = rows[-1]["id"]

    def count(self) -> int:
        """Return the number of all rows: results, claims and damaged ones."""
        with self._database.read() as connection:
            return connection.execute(sql.select(sql.func.count()).select_from(EVALUATIONS)).scalar_one()

    def add(self, exported: Iterable[Row]) -> int:
        """Add exported rows, intact ones only, and return the number of new ones; results that are there stay."""
        insert = self._database.insert(EVALUATIONS)
        names = [c.name for c in COLUMNS] + ["owner", "lease_until", "started"]
        upsert = insert.on_conflict_do_update(
            index_elements=["identity_digest"],
            set_={name: insert.excluded[name] for name in names},
            where=sql.text("evaluations.status = 'running'"),
        ).returning(EVALUATIONS.c.id)
        num_new = 0
        for chunk in batches(exported, _CHUNK):
            free = {"owner": None, "lease_until": None, "started": 0}
            stored = [{c.name: row[c.name] for c in COLUMNS} | free for row in map(_digested, chunk)]
            rows = list({row["identity_digest"]: row for row in stored}.values())
            num_new += self._database.write(partial(_add, upsert, {row["context"] for row in chunk}, rows))
        return num_new

    def num_leased(self, rows: Sequence[Row]) -> int:
        """Return how many of the rows are claimed by a process whose lease has not ended."""
        ids = [row["id"] for row in rows]
        query = sql.select(sql.func.count()).where(
            EVALUATIONS.c.id.in_(ids), IS_RUNNING, ~is_expired(self._database.now())
        )
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    def requeue(self, status: EvaluationStatus | None, *, ids: Collection[int] | None, is_forced: bool) -> int:
        """Turn rows into claims without an owner, which the next run evaluates again, and return their number.

        Args:
            status: of the rows; None: all.
            ids: of the rows; None: all.
            is_forced: also claims with a live lease.
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

    def close(self) -> None:
        """Close every connection; the overview must not be used afterwards."""
        self._database.close()

    def _check_exists(self, *, creates: bool) -> None:
        path = self._database.path
        if path is None:
            if not creates and stored_version(self._database) is None:
                raise UserError(f"{self.location}: no evaluation store here")
        elif path.exists():
            if not _has_schema(path):
                raise UserError(f"{path}: expected an evaluation store, got another file")
            self._database.check_intact(str(path))
        elif not creates:
            raise UserError(f"no such file: {path}")
        elif not path.parent.is_dir():
            raise UserError(f"{path}: no such folder: {path.parent}")

    def _select(self, query: sql.Select[Any]) -> list[Row]:
        with self._database.read() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]


_WITH_CONTEXT = EVALUATIONS.outerjoin(CONTEXTS, EVALUATIONS.c.context == CONTEXTS.c.digest)
_ROWS = sql.select(EVALUATIONS, CONTEXTS.c.context.label("context_text")).select_from(_WITH_CONTEXT)


def batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield the rows in lists of a size; the last may be shorter."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch


def is_intact(row: Row) -> bool:
    """Return whether a row has its context and, except for a claim, sound values that match its checksum."""
    if row["context_text"] is None or context_digest(row["context_text"]) != row["context"]:
        return False
    return row["status"] == EvaluationStatus.RUNNING or store_rows.is_intact(row)


def check_exported(row: Any) -> None:
    """Check an exported row.

    Raises:
        ValueError: missing columns, or values that do not match the checksum.
    """
    missing = [c.name for c in COLUMNS if not isinstance(row, dict) or c.name not in row]
    if missing:
        raise ValueError(f"expected the columns of an evaluation, got none named {missing[0]}")
    if not all(isinstance(row[name], str) for name in ("context", "key")):
        raise ValueError("expected context and key as text")
    digested = _digested(row)
    identity = Identity(row["hash"], row["key"], row["fidelity"], row["seed"]).digest(digested["context"])
    if row["checksum"] != checksum_of(digested) or row["identity_digest"] != identity:
        raise ValueError("expected values that match the checksum, got others")
    store_rows.check_values(digested)


def _digested(row: Row) -> dict[str, Any]:
    return {**row, "context": context_digest(row["context"])}


def _add(upsert: Any, contexts: Collection[str], rows: list[dict[str, Any]], connection: sql.Connection) -> int:
    add_contexts(connection, contexts)
    return len(connection.execute(upsert, rows).all())


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


SUFFIXES = (".jsonl", ".parquet")
_NUM_PARQUET_ROWS = 1_000


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write exported rows to a new file, whole or not at all, and return their number.

    Raises:
        UserError: the file exists or cannot be written, another suffix, or pyarrow is missing.
    """
    is_parquet = _is_parquet(path)
    if is_parquet:
        _parquet()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.open("xb").close()  # reserves the name
    except FileExistsError:
        raise UserError(f"{path}: expected a new file, got an existing one") from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with temporary.open("xb") as file:
            num_rows = (_write_parquet if is_parquet else _write_lines)(file, rows)
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


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, checked.

    Raises:
        UserError: no such file, another format, or a row that does not match its checksum.
    """
    reader = _read_parquet if _is_parquet(path) else _read_lines
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    number = 1
    try:
        for row in reader(path):
            check_exported(row)
            yield row
            number += 1
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}, row {number}: {error}") from error


def _is_parquet(path: Path) -> bool:
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a file name that ends in {' or '.join(SUFFIXES)}")
    return path.suffix == ".parquet"


def _write_lines(file: IO[bytes], rows: Iterable[Row]) -> int:
    num_rows = 0
    for row in rows:
        file.write(json.dumps(dict(row)).encode() + b"\n")
        num_rows += 1
    return num_rows


def _read_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield parse_json(line)


def _write_parquet(file: IO[bytes], rows: Iterable[Row]) -> int:
    pyarrow, parquet = _parquet()
    types = {sql.Text: pyarrow.string(), sql.Double: pyarrow.float64(), sql.Boolean: pyarrow.bool_()}
    schema = pyarrow.schema([(c.name, types.get(type(c.type), pyarrow.int64())) for c in COLUMNS])
    num_rows = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in batches(rows, _NUM_PARQUET_ROWS):
            writer.write_batch(pyarrow.RecordBatch.from_pylist(chunk, schema=schema))
            num_rows += len(chunk)
    return num_rows


def _read_parquet(path: Path) -> Iterator[Any]:
    _, parquet = _parquet()
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_NUM_PARQUET_ROWS):
            yield from batch.to_pylist()


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"Parquet files need pyarrow ({error}): pip install 'gflownet[parquet]'") from error
    return pyarrow, pyarrow.parquet
