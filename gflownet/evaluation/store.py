"""The store: every evaluation of every graph, in a database that several processes may write."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, ProgrammingError

from gflownet.errors import UserError
from gflownet.evaluation.job import EvaluationStatus as EvaluationStatus
from gflownet.graphs.canonical import Candidate

SCHEMA_VERSION = 3
# Maximum time that a writer waits for the others, seconds.
BUSY_TIMEOUT = 60.0
# Hashes per SELECT; SQLite's smallest limit on bound values is 999.
_CHUNK = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationRecord:
    """One row: a graph and its evaluation."""

    hash: str  # canonical hash, a bucket
    key: str  # canonical key, the identity
    graph: str  # node-link JSON
    score: float  # finite; the floor when the evaluation failed
    status: EvaluationStatus
    seconds: float
    step: int  # training step that requested it
    run: str = ""  # id of the run that requested it
    error: str | None = None
    num_parameters: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


class Identity(NamedTuple):
    """Hash and key of a graph, with fidelity and seed of its evaluation."""

    hash: str  # canonical hash, a bucket
    key: str  # canonical key
    fidelity: int = 0  # epochs or steps of training; 0: the task's own evaluation
    seed: int = 0  # 0: the candidate's seed in the search; k: its k-th further seed

    @classmethod
    def of(cls, candidate: Candidate, *, fidelity: int = 0, seed: int = 0) -> Identity:
        return cls(candidate.canonical_hash(), candidate.canonical_key(), fidelity, seed)


_metadata = sql.MetaData()
_schema = sql.Table(
    "evaluation_schema",
    _metadata,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("version", sql.Integer, nullable=False),
)
_evaluations = sql.Table(
    "evaluations",
    _metadata,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("context", sql.Text, nullable=False),
    sql.Column("hash", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    # Uniqueness is on a digest because PostgreSQL does not index long texts; `find` compares the key itself.
    sql.Column("identity_digest", sql.Text, nullable=False, unique=True),
    sql.Column("graph", sql.Text, nullable=False),
    sql.Column("score", sql.Double, nullable=False),
    sql.Column("status", sql.Text, nullable=False),
    sql.Column("seconds", sql.Double, nullable=False),
    sql.Column("step", sql.Integer, nullable=False),
    sql.Column("run", sql.Text, nullable=False),
    sql.Column("error", sql.Text),
    sql.Column("num_parameters", sql.BigInteger),
    sql.Column("metrics", sql.Text, nullable=False),
    sql.Column("created", sql.Text, nullable=False),
    sql.Column("checksum", sql.Text),  # of the other columns; NULL in rows of schema version 2
    sql.Index("evaluations_by_hash", "hash"),
)
_CHECKED = [column.name for column in _evaluations.columns if column.name not in ("id", "checksum")]
_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class EvaluationStore:
    """Evaluations by exact graph identity. The first row of a graph stays; adding it again changes nothing.

    A row is durable once `add` has returned, also when the process is killed. Any number of processes may open one
    store; each opens its own (never across a fork). Rows of other contexts are invisible.
    """

    def __init__(self, location: str | Path, *, context: str = "") -> None:
        """Open or create the store at a path (SQLite) or a database URL.

        `context` contains everything except the graph that a score depends on (`scoring_context`).

        Raises:
            UserError: not an evaluation store, or one of another schema version.
        """
        self._context = context
        self._pid = os.getpid()
        self._engine = _create_engine(str(location))
        self.location = self._engine.url.render_as_string(hide_password=True)
        self._check_schema()

    def find(self, candidate: Candidate) -> EvaluationRecord | None:
        """Return the row of a graph, or None."""
        return self.find_many([Identity.of(candidate)])[0]

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the row of each graph, or None; one query per 500 graphs."""
        hashes = list(dict.fromkeys(identity.hash for identity in identities))
        rows: dict[str, EvaluationRecord] = {}
        for start in range(0, len(hashes), _CHUNK):
            has_hash = _evaluations.c.hash.in_(hashes[start : start + _CHUNK])
            rows |= {record.key: record for record in self._select(self._rows().where(has_hash))}
        return [rows.get(identity.key) for identity in identities]

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        """Write records in one transaction; graphs that already have a row keep it.

        Raises:
            ValueError: a score is not finite (SQLite would store a NaN as NULL).
            UserError: the database cannot be written, for example on a full disk; its rows are unchanged.
        """
        rows = [self._row(record) for record in records]
        if not rows:
            return
        insert = _INSERTS[self._engine.dialect.name](_evaluations).on_conflict_do_nothing()
        with self._connect() as connection, connection.begin():
            connection.execute(insert, rows)

    def top(self, num: int) -> list[EvaluationRecord]:
        """Return the `num` best successful rows, best first, ties by age."""
        is_ok = _evaluations.c.status == EvaluationStatus.OK.value
        order = (_evaluations.c.score.desc(), _evaluations.c.id)
        return self._select(self._rows().where(is_ok).order_by(*order).limit(num))

    def count(self, status: EvaluationStatus | None = None) -> int:
        """Return the number of rows, of one status or of all."""
        query = sql.select(sql.func.count()).where(_evaluations.c.context == self._context)
        if status is not None:
            query = query.where(_evaluations.c.status == status.value)
        with self._connect() as connection:
            return connection.execute(query).scalar_one()

    def close(self) -> None:
        """Close every connection; the store must not be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self) -> sql.Select[Any]:
        return sql.select(_evaluations).where(_evaluations.c.context == self._context)

    def _select(self, query: sql.Select[Any]) -> list[EvaluationRecord]:
        """Return the records of the intact rows."""
        while True:
            with self._connect() as connection:
                rows = list(connection.execute(query).mappings())
            damaged = [row["id"] for row in rows if row["checksum"] not in (None, _checksum(row))]
            if not damaged:
                return [_record(row) for row in rows]
            self._set_aside(damaged)

    def _set_aside(self, ids: Sequence[int]) -> None:
        """Hide damaged rows, so that their graphs are evaluated again; they stay in the table."""
        _log.warning(
            "%s: row %d does not match its checksum (%d such rows); hidden, its graph is evaluated again",
            self.location,
            ids[0],
            len(ids),
        )
        with self._connect() as connection, connection.begin():
            for number in ids:
                hidden = {"context": "damaged", "identity_digest": f"damaged {number}"}
                connection.execute(sql.update(_evaluations).where(_evaluations.c.id == number).values(hidden))

    @contextmanager
    def _connect(self) -> Iterator[sql.Connection]:
        """Open a connection. Raises UserError in one line where the database cannot be read or written."""
        assert os.getpid() == self._pid, "an evaluation store must not be used across a fork: open one per process"
        try:
            with self._engine.connect() as connection:
                yield connection
        except DatabaseError as error:
            if isinstance(error, IntegrityError | ProgrammingError):
                raise
            raise UserError(f"{self.location}: cannot be used as an evaluation store ({error.orig})") from error

    def _row(self, record: EvaluationRecord) -> dict[str, Any]:
        if not math.isfinite(record.score):
            raise ValueError(f"store: expected a finite score, got {record.score} for graph {record.hash}")
        identity = hashlib.sha256(f"{self._context}\0{record.key}".encode()).hexdigest()
        row = {name: getattr(record, name) for name in record.__dataclass_fields__}
        metrics = {name: value if math.isfinite(value) else None for name, value in record.metrics.items()}
        row |= {
            "context": self._context,
            "identity_digest": identity,
            "score": float(record.score),
            "seconds": float(record.seconds),
            "status": record.status.value,
            "metrics": json.dumps(metrics),
        }
        return row | {"checksum": _checksum(row)}

    def _check_schema(self) -> None:
        insert = _INSERTS[self._engine.dialect.name](_schema).on_conflict_do_nothing()
        try:
            with self._engine.connect() as connection, connection.begin():
                for table in _metadata.sorted_tables:
                    connection.execute(sql.schema.CreateTable(table, if_not_exists=True))
                    for index in table.indexes:
                        connection.execute(sql.schema.CreateIndex(index, if_not_exists=True))
                connection.execute(insert, {"id": 1, "version": SCHEMA_VERSION})
                version = connection.execute(sql.select(_schema.c.version)).scalar_one()
                if version == 2:  # without checksums
                    connection.execute(sql.text("ALTER TABLE evaluations ADD COLUMN checksum TEXT"))
                    connection.execute(sql.update(_schema).values(version=SCHEMA_VERSION))
                    version = SCHEMA_VERSION
        except DatabaseError as error:
            self.close()
            raise UserError(f"{self.location}: cannot be opened as an evaluation store ({error.orig})") from error
        if version != SCHEMA_VERSION:
            self.close()
            raise UserError(
                f"{self.location}: expected an evaluation store of schema version {SCHEMA_VERSION}, got {version}; "
                f"use another log_dir or store_url"
            )


def _create_engine(location: str) -> sql.Engine:
    """Return an engine for a URL or a path; SQLite in WAL mode: readers and one writer do not wait."""
    try:
        url = sql.make_url(location) if "://" in location else sql.URL.create("sqlite", database=location)
    except ArgumentError:
        raise UserError("evaluation.store_url: expected a database URL such as postgresql://user@host/name") from None
    dialect = url.get_backend_name()
    if dialect not in _INSERTS:
        raise UserError(f"evaluation.store_url: expected one of {', '.join(_INSERTS)}, got {dialect}")
    if dialect != "sqlite":
        try:
            return sql.create_engine(url)
        except ModuleNotFoundError as error:
            raise UserError(
                f"evaluation.store_url: {dialect} needs a driver that is not installed ({error})"
            ) from error
    engine = sql.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT})

    @event.listens_for(engine, "connect")
    def use_write_ahead_log(connection: Any, _: Any) -> None:
        connection.text_factory = lambda text: text.decode(errors="replace")  # a damaged text fails by its checksum
        connection.execute("PRAGMA journal_mode=WAL")

    return engine


def _checksum(row: Mapping[Any, Any]) -> str:
    """Return a digest of the columns of a row except its id."""
    values = {name: row[name] for name in _CHECKED}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _record(row: Mapping[Any, Any]) -> EvaluationRecord:
    values = {name: row[name] for name in EvaluationRecord.__dataclass_fields__}
    metrics = {name: math.nan if value is None else value for name, value in json.loads(row["metrics"]).items()}
    return EvaluationRecord(**values | {"status": EvaluationStatus(row["status"]), "metrics": metrics})
