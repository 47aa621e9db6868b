"""The store of a certificate: the evaluations of the run, and a second file for new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gflownet.evaluation.claims import Store
from gflownet.evaluation.store import Claim, EvaluationRecord, EvaluationStore, Identity
from gflownet.graphs.canonical import Candidate


class CertificateStore:
    """The evaluations of a run, and a second store for new ones, which reports of the search exclude."""

    def __init__(self, run: Store, new: EvaluationStore) -> None:
        self._run, self._new = run, new

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the record of each graph, or None."""
        pairs = zip(self._run.find_many(identities), self._new.find_many(identities), strict=True)
        return [new or known for known, new in pairs]  # a new one is another attempt

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        """Store new evaluations."""
        self._new.add(records)

    def claim(self, candidates: Iterable[tuple[Candidate, Identity]], **options: Any) -> list[Claim]:
        """Return the claims of new evaluations, see `EvaluationStore.claim`."""
        return self._new.claim(candidates, **options)

    def start(self, identities: Iterable[Identity], *, owner: str) -> None:
        """Count an attempt, see `EvaluationStore.start`."""
        self._new.start(identities, owner=owner)

    def renew(self, *, owner: str, lease: float) -> int:
        """Extend the claims of an owner."""
        return self._new.renew(owner=owner, lease=lease)

    def release(self, *, owner: str, identities: Sequence[Identity] | None = None) -> int:
        """Give back claims of an owner."""
        return self._new.release(owner=owner, identities=identities)
