"""Rows of the evaluation store: status, record, identity, tables, checksum, and the statement that claims a batch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sql

from gflownet.files import check_json, parse_json
from gflownet.graphs.canonical import Candidate


class EvaluationStatus(StrEnum):
    """State of an evaluation."""

    OK = "ok"
    FAILED = "failed"  # the candidate raised, or its score is invalid
    TIMEOUT = "timeout"  # its process was ended at the deadline
    CRASHED = "crashed"  # its process ended by itself
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"  # by the task, or larger than budget.parameters or budget.flops; nothing was allocated
    RUNNING = "running"  # a row of the store without a result yet

    @property
    def words(self) -> str:
        """Return the words after a candidate or a number of candidates: exceeded its deadline."""
        return _WORDS.get(self.value, self.value)


_WORDS = {
    "timeout": "exceeded its deadline",
    "crashed": "ended its process",
    "out_of_memory": "ran out of memory",
    "refused": "was refused",
}
_TYPED = re.compile(r"(?:\w+\.cost: )?(?P<type>\w+): .*\((?P<place>[^()\s]+:\d+)\)")  # as written by `describe`
_NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_MAX_CAUSE = 100


def failure_kind(status: EvaluationStatus, error: str | None) -> str:
    """Return status, error type, file and line of a failure; without a place its first line without numbers."""
    text = first_line(error)
    if typed := _TYPED.fullmatch(text):
        cause = f"{typed['type']} ({typed['place']})"
    elif status is EvaluationStatus.TIMEOUT:  # the deadline of a job depends on its size
        cause = ""
    elif status is EvaluationStatus.CRASHED:  # its numbers are exit statuses
        cause = text[:_MAX_CAUSE]
    else:
        cause = _NUMBER.sub("…", text)[:_MAX_CAUSE]
    return f"{status.value}: {cause}" if cause else status.value


def first_line(error: str | None) -> str:
    """Return the line of an error that names it: the last one of a traceback, otherwise the first."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


# Context of damaged rows, which no run opens.
DAMAGED = "damaged"


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
    fidelity: int = 0  # epochs or steps of training; 0: the task's own evaluation
    seed: int = 0  # 0: the candidate's seed in the search; k: its k-th further seed
    attempts: int = 1  # evaluations until this result
    is_transient: bool = False  # a failure worth another attempt
    parent: int | None = None  # fidelity of the row whose training this one continued
    curve: tuple[float, ...] = ()  # validation score after each epoch or measured step

    @property
    def identity(self) -> Identity:
        """Return the identity of the row."""
        return Identity(self.hash, self.key, self.fidelity, self.seed)

    def may_be_retried(self, *, run: str, max_attempts: int) -> bool:
        """Return whether a run may claim the row again: a transient failure.

        With attempts left always. Without, a failure that is not the candidate's (memory, connection) is retried by
        other runs; crashes and timeouts stay, because another attempt costs a process or a deadline.
        """
        if not self.is_transient:
            return False
        return self.attempts < max_attempts or (self.run != run and self.status.value in RETRIED_BY_OTHER_RUNS)


RETRIED_BY_OTHER_RUNS = (EvaluationStatus.FAILED.value, EvaluationStatus.OUT_OF_MEMORY.value)


class Identity(NamedTuple):
    """Hash and key of a graph, with fidelity and seed of its evaluation."""

    hash: str  # canonical hash, a bucket
    key: str  # canonical key
    fidelity: int = 0  # epochs or steps of training; 0: the task's own evaluation
    seed: int = 0  # 0: the candidate's seed in the search; k: its k-th further seed

    @classmethod
    def of(cls, candidate: Candidate, *, fidelity: int = 0, seed: int = 0) -> Identity:
        return cls(candidate.canonical_hash(), candidate.canonical_key(), fidelity, seed)

    def digest(self, context: str) -> str:
        """Return the digest under the digest of a context: unique, of fixed length."""
        text = f"{context}\0{self.key}\0{self.fidelity}\0{self.seed}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Claim:
    """The right to evaluate one graph, until its lease ends."""

    identity: Identity
    attempts: int  # earlier attempts whose process ended, or that failed


