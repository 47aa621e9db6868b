"""The statement that claims a batch of graphs, for SQLite and PostgreSQL."""

from __future__ import annotations

from functools import cache

import sqlalchemy as sql

from gflownet.evaluation.status import EvaluationStatus
from gflownet.evaluation.store_rows import EVALUATIONS, IS_RUNNING, RETRIED_BY_OTHER_RUNS

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
