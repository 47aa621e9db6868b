"""Claims of a dispatcher in the store, kept alive by a thread while its evaluations run."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import Protocol

from gflownet.errors import UserError
from gflownet.evaluation.store.evaluations import Claim, EvaluationRecord, Identity
from gflownet.graphs.canonical import Candidate

# Heartbeats per lease: short leases end those of healthy processes (optuna issue 5470).
HEARTBEATS = 5
_log = logging.getLogger(__name__)


class Store(Protocol):
    """The part of an evaluation store that a dispatcher uses; its bodies make a store without rows."""

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        return [None] * len(identities)

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        return None

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
        return [Claim(identity, 0) for _, identity in candidates]

    def start(self, identities: Iterable[Identity], *, owner: str) -> None:
        return None

    def renew(self, *, owner: str, lease: float) -> int:
        return 0

    def release(self, *, owner: str) -> int:
        return 0


class NoStore(Store):
    """A store without rows, for evaluations that are repeated on purpose: it grants every claim."""


class Claims:
    """The claims of one owner. A daemon thread renews them, so that neither a long evaluation nor a long training step
    ends their lease; it ends with the last claim."""

    def __init__(self, store: Store, *, run: str, lease: float, max_attempts: int, counts_lost: bool = True) -> None:
        """Keep the arguments of `EvaluationStore.claim`; nothing is claimed."""
        self.owner = f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._store, self._run, self._lease, self._max_attempts = store, run, lease, max_attempts
        self._counts_lost = counts_lost
        self._claimed: set[Identity] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()  # of the thread, or of the one to come
        self._ended.set()

    def take(self, candidates: Sequence[tuple[Candidate, Identity]], *, step: int) -> dict[Identity, int]:
        """Return the identities that this owner may evaluate, with their numbers of earlier attempts."""
        claims = self._store.claim(
            candidates,
            owner=self.owner,
            run=self._run,
            step=step,
            lease=self._lease,
            max_attempts=self._max_attempts,
            counts_lost=self._counts_lost,
        )
        with self._lock:
            self._claimed |= {claim.identity for claim in claims}
            if self._claimed and self._ended.is_set():
                ended = self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._renew, args=(ended,), name="evaluation leases", daemon=True
                )
                self._thread.start()
        return {claim.identity: claim.attempts for claim in claims}

    def start(self, identity: Identity) -> None:
        """Count an attempt of a graph that was in an evaluation when its process ended, unless no loss counts."""
        if self._counts_lost:
            self._store.start([identity], owner=self.owner)

    def finish(self, written: Iterable[Identity]) -> None:
        """Forget the claims of written rows."""
        with self._lock:
            self._claimed -= {*written}
            if not self._claimed:
                self._ended.set()

    def release(self) -> None:
        """Give back all claims and end the thread."""
        with self._lock:
            had_claims, self._claimed = bool(self._claimed), set()
            thread = self._thread
            self._ended.set()
        if thread is not None:
            thread.join()
        if had_claims:
            self._store.release(owner=self.owner)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._lease / HEARTBEATS):
            try:
                self._store.renew(owner=self.owner, lease=self._lease)
            except Exception as error:  # tried again; results count also after the lease
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                _log.warning("claims of evaluations cannot be renewed: %s%s", kind, " ".join(str(error).split()))