METADATA = sql.MetaData()
SCHEMA = sql.Table(
    "evaluation_schema",
    METADATA,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("version", sql.Integer, nullable=False),
)
CONTEXTS = sql.Table(
    "evaluation_contexts",
    METADATA,
    sql.Column("digest", sql.Text, primary_key=True),
    sql.Column("context", sql.Text, nullable=False),
)
IS_RUNNING = sql.text("status = 'running'")
IS_SEARCH_SUCCESS = sql.text("status = 'ok' AND fidelity = 0 AND seed = 0")
EVALUATIONS = sql.Table(
    "evaluations",
    METADATA,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("context", sql.Text, nullable=False),  # digest of a row of CONTEXTS
    sql.Column("hash", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    sql.Column("fidelity", sql.Integer, nullable=False),
    sql.Column("seed", sql.BigInteger, nullable=False),
    # Uniqueness is on a digest because PostgreSQL does not index long texts; `find_many` compares the key itself.
    sql.Column("identity_digest", sql.Text, nullable=False, unique=True),
    sql.Column("graph", sql.Text, nullable=False),
    sql.Column("score", sql.Double, nullable=False),
    sql.Column("status", sql.Text, nullable=False),
    sql.Column("is_transient", sql.Boolean, nullable=False),
    sql.Column("seconds", sql.Double, nullable=False),
    sql.Column("step", sql.Integer, nullable=False),
    sql.Column("run", sql.Text, nullable=False),
    sql.Column("error", sql.Text),
    sql.Column("num_parameters", sql.BigInteger),
    sql.Column("metrics", sql.Text, nullable=False),
    sql.Column("curve", sql.Text, nullable=False),
    sql.Column("attempts", sql.Integer, nullable=False),
    sql.Column("parent", sql.Integer),
    sql.Column("created", sql.Text, nullable=False),
    # Of RUNNING rows: process that evaluates it, end of its lease (seconds since 1970), whether its loss is an attempt.
    sql.Column("owner", sql.Text),
    sql.Column("lease_until", sql.Double),
    sql.Column("started", sql.Integer, nullable=False),
    sql.Column("checksum", sql.Text),  # of the columns of a result; NULL in RUNNING rows
    sql.Index("evaluations_running", "owner", sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING),
    sql.Index(
        "evaluations_by_score",
        "context",
        sql.text("score DESC"),
        "id",
        sqlite_where=IS_SEARCH_SUCCESS,
        postgresql_where=IS_SEARCH_SUCCESS,
    ),
)
# Columns of a result, in the order of the checksum.
_OTHERS = ("id", "owner", "lease_until", "started", "checksum")
_RESULT_COLUMNS = [column for column in EVALUATIONS.columns if column.name not in _OTHERS]
_RESULT = [column.name for column in _RESULT_COLUMNS]
_TYPES: dict[type, type] = {sql.Text: str, sql.Double: float, sql.Boolean: bool}


def context_digest(context: str) -> str:
    """Return the digest of a context, 128 bits."""
    return hashlib.sha256(context.encode()).hexdigest()[:32]


def row_of(record: EvaluationRecord, *, context: str) -> dict[str, Any]:
    """Return the columns of a finished record under the digest of a context.

    Raises:
        ValueError: a score that is not finite (SQLite would store a NaN as NULL), or a record without a result.
    """
    if not math.isfinite(record.score):
        raise ValueError(f"store: expected a finite score, got {record.score} for graph {record.hash}")
    if record.status is EvaluationStatus.RUNNING:
        raise ValueError(f"store: expected a result, got status {record.status.value} for graph {record.hash}")
    # PostgreSQL refuses NUL and lone surrogates.
    error = None if record.error is None else record.error.replace("\0", "\\x00").encode(errors="replace").decode()
    row = {name: getattr(record, name) for name in record.__dataclass_fields__}
    row |= {
        "context": context,
        "identity_digest": record.identity.digest(context),
        "score": float(record.score),
        "seconds": float(record.seconds),
        "status": record.status.value,
        "error": error,
        "metrics": json.dumps({name: _finite(value) for name, value in record.metrics.items()}),
        "curve": json.dumps([_finite(value) for value in record.curve]),
    }
    return row | {"owner": None, "lease_until": None, "started": 0, "checksum": checksum_of(row)}


def record_of(row: Mapping[Any, Any]) -> EvaluationRecord:
    """Return the record of an intact row."""
    check_json(row["graph"])
    values = {name: row[name] for name in EvaluationRecord.__dataclass_fields__}
    values["metrics"] = {name: _number(value) for name, value in dict(parse_json(row["metrics"])).items()}
    values["curve"] = tuple(_number(value) for value in parse_json(row["curve"]))
    values["status"] = EvaluationStatus(row["status"])
    return EvaluationRecord(**values)


def check_values(row: Mapping[Any, Any]) -> None:
    """Raise ValueError for a value of a result that is not of its column's type, or cannot be stored."""
    for column in _RESULT_COLUMNS:
        value: Any = row[column.name]
        if value is None and column.nullable:
            continue
        expected: type = _TYPES.get(type(column.type), int)
        if type(value) is not expected or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{column.name}: expected {expected.__name__}, got {value!r:.80}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{column.name}: expected an integer of 64 bits, got {value!r:.80}")
        if isinstance(value, str):
            value.encode()  # lone surrogates raise
    record = record_of(row)
    values = (*record.metrics.values(), *record.curve)
    if record.status is EvaluationStatus.RUNNING or not all(type(value) in (int, float) for value in values):
        raise ValueError("expected a result with numbers as metrics and curve")


def is_intact(row: Mapping[Any, Any]) -> bool:
    """Return whether a result has values of its columns' types that match its checksum."""
    try:
        check_values(row)
    except (ValueError, TypeError):
        return False
    return row["checksum"] == checksum_of(row)


def checksum_of(row: Mapping[Any, Any]) -> str:
    """Return a digest of the columns of a result."""
    values = {name: row[name] for name in _RESULT}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _finite(value: float) -> float | None:
    """Replace numbers that JSON does not have."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


# The batch is one bound value, so that the statement is the same for every size. Writers of PostgreSQL lock rows, in
# the same order; writers of SQLite lock the file.
_BATCHES = {
    "sqlite": """
        SELECT json_extract(value, '$.digest') AS digest, json_extract(value, '$.hash') AS hash,
            json_extract(value, '$.key') AS key, json_extract(value, '$.graph') AS graph,
            json_extract(value, '$.fidelity') AS fidelity, json_extract(value, '$.seed') AS seed
        FROM json_each(:batch)""",
    "postgresql": """
        SELECT * FROM json_to_recordset(CAST(:batch AS json))
            AS item(digest text, hash text, key text, graph text, fidelity integer, seed bigint)
        ORDER BY digest""",
}
CLOCKS = {"sqlite": ":now", "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"}
_OTHER_RUNS = ", ".join(f"'{status}'" for status in RETRIED_BY_OTHER_RUNS)
_IS_RETRIED = f"""
    (evaluations.is_transient AND (evaluations.attempts < :max_attempts
        OR (evaluations.run <> excluded.run AND evaluations.status IN ({_OTHER_RUNS}))))"""
# Of a row taken over, the attempt of the ended process counts if it was started.
_ATTEMPTS = """
    CASE
        WHEN evaluations.status = 'running' THEN
            evaluations.attempts + CASE WHEN evaluations.owner = excluded.owner THEN 0 ELSE evaluations.started END
        WHEN evaluations.attempts < :max_attempts AND evaluations.status <> 'refused' THEN evaluations.attempts
        ELSE 0 END"""
# The new attempt counts at once if there is no earlier one, otherwise when its owner calls `start`.
_CLAIM = """
    INSERT INTO evaluations (
        context, hash, key, fidelity, seed, identity_digest, graph, score, status, is_transient, seconds, step, run,
        metrics, curve, attempts, created, owner, lease_until, started
    )
    SELECT :context, hash, key, fidelity, seed, digest, graph, 0, 'running', false, 0, :step, :run,
        '{{}}', '[]', 0, '', :owner, {clock} + :lease, :started
    FROM ({batch}) AS batch
    WHERE true
    ON CONFLICT (identity_digest) DO UPDATE SET
        attempts = {attempts}, started = CASE WHEN {attempts} = 0 THEN :started ELSE 0 END,
        status = 'running', is_transient = false, score = 0, error = NULL, checksum = NULL,
        owner = excluded.owner, lease_until = excluded.lease_until, run = excluded.run, step = excluded.step
    WHERE (evaluations.status = 'running'
            AND (coalesce(evaluations.lease_until, 0) <= {clock} OR evaluations.owner = excluded.owner))
        OR evaluations.status = 'refused' OR {is_retried}
    RETURNING identity_digest, attempts"""

# Values of a row that the next run evaluates again, with all attempts.
REQUEUED = {
    **{"status": EvaluationStatus.RUNNING.value, "is_transient": False, "score": 0.0, "error": None, "checksum": None},
    **{"attempts": 0, "owner": None, "lease_until": 0.0, "started": 0},
}


@cache
def claim_statement(dialect: str) -> sql.TextClause:
    """Return the statement with parameters batch, context, owner, run, step, lease, started, max_attempts.

    That of SQLite has the parameter now, too.
    """
    parts = {"clock": CLOCKS[dialect], "batch": _BATCHES[dialect], "attempts": _ATTEMPTS, "is_retried": _IS_RETRIED}
    return sql.text(_CLAIM.format(**parts))


def is_claim(*conditions: sql.ColumnElement[bool]) -> sql.ColumnElement[bool]:
    """Return the condition for RUNNING rows that satisfy all conditions, locked in the order of `claim_statement`."""
    ids = sql.select(EVALUATIONS.c.id).where(IS_RUNNING, *conditions)
    return EVALUATIONS.c.id.in_(ids.order_by(EVALUATIONS.c.identity_digest).with_for_update())


def is_expired(now: sql.ColumnElement[float]) -> sql.ColumnElement[bool]:
    """Return the condition for RUNNING rows without an owner, or with an expired lease."""
    return sql.func.coalesce(EVALUATIONS.c.lease_until, 0.0) <= now
