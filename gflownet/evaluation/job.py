"""Jobs for executors, and the outcomes of their candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gflownet.evaluation.status import EvaluationStatus as EvaluationStatus
from gflownet.evaluation.task import Score
from gflownet.graphs.canonical import Candidate

# Characters of an error text; the rest is cut.
MAX_ERROR_LENGTH = 4_096


@dataclass(frozen=True)
class Job:
    """Candidates that one process evaluates together."""

    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]  # one per candidate
    fidelity: int | None = None  # train for this many epochs or steps; None: the task's own evaluation
    schedule: int | None = None  # epochs or steps of the whole training, for learning-rate schedules; None: fidelity
    trainings: tuple[bytes | None, ...] = ()  # saved trainings to continue, one per candidate; empty: none
    saves_training: bool = False  # return the training after it, weights included
    tests: bool = False  # measure the test score too

    def __post_init__(self) -> None:
        assert len(self.seeds) == len(self.candidates) > 0
        assert len(self.trainings) in (0, len(self.candidates))

    def parts(self) -> list[Job]:
        """Return one job per candidate."""
        trainings = self.trainings or (None,) * len(self.candidates)
        return [
            replace(self, candidates=(candidate,), seeds=(seed,), trainings=(training,))
            for candidate, seed, training in zip(self.candidates, self.seeds, trainings, strict=True)
        ]


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
