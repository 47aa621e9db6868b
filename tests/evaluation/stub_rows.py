"""Stand-ins for graphs, and their rows, without torch: programs of tests start at once."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, EvaluationStore


@dataclass(frozen=True)
class StubCandidate:
    """An identity without a graph; several may share a hash."""

    key: str
    hash: str = ""

    def canonical_key(self) -> str:
        return self.key

    def canonical_hash(self) -> str:
        return self.hash or f"hash of {self.key}"

    def to_dict(self) -> dict[str, Any]:
        return {"nodes": [self.key]}


def record(key: str, *, score: float = 0.5, step: int = 1, **fields: Any) -> EvaluationRecord:
    candidate = StubCandidate(key, fields.pop("hash", ""))
    values = {"graph": "{}", "status": EvaluationStatus.OK, **fields}
    return EvaluationRecord(candidate.canonical_hash(), key, score=score, seconds=0.1, step=step, **values)


def open_store(path: Path) -> EvaluationStore:
    """Open the store of a run under its only context."""
    with closing(sqlite3.connect(path)) as connection:
        ((context,),) = connection.execute("SELECT context FROM evaluation_contexts").fetchall()
    return EvaluationStore(path, context=context)
