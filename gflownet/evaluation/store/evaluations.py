"""The store: every evaluation of every graph, in a database that several processes may write."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from gflownet.errors import UserError
from gflownet.evaluation.store.database import SCHEMA_VERSION as SCHEMA_VERSION
from gflownet.evaluation.store.database import Database, add_contexts, is_network_file_system, prepare_schema
from gflownet.evaluation.store.rows import (
    CONTEXTS,
    DAMAGED,
    EVALUATIONS,
    IS_RUNNING,
    IS_SEARCH_SUCCESS,
    claim_statement,
    context_digest,
    is_claim,
    is_expired,
    is_intact,
    record_of,
    row_of,
)
from gflownet.evaluation.store.rows import Claim as Claim
from gflownet.evaluation.store.rows import EvaluationRecord as EvaluationRecord
from gflownet.evaluation.store.rows import EvaluationStatus as EvaluationStatus
from gflownet.evaluation.store.rows import Identity as Identity
from gflownet.files import Closing
from gflownet.graphs.canonical import Candidate

# Digests per SELECT; SQLite's smallest limit on bound values is 999.
_CHUNK = 500
_IS_FINISHED = sql.text("status <> 'running'")
_IS_REPLACED = sql.text(
    "evaluations.status = 'refused' OR (evaluations.status = 'running' AND excluded.status <> 'refused')"
)
_IDENTITY = ("id", "context", "hash", "key", "fidelity", "seed", "identity_digest")
_log = logging.getLogger(__name__)


class EvaluationStore(Closing):
    """Evaluations by exact graph identity, fidelity and seed. A finished row stays; adding it again changes nothing.

    A row is durable once `add` has returned, also when the process is killed. Any number of processes may open one
    store; each opens its own (never across a fork). Threads may share one. Rows of other contexts are invisible.

    A graph is evaluated by the owner of its RUNNING row (`claim`), until the owner adds a result, gives it back
    (`release`) or stops to `renew` its lease.
    """

    def __init__(self, location: str | Path, *, context: str = "", patience: float = 0.0) -> None:
        """Open or create the store at a path (SQLite) or a database URL.

        `context` contains everything except the graph that a score depends on (`scoring_context`). Once it is open, a
        PostgreSQL server that goes away is waited for, up to `patience` seconds at each use.

        Raises:
            UserError: not an evaluation store, one of another schema version, or a damaged file.
        """
        self.context = context
        self._context = context_digest(context)
        self._database = Database(str(location))
        self.location = self._database.location
        try:
            self._check_file()
            prepare_schema(self._database)
        except UserError:
            self.close()
            raise
        self._database.patience = patience
        self._is_context_known = False

    def find(self, candidate: Candidate) -> EvaluationRecord | None:
        """Return the finished row of a graph in the search, or None."""
        return self.find_many([Identity.of(candidate)])[0]

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the finished row of each identity, or None; one query per 500 identities."""
        digests = list(dict.fromkeys(identity.digest(self._context) for identity in identities))
        rows: dict[Identity, EvaluationRecord] = {}
        for start in range(0, len(digests), _CHUNK):
            is_one = EVALUATIONS.c.identity_digest.in_(digests[start : start + _CHUNK])
            rows |= {record.identity: record for record in self._select(self._finished().where(is_one))}
        return [rows.get(identity) for identity in identities]

    def claim(
        self,
        candidates: Iterable[tuple[Candidate, Identity]],
        *,
        owner: str,
        run: str,
        step: int,
        lease: float,
        max_attempts: int,
        counts_lost: bool = True,
    ) -> list[Claim]:
        """Return the claims that `owner` gets, in one atomic statement.

        Granted are graphs without a row, RUNNING rows with an expired lease (their attempts count the ended process),
        rows that the owner has already, transient failures that the run may retry (`may_be_retried`) and REFUSED rows.
        Rows without earlier attempts count as started: call `start` before any other is evaluated.

        Args:
            candidates: graphs with their identities.
            owner: name of this process, unique.
            run: id of the run, recorded in the row.
            step: training step that requests them.
            lease: seconds until another process may claim them, unless renewed.
            max_attempts: attempts after which a transient failure is final.
            counts_lost: count an attempt if this process ends during the evaluation; False where candidates run in
                other processes, so that none can end this one.
        """
        batch = {
            identity.digest(self._context): (identity, json.dumps(candidate.to_dict()))
            for candidate, identity in candidates
        }
        if not batch:
            return []
        rows = [{"digest": digest, "graph": graph, **identity._asdict()} for digest, (identity, graph) in batch.items()]
        values = {"batch": json.dumps(rows), "context": self._context, "owner": owner, "run": run, "step": step}
        statement = claim_statement(self._database.dialect)
        values |= {"lease": lease, "max_attempts": max_attempts, "started": int(counts_lost)}
        if self._database.dialect == "sqlite":
            values["now"] = time.time()

        def insert_or_take(connection: sql.Connection) -> dict[str, int]:
            self._add_context(connection)
            return {row[0]: row[1] for row in connection.execute(statement, values)}

        granted = self._database.write(insert_or_take, is_result=False)
        self._is_context_known = True
        return [Claim(identity, granted[digest]) for digest, (identity, _) in batch.items() if digest in granted]

    def start(self, identities: Iterable[Identity], *, owner: str) -> None:
        """Count the evaluation of claimed rows as an attempt from now on, even if this process ends during it."""
        digests = [identity.digest(self._context) for identity in identities]
        mine = EVALUATIONS.c.identity_digest.in_(digests) & (EVALUATIONS.c.owner == owner) & IS_RUNNING
        self._update(sql.update(EVALUATIONS).where(mine).values(started=1))

    def renew(self, *, owner: str, lease: float) -> int:
        """Extend all claims of an owner by `lease` seconds from now, and return their number."""
        until = self._database.now() + lease
        renewed = sql.update(EVALUATIONS).where(is_claim(EVALUATIONS.c.owner == owner)).values(lease_until=until)
        return self._update(renewed, is_patient=False)

    def release(self, *, owner: str) -> int:
        """Give back all claims of an owner, none of them counted as an attempt; return their number."""
        claims = is_claim(EVALUATIONS.c.owner == owner)

        def give_back(connection: sql.Connection) -> int:
            never_ended = claims & (EVALUATIONS.c.attempts == 0)
            deleted = connection.execute(sql.delete(EVALUATIONS).where(never_ended)).rowcount
            values = {"owner": None, "lease_until": 0.0, "started": 0}
            return deleted + connection.execute(sql.update(EVALUATIONS).where(claims).values(values)).rowcount

        return self._database.write(give_back, is_result=False, is_patient=False)

    def requeue(self, *, run: str) -> int:
        """End the leases of all claims of a run, whose process has ended; return their number."""
        claims = IS_RUNNING & (EVALUATIONS.c.run == run)
        return self._update(sql.update(EVALUATIONS).where(claims).values(owner=None, lease_until=0.0))

    def abandon(self, *, run: str) -> int:
        """Delete the RUNNING rows of a finished run without a live lease, in every context; return their number."""
        claims = is_claim(EVALUATIONS.c.run == run, is_expired(self._database.now()))
        return self._update(sql.delete(EVALUATIONS).where(claims))

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        """Write results in one transaction: new rows, RUNNING ones of any owner, REFUSED ones; other rows stay.

        A REFUSED result never replaces a RUNNING row, which another run with a larger budget evaluates.

        Raises:
            ValueError: a score is not finite (SQLite would store a NaN as NULL).
            UserError: the database cannot be written, for example on a full disk; its rows are unchanged.
        """
        rows = [row_of(record, context=self._context) for record in records]
        if not rows:
            return
        if self._database.dialect == "postgresql":  # its writers lock rows, in the same order
            rows.sort(key=lambda row: row["identity_digest"])
        insert = self._database.insert(EVALUATIONS)
        insert = insert.on_conflict_do_update(
            index_elements=["identity_digest"],
            set_={name: insert.excluded[name] for name in rows[0] if name not in _IDENTITY},
            where=_IS_REPLACED,
        )

        def complete(connection: sql.Connection) -> None:
            self._add_context(connection)
            connection.execute(insert, rows)

        self._database.write(complete)
        self._is_context_known = True

    def top(self, num: int) -> list[EvaluationRecord]:
        """Return the `num` best successful rows of the search, best first, ties by age."""
        order = (EVALUATIONS.c.score.desc(), EVALUATIONS.c.id)
        return self._select(self._rows().where(IS_SEARCH_SUCCESS).order_by(*order).limit(num))

    def count(self, status: EvaluationStatus | None = None, *, run: str | None = None) -> int:
        """Return the number of rows: of one status, or of all that are finished; of one run, or of all."""
        query = sql.select(sql.func.count()).where(EVALUATIONS.c.context == self._context)
        query = query.where(_IS_FINISHED if status is None else EVALUATIONS.c.status == status.value)
        if run is not None:
            query = query.where(EVALUATIONS.c.run == run)
        return self._database.read(lambda connection: connection.execute(query).scalar_one())

    def num_evaluations(self, *, run: str) -> int:
        """Return the number of evaluations of the search of a run, of all its contexts; without refused candidates."""
        query = sql.select(sql.func.count()).where(EVALUATIONS.c.context != DAMAGED, _IS_FINISHED)
        is_search = (EVALUATIONS.c.seed == 0) & (EVALUATIONS.c.status != EvaluationStatus.REFUSED.value)
        query = query.where(is_search, EVALUATIONS.c.run == run)
        return self._database.read(lambda connection: connection.execute(query).scalar_one())

    def __iter__(self) -> Iterator[EvaluationRecord]:
        """Iterate over all finished rows by age, reading some at a time."""
        return self.of_run(None)

    def of_run(self, run: str | None) -> Iterator[EvaluationRecord]:
        """Iterate over the finished rows of a run by age, reading some at a time; None: of all runs."""
        finished, last = self._finished(), -1
        if run is not None:
            finished = finished.where(EVALUATIONS.c.run == run)
        while True:
            rows = self._select_rows(finished.where(EVALUATIONS.c.id > last).order_by(EVALUATIONS.c.id).limit(_CHUNK))
            if not rows:
                return
            yield from map(record_of, rows)
            last = rows[-1]["id"]

    def num_by_context(self) -> dict[str, int]:
        """Return the number of finished rows of each context of the database."""
        query = (
            sql.select(CONTEXTS.c.digest, CONTEXTS.c.context, sql.func.count())
            .join(EVALUATIONS, EVALUATIONS.c.context == CONTEXTS.c.digest)
            .where(_IS_FINISHED)
            .group_by(CONTEXTS.c.digest, CONTEXTS.c.context)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {context: num for digest, context, num in rows if context_digest(context) == digest}

    def close(self) -> None:
        """Close every connection; the store must not be used afterwards."""
        self._database.close()

    def _check_file(self) -> None:
        """Warn about a network file system; raise UserError for a file damaged when a process was killed."""
        path = self._database.path
        if path is None:
            return
        kind = is_network_file_system(path)
        if kind is not None:
            _log.warning("%s: on a network file system (%s) several processes may damage SQLite", self.location, kind)
        self._database.check_intact(self.location)

    def _rows(self) -> sql.Select[Any]:
        return sql.select(EVALUATIONS).where(EVALUATIONS.c.context == self._context)

    def _finished(self) -> sql.Select[Any]:
        return self._rows().where(_IS_FINISHED)

    def _update(self, statement: sql.Update | sql.Delete, *, is_patient: bool = True) -> int:
        def change(connection: sql.Connection) -> int:
            return connection.execute(statement).rowcount

        return self._database.write(change, is_result=False, is_patient=is_patient)

    def _add_context(self, connection: sql.Connection) -> None:
        if not self._is_context_known:
            add_contexts(connection, [self.context])

    def _select(self, query: sql.Select[Any]) -> list[EvaluationRecord]:
        return [record_of(row) for row in self._select_rows(query)]

    def _select_rows(self, query: sql.Select[Any]) -> list[sql.RowMapping]:
        hidden = list[int]()
        while True:
            rows = self._database.read(lambda connection: list(connection.execute(query).mappings()))
            damaged = [row["id"] for row in rows if not is_intact(row)]
            if not damaged:
                return rows
            if damaged == hidden:
                raise UserError(f"{self.location}: expected an intact database, got row {damaged[0]}, which stays")
            self._set_aside(damaged)
            hidden = damaged

    def _set_aside(self, ids: Sequence[int]) -> None:
        """Hide damaged rows, so that their graphs are evaluated again; they stay in the table."""
        _log.warning(
            "%s: row %d does not match its checksum (%d such rows); hidden, its graph is evaluated again",
            self.location,
            ids[0],
            len(ids),
        )

        def hide(connection: sql.Connection) -> None:
            for number in ids:
                hidden = {"context": DAMAGED, "identity_digest": f"{DAMAGED} {number}"}
                connection.execute(sql.update(EVALUATIONS).where(EVALUATIONS.c.id == number).values(hidden))

        self._database.write(hide)
