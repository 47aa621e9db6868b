"""The final stage: the best architectures, and the best of some random ones, are trained again on new seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.claims import Store
from gflownet.evaluation.config import FinalConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.execution import describe, restored
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.store import Claim, EvaluationRecord, Identity
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.evaluation.ticket import TEST_METRIC, Request, Ticket
from gflownet.graphs.canonical import Candidate

# Seed of the scores by which the best random architecture is chosen: neither of the search nor a new one.
RANDOM_REPEAT = 1_000_000
_WAIT_S = 0.2

# Receives the name of a stage, its completed and its whole work; called often.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TopArchitecture:
    """One of the best architectures: its row of the search, and its trainings on new seeds."""

    record: EvaluationRecord  # of the search
    scores: tuple[float, ...] = ()  # validation score of each new seed, the floor score of a failed training
    tests: tuple[float | None, ...] = ()  # test score of each new seed; without new seeds, of the seed of the search
    errors: tuple[str, ...] = ()  # of failed trainings
    test_error: str | None = None  # of the first missing test score
    weights: Mapping[str, Tensor] | None = None  # after the training on the first new seed

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

    top: tuple[TopArchitecture, ...]  # best mean first
    num_seeds: int
    fidelity: int | None  # epochs or steps of the trainings; None: the task's own evaluation
    best_random: TopArchitecture | None = None
    num_random: int = 0  # evaluated random architectures, of which `best_random` scored best
    references: tuple[Reference, ...] = ()
    notes: tuple[str, ...] = ()  # lines for the user
    is_stopped: bool = False  # by a stop request

    @property
    def is_complete(self) -> bool:
        """Return whether all trainings of the best architectures are done."""
        return all(len(architecture.scores) == self.num_seeds for architecture in self.top)


def has_final_stage(config: FinalConfig, task: GFNTask) -> bool:
    """Return whether a run ends with new trainings. Scores of cheap tasks do not depend on the seed."""
    return config.top > 0 and not task.is_cheap


def check_final(config: FinalConfig, task: GFNTask) -> None:
    """Raise UserError for a number of epochs where trainings have none."""
    if config.epochs is not None and not task.max_fidelity:
        raise UserError(
            f"final.epochs: expected null with {type(task).__name__}, whose evaluations have no number of epochs or "
            f"steps, got {config.epochs}"
        )


def ranked(architectures: Iterable[TopArchitecture]) -> tuple[TopArchitecture, ...]:
    """Return the architectures by mean score, best first; ties go to the smaller model, then to the earlier row.

    Architectures without a new seed come last.
    """

    def key(architecture: TopArchitecture) -> tuple[bool, float, float]:
        size = architecture.record.num_parameters
        # Rounded, so that the order of a sum does not break a tie.
        return not architecture.scores, -round(architecture.mean, 12), math.inf if size is None else size

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


@dataclass
class FinalTrainings:
    """Trains architectures on new seeds. A stop request ends it; finished trainings are in the store and the result."""

    store: Store
    build_dispatcher: Callable[[Store], Dispatcher]  # without limits of the number of evaluations
    config: FinalConfig
    from_dict: Callable[[dict[str, Any]], Candidate]  # builds a terminal object from node-link data
    step: int  # of the search
    report_line: Callable[[str], None]
    report_progress: Progress = lambda stage, done, total: None
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._dispatcher = self.build_dispatcher(self.store)
        self._task = self._dispatcher.task
        self._notes: list[str] = []

    @property
    def fidelity(self) -> int | None:
        """Return the epochs or steps of a training, None for the task's own evaluation."""
        return self.config.epochs or self._task.max_fidelity or None

    def run(self, records: Sequence[EvaluationRecord], *, random_candidates: Sequence[Candidate] = ()) -> FinalStage:
        """Train the architectures of rows of the search, and the best of some random ones; measure the references."""
        requests = [request for record in records for request in self._requests(record)]
        requests.sort(key=lambda request: request.repeat)  # if interrupted, all have the same number of seeds
        random_requests = [Request(candidate, repeat=RANDOM_REPEAT) for candidate in random_candidates]
        self.report_line(
            f"final stage: {len(records)} architectures x {self.config.num_seeds} new seeds, "
            f"{len(random_requests)} random architectures"
        )
        tickets = self._complete(self._dispatcher, [*requests, *random_requests], stage="trainings")
        of_search, of_random = tickets[: len(requests)], tickets[len(requests) :]
        top = self._with_weights([_architecture(record, of_search) for record in records])
        return FinalStage(
            ranked(top),
            num_seeds=self.config.num_seeds,
            fidelity=self.fidelity,
            best_random=self._best([ticket.record for ticket in of_random if ticket.record is not None]),
            num_random=sum(ticket.record is not None for ticket in of_random),
            references=self._references(),
            notes=tuple(self._notes),
            is_stopped=self.is_stopped,
        )

    def _requests(self, record: EvaluationRecord, *, saves_training: bool = True) -> list[Request]:
        """Return one request per new seed; the first one saves its training."""
        candidate = self.from_dict(json.loads(record.graph))
        return [
            Request(
                candidate,
                repeat=repeat,
                fidelity=self.fidelity,
                saves_training=saves_training and repeat == 1 and self.fidelity is not None,
                tests=True,
            )
            for repeat in range(1, 1 + self.config.num_seeds)
        ]

    def _complete(self, dispatcher: Dispatcher, requests: Sequence[Request], *, stage: str) -> list[Ticket]:
        """Return the tickets of requests, some without a row after a stop request, and report the progress."""
        if self.is_stopped or not requests:
            return []
        tickets = dispatcher.submit(requests, step=self.step)
        try:
            while (num_done := sum(ticket.record is not None for ticket in tickets)) < len(tickets):
                self.report_progress(f"final stage, {stage}", num_done, len(tickets))
                dispatcher.advance(timeout=_WAIT_S)
            self.report_progress(f"final stage, {stage}", len(tickets), len(tickets))
        except EvaluationStoppedError:
            self.is_stopped = True
        except BaseException:
            dispatcher.close()  # gives back its claims
            raise
        dispatcher.evaluations([], step=self.step)  # writes the last rows
        return tickets

    def _best(self, records: Sequence[EvaluationRecord]) -> TopArchitecture | None:
        """Train the best of some random architectures on the new seeds."""
        records = [record for record in records if record.status is EvaluationStatus.OK]
        if not records or self.is_stopped:
            return None
        best = max(records, key=lambda record: record.score)
        return _architecture(
            best, self._complete(self._dispatcher, self._requests(best, saves_training=False), stage="best random one")
        )

    def _with_weights(self, top: Sequence[TopArchitecture]) -> list[TopArchitecture]:
        """Repeat the first training where its row is from an earlier process, for the weights."""
        missing = [each for each in top if each.scores and each.weights is None and not each.errors]
        if self.fidelity is None or not missing:
            return list(top)
        requests = [self._requests(each.record)[0] for each in missing]
        tickets = self._complete(self.build_dispatcher(NoStore()), requests, stage="weights")
        repeated = {each.record.key: _architecture(each.record, tickets) for each in missing}
        return [self._with_weights_of(each, repeated.get(each.record.key)) for each in top]

    def _with_weights_of(self, architecture: TopArchitecture, repeated: TopArchitecture | None) -> TopArchitecture:
        """Add the weights of a repeated training, if it reached the stored score."""
        if repeated is None or repeated.weights is None:
            return architecture
        if repeated.scores[0] != architecture.scores[0]:
            self._notes.append(
                f"weights not saved: expected the stored score {architecture.scores[0]:.6g} from the same training of "
                f"{architecture.record.hash}, got {repeated.scores[0]:.6g}"
            )
            return architecture
        return replace(architecture, weights=repeated.weights)

    def _references(self) -> tuple[Reference, ...]:
        """Return the task's references; an error becomes a note."""
        if self.is_stopped:
            return ()
        self.report_progress("final stage, references", 0, 1)
        seeds = [candidate_seed(self._dispatcher.seed, "reference", k) for k in range(1, 1 + self.config.num_seeds)]
        try:
            return tuple(self._task.references(seeds=seeds))
        except Exception as error:
            self._notes.append(f"no reference: {describe(error)}")
            return ()


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


def _architecture(record: EvaluationRecord, tickets: Sequence[Ticket]) -> TopArchitecture:
    """Return an architecture with its finished trainings among some tickets."""
    done = [(ticket, row) for ticket in tickets if (row := ticket.record) is not None and row.key == record.key]
    outcomes = [(ticket.request.repeat, ticket.outcome) for ticket, _ in done if ticket.outcome is not None]
    saved = next((outcome.training for repeat, outcome in outcomes if repeat == 1), None)
    return TopArchitecture(
        record,
        scores=tuple(row.score for _, row in done),
        tests=tuple(row.metrics.get(TEST_METRIC) for _, row in done),
        errors=tuple(row.error or row.status.value for _, row in done if row.status is not EvaluationStatus.OK),
        test_error=next((outcome.test_error for _, outcome in outcomes if outcome.test_error is not None), None),
        weights=None if saved is None else (restored(saved) or {})["model"],
    )
