"""Requested evaluations and their rows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.store import EvaluationRecord, Identity
from gflownet.graphs.canonical import Candidate

# Entry of a row's metrics with the test score, where the request measures it.
TEST_METRIC = "test_score"


@dataclass(frozen=True)
class Request:
    """One evaluation of a candidate."""

    candidate: Candidate
    repeat: int = 0  # 0: the seed of the search; 1, 2, ...: further seeds
    fidelity: int | None = None  # epochs or steps; None: the task's own evaluation
    schedule: int | None = None
    saves_training: bool = False
    tests: bool = False

    @property
    def identity(self) -> Identity:
        """Return the identity of its row."""
        return Identity.of(self.candidate, fidelity=self.fidelity or 0, seed=self.repeat)


@dataclass(eq=False)
class Ticket:
    """A requested evaluation and, once it is done, its row."""

    request: Request
    step: int
    record: EvaluationRecord | None = None
    outcome: Outcome | None = None  # None if the row was known
    attempts: int = 0
    is_alone: bool = False  # in a separate job from now on
    is_repeated: bool = False  # another attempt of an evaluation that this run has counted
    is_suspect: bool = False  # an earlier main process ended during its evaluation
    # With successive halving:
    parent: Ticket | None = None  # of the whole training, if this is a part of it
    fidelity: int = 0  # epochs or steps done
    training: bytes | None = None  # saved at `fidelity`


def record_of(ticket: Ticket, outcome: Outcome, *, run: str, floor_score: float, words: str = "") -> EvaluationRecord:
    """Return the row of an outcome; without a valid score it has the floor score.

    The words of the candidate, see `GFNTask.words`, become a part of its node-link data.
    """
    candidate, score = ticket.request.candidate, outcome.score
    is_ok = outcome.status is EvaluationStatus.OK
    graph = candidate.to_dict()
    if words:
        graph = {**graph, "graph": {**graph.get("graph", {}), "words": words}}
    test = {} if outcome.test is None else {TEST_METRIC: outcome.test}
    return EvaluationRecord(
        hash=candidate.canonical_hash(),
        key=candidate.canonical_key(),
        graph=json.dumps(graph),
        score=score.value if is_ok and score is not None else floor_score,
        status=outcome.status,
        seconds=outcome.seconds,
        step=ticket.step,
        run=run,
        error=outcome.error,
        num_parameters=None if score is None else score.num_parameters,
        metrics={} if score is None else {**score.metrics, **test},
        fidelity=ticket.request.identity.fidelity,
        seed=ticket.request.identity.seed,
        attempts=max(ticket.attempts, 1),
        is_transient=outcome.is_transient,
        parent=ticket.fidelity or None,
        curve=outcome.curve,
    )
