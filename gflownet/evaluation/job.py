"""Requests of evaluations with their rows, their queue, jobs for executors, and the outcomes of their candidates."""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.evaluations import EvaluationRecord, Identity
from gflownet.evaluation.store.rows import EvaluationStatus as EvaluationStatus
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import Candidate
from gflownet.training.random_states import candidate_seed

# Characters of an error text; the rest is cut.
MAX_ERROR_LENGTH = 4_096


@dataclass(frozen=True)
class Job:
    """Candidates that one process evaluates together."""

    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]  # one per candidate
    fidelity: int | None = None  # train for this many epochs or steps; None: the whole training
    schedule: int | None = None  # epochs or steps of the whole training, for learning-rate schedules; None: fidelity
    trainings: tuple[bytes | None, ...] = ()  # saved trainings to continue, one per candidate; empty: none
    split: str = ""  # the outputs on this split are wanted, of models whose weights are in `trainings`
    saves_training: bool = False  # return the training after it, weights included
    tests: bool = False  # measure the test score too
    returns_weights: bool = False

    def __post_init__(self) -> None:
        assert len(self.seeds) == len(self.candidates) > 0
        assert len(self.trainings) in (0, len(self.candidates))

    @property
    def trains(self) -> bool:
        """Whether it is a part or the continuation of a training, by `GFNTask.train_many`."""
        return self.fidelity is not None or any(training is not None for training in self.trainings)


@dataclass(frozen=True)
class Outcome:
    """Result of one candidate of a job."""

    status: EvaluationStatus
    seconds: float
    score: Score | None = None  # None unless OK, and for FAILED scores with valid metrics
    curve: tuple[float, ...] = ()  # validation score after each epoch or measured step of a training
    error: str | None = None  # type, message and place in one line, at most MAX_ERROR_LENGTH characters
    is_transient: bool = False  # worth another attempt: a lost process, a deadline, memory, a connection
    training: bytes | None = None  # the saved training, if the job saves it
    test: float | None = None  # test score, if the job tests
    test_error: str | None = None
    weights: bytes | None = field(default=None, repr=False)  # safetensors, if the job returns them
    outputs: np.ndarray | None = field(default=None, repr=False, compare=False)  # on the split of the job
    reference: Reference | None = None  # of one seed of a ReferenceName


@dataclass(frozen=True)
class ReferenceName:
    """A reference method of the task in the place of a candidate."""

    name: str

    def canonical_key(self) -> str:
        return self.name

    def canonical_hash(self) -> str:
        return "reference"  # all methods get the same seeds

    def to_dict(self) -> dict[str, str]:
        return {"reference": self.name}


# Entry of a row's metrics with the test score, where the request measures it.
TEST_METRIC = "test_score"


@dataclass(frozen=True)
class Request:
    """One evaluation of a candidate."""

    candidate: Candidate
    repeat: int = 0  # 0: the seed of the search; 1, 2, ...: further seeds
    fidelity: int | None = None  # epochs or steps; None: the task's own evaluation
    schedule: int | None = None
    training: bytes | None = field(default=None, repr=False)  # saved, to continue
    split: str = ""  # see `Job`
    parent: int | None = None  # fidelity of `training`
    saves_training: bool = False
    tests: bool = False

    @property
    def identity(self) -> Identity:
        """Return the identity of its row."""
        return Identity.of(self.candidate, fidelity=self.fidelity or 0, seed=self.repeat)


@dataclass(eq=False)
class EvaluationFuture:
    """A requested evaluation and, once it is done, its row."""

    request: Request
    step: int
    record: EvaluationRecord | None = None
    outcome: Outcome | None = None  # None if the row was known
    attempts: int = 0
    is_alone: bool = False  # in a separate job from now on
    is_repeated: bool = False  # another attempt of an evaluation that this run has counted
    is_suspect: bool = False  # an earlier main process ended during its evaluation


def record_of(
    future: EvaluationFuture, outcome: Outcome, *, run: str, floor_score: float, words: str = ""
) -> EvaluationRecord:
    """Return the row of an outcome; without a valid score it has the floor score.

    The words of the candidate, see `GFNTask.words`, become a part of its node-link data.
    """
    candidate, score = future.request.candidate, outcome.score
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
        step=future.step,
        run=run,
        error=outcome.error,
        num_parameters=None if score is None else score.num_parameters,
        metrics={} if score is None else {**score.metrics, **test},
        fidelity=future.request.identity.fidelity,
        seed=future.request.identity.seed,
        attempts=max(future.attempts, 1),
        is_transient=outcome.is_transient,
        parent=future.request.parent,
        curve=outcome.curve,
    )


