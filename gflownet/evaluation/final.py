"""Results of the final stage: the best architectures with trainings on new seeds, and test scores without them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.config import FinalConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.execution import describe, restored
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store import Claim, EvaluationRecord, Identity
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.evaluation.ticket import TEST_METRIC, Request, Ticket
from gflownet.graphs.canonical import Candidate


@dataclass(frozen=True)
class TopArchitecture:
    """One of the best architectures: its row of the search, and its trainings on new seeds."""

    record: EvaluationRecord  # of the search
    scores: tuple[float, ...] = ()  # validation score of each new seed, the floor score of a failed training
    tests: tuple[float | None, ...] = ()  # test score of each new seed; without new seeds, of the seed of the search
    errors: tuple[str, ...] = ()  # of failed trainings
    test_error: str | None = None  # of the first missing test score
    weights: Mapping[str, Tensor] | None = None  # after the training on the first new seed
    posterior: float | None = None  # mean score given the search and the new seeds, by which it is ranked

    @property
    def mean(self) -> float:
        """Return the mean validation score of the new seeds; without new seeds, the score of the search."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else self.record.score

    @property
    def test(self) -> float | None:
        """Return the mean test score, None without one."""
        tests = [test for test in self.tests if test is not None]
        return math.fsum(tests) / len(tests) if tests else None


@dataclass(frozen=True)
class FinalStage:
    """Result of the final stage."""

    top: tuple[TopArchitecture, ...]  # best posterior mean first
    num_seeds: int
    fidelity: int | None  # epochs or steps of the trainings; None: the task's own evaluation
    best_random: TopArchitecture | None = None
    num_trainings: int = 0  # of the run, search and final stage
    num_random: int = 0  # evaluated random architectures, of which `best_random` won
    num_random_trainings: int = 0  # planned for them, their race included
    correlation: float | None = None  # of ranks in the search and here, where the trainings have another length
    references: tuple[Reference, ...] = ()
    notes: tuple[str, ...] = ()  # lines for the user
    is_stopped: bool = False  # by a stop request
    is_complete: bool = True  # whether no stop request has ended the race


def check_final(config: FinalConfig, task: GFNTask) -> None:
    """Raise UserError for a number of epochs where trainings have none."""
    if config.epochs is not None and not task.max_fidelity:
        raise UserError(
            f"final.epochs: expected null with {type(task).__name__}, whose evaluations have no number of epochs or "
            f"steps, got {config.epochs}"
        )


def ranked(architectures: Iterable[TopArchitecture]) -> tuple[TopArchitecture, ...]:
    """Return the architectures by posterior mean, best first; ties go to the smaller model, then to the earlier row.

    Architectures without a new seed come last.
    """

    def key(architecture: TopArchitecture) -> tuple[bool, float, float]:
        size = architecture.record.num_parameters
        value = architecture.mean if architecture.posterior is None else architecture.posterior
        # Rounded, so that the order of a sum does not break a tie.
        return not architecture.scores, -round(value, 12), math.inf if size is None else size

    return tuple(sorted(architectures, key=key))


class NoStore:
    """A store without rows, for evaluations that are repeated on purpose."""

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return None for each."""
        return [None] * len(identities)

    def add(self, records: Iterable[EvaluationRecord]) -> None:
        """Keep nothing."""

    def claim(self, candidates: Iterable[tuple[Candidate, Identity]], **_: Any) -> list[Claim]:
        """Grant every claim."""
        return [Claim(identity, 0) for _, identity in candidates]

    def start(self, identities: Iterable[Identity], *, owner: str) -> None:
        """Keep nothing."""

    def renew(self, *, owner: str, lease: float) -> int:
        """Return 0: no claim ends."""
        return 0

    def release(self, *, owner: str, identities: Sequence[Identity] | None = None) -> int:
        """Return 0: no claim is kept."""
        return 0


def with_test_scores(
    records: Sequence[EvaluationRecord],
    *,
    dispatcher: Dispatcher,
    from_dict: Callable[[dict[str, Any]], Candidate],
    step: int,
) -> tuple[TopArchitecture, ...]:
    """Return the architectures of rows with their test scores on the seed of the search, trained again with it.

    Args:
        records: rows of the search, best first.
        dispatcher: with `NoStore`.
        from_dict: builds a terminal object from node-link data.
        step: of the search.

    Raises:
        EvaluationStoppedError: a stop request.
    """
    task = dispatcher.task
    if type(task).test is GFNTask.test:
        return tuple(TopArchitecture(record) for record in records)
    fidelity = task.max_fidelity or None
    requests = [Request(from_dict(json.loads(record.graph)), fidelity=fidelity, tests=True) for record in records]
    try:
        tickets = dispatcher.complete(requests, step=step)
    except EvaluationStoppedError:
        raise
    except Exception as error:  # of the executor: the report is written without test scores
        return tuple(TopArchitecture(record, test_error=describe(error)) for record in records)
    outcomes = [ticket.outcome for ticket in tickets]
    return tuple(
        TopArchitecture(record, tests=(outcome.test,), test_error=outcome.test_error or outcome.error)
        for record, outcome in zip(records, outcomes, strict=True)
        if outcome is not None
    )


def trained(record: EvaluationRecord, tickets: Sequence[Ticket]) -> TopArchitecture:
    """Return an architecture with its finished trainings among some tickets."""
    done = [(ticket, row) for ticket in tickets if (row := ticket.record) is not None and row.key == record.key]
    outcomes = [(ticket.request.repeat, ticket.outcome) for ticket, _ in done if ticket.outcome is not None]
    saved = next((outcome.training for _, outcome in sorted(outcomes, key=itemgetter(0)) if outcome.training), None)
    return TopArchitecture(
        record,
        scores=tuple(row.score for _, row in done),
        tests=tuple(row.metrics.get(TEST_METRIC) for _, row in done),
        errors=tuple(row.error or row.status.value for _, row in done if row.status is not EvaluationStatus.OK),
        test_error=next((outcome.test_error for _, outcome in outcomes if outcome.test_error is not None), None),
        weights=None if saved is None else (restored(saved) or {})["model"],
    )