# Deadline of a candidate in medians of finished ones, and the shortest.
_MEDIANS, _SHORTEST_S = 30, 30.0


def _kind(request: Request) -> tuple[int | None, bool]:
    """Return what the duration of an evaluation depends on: fidelity, and whether it begins with a saved state."""
    return request.fidelity, request.training is not None


class Deadlines:
    """Time limits of jobs: that of the config, or a shorter one where most candidates were faster by far."""

    def __init__(self, longest: float | None) -> None:
        """Take the limit per candidate in seconds; None: no candidate has one."""
        self._longest = longest
        self._seconds: dict[tuple[int | None, bool], list[float]] = {}  # of successful evaluations by kind, sorted

    def add(self, request: Request, seconds: float) -> None:
        """Add the duration of a successful evaluation."""
        insort(self._seconds.setdefault(_kind(request), []), seconds)

    def measured(self, futures: Sequence[EvaluationFuture], *, num_running: int = 0) -> float:
        """Return the seconds in which a job has its next outcome unless it is far slower than most; inf: unknown.

        Running evaluations count as longer than finished ones, because the first ones to finish are fast. All
        candidates of a job may have their outcomes at the same time.
        """
        seconds = self._seconds.get(_kind(futures[0].request), [])
        place = (len(seconds) + num_running - 1) // 2
        median = seconds[place] if 0 <= place < len(seconds) else math.inf
        return len(futures) * max(_SHORTEST_S, _MEDIANS * median)

    def of(self, futures: Sequence[EvaluationFuture], *, num_running: int = 0) -> float | None:
        """Return the seconds until the next outcome of a job; None: no limit."""
        measured = self.measured(futures, num_running=num_running)
        return None if self._longest is None else min(len(futures) * self._longest, measured)


class JobQueue(deque[EvaluationFuture]):
    """Queued evaluations in order. Tasks that train candidates together get one job per place."""

    def __init__(self, task: GFNTask, *, seed: int) -> None:
        """Start empty."""
        super().__init__()
        self._seed = seed
        self._trains_together = type(task).evaluate_many is not GFNTask.evaluate_many
        self._trains_seeds = task.trains_seeds_together

    def repeat_alone(self, futures: Iterable[EvaluationFuture], *, first: bool = False) -> None:
        """Queue evaluations of a lost or failed job again, each in a separate job, at the end or before all others."""
        again = list(futures)
        for future in again:
            future.is_alone = True
        self.extendleft(reversed(again)) if first else self.extend(again)

    def pop_job(self, num_places: int) -> tuple[Job, list[EvaluationFuture]]:
        """Remove the next group, and return its job with the futures."""
        futures = self._pop_group(num_places)
        requests = [future.request for future in futures]
        first = requests[0]
        job = Job(
            tuple(request.candidate for request in requests),
            tuple(candidate_seed(self._seed, each.candidate.canonical_hash(), each.repeat) for each in requests),
            fidelity=first.fidelity,
            schedule=first.schedule,
            trainings=tuple(request.training for request in requests),
            saves_training=any(request.saves_training for request in requests),
            tests=first.tests,
            split=first.split,
        )
        return job, futures

    def _pop_group(self, num_places: int) -> list[EvaluationFuture]:
        """Remove and return the futures of the next job: equal requests, as many as every place gets."""
        first = self.popleft()
        futures = [first]
        if first.is_alone or not (self._trains_together or self._trains_seeds):
            return futures
        may_share = self._may_share if self._trains_together else self._are_seeds
        # Seeds that train together round differently: neither places nor other evaluations may change their number.
        num_places = num_places if self._trains_together else 1
        size = math.ceil((1 + sum(may_share(first, future) for future in self)) / num_places)
        while self and len(futures) < size and may_share(first, self[0]):
            futures.append(self.popleft())
        return futures

    def _may_share(self, first: EvaluationFuture, second: EvaluationFuture) -> bool:
        one, other = first.request, second.request
        # Further seeds of one graph save no training, and may be trained with the first.
        own = {name: getattr(other, name) for name in ("candidate", "repeat", "saves_training", "training")}
        return not (second.is_alone or isinstance(one.candidate, ReferenceName)) and replace(one, **own) == other

    def _are_seeds(self, first: EvaluationFuture, second: EvaluationFuture) -> bool:
        pair = first.request, second.request  # a saved training is alone
        kinds = {(each.candidate.canonical_key(), each.repeat >= RANDOM_REPEAT, each.saves_training) for each in pair}
        return len(kinds) == 1 and not first.request.saves_training and self._may_share(first, second)
