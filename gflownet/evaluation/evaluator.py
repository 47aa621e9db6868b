"""The evaluator: scores new candidates, records every result, and looks up known ones in the store."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.store import EvaluationRecord, EvaluationStatus, EvaluationStore, Identity
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import Candidate

T = TypeVar("T")

# Records of less work than this, seconds, are written together, because a write waits for the disk.
_WRITE_AFTER_S = 0.1


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one candidate, new or from the store."""

    score: float  # finite; the floor when the evaluation failed
    status: EvaluationStatus
    seconds: float  # duration of its evaluation
    error: str | None
    num_parameters: int | None
    metrics: Mapping[str, float]
    cached: bool  # from another run, an earlier step or earlier in the same call
    utilities: tuple[float, ...] = ()  # of the task's chosen objectives, zeros when the evaluation failed


class Evaluator(ABC):
    """Scores candidates; every result is in the store before it is returned."""

    @abstractmethod
    def evaluate(self, candidates: Sequence[Candidate], *, step: int) -> list[Evaluation]:
        """Return one evaluation per candidate, in order; isomorphic candidates are scored once.

        A candidate that raises, or whose score is not a finite number >= 0, is FAILED with the reason and the floor
        score.
        """


class InlineEvaluator(Evaluator):
    """Scores candidates in this process, one call of the task for all new ones."""

    def __init__(
        self, task: GFNTask, store: EvaluationStore, *, config: EvaluationConfig, seed: int, run: str = ""
    ) -> None:
        """`run`: id of the run, the same after a resume, recorded in its rows."""
        self.task = task
        self.store = store
        self.floor_score = config.floor_score
        self.seed = seed
        self.run = run

    def with_store(self, store: Any) -> InlineEvaluator:
        """Return the same evaluator with another store: a proxy in a worker, or None."""
        evaluator = copy.copy(self)
        evaluator.store = store
        return evaluator

    def evaluate(self, candidates: Sequence[Candidate], *, step: int) -> list[Evaluation]:
        keys = [candidate.canonical_key() for candidate in candidates]
        unique: dict[str, Candidate] = {}
        for key, candidate in zip(keys, candidates, strict=True):
            unique.setdefault(key, candidate)
        rows = self.store.find_many([Identity.of(candidate) for candidate in unique.values()])
        records = {record.key: record for record in rows if record is not None}
        fresh = [candidate for key, candidate in unique.items() if key not in records]
        records |= {record.key: record for record in self._stored(self._score(fresh, step=step))}
        return _evaluations([records[key] for key in keys], task=self.task, run=self.run, step=step)

    def _stored(self, records: Iterator[EvaluationRecord]) -> list[EvaluationRecord]:
        """Return the records once they are written, in batches."""
        done: list[EvaluationRecord] = []
        num_written, last_write = 0, time.monotonic()
        try:
            for record in records:
                done.append(record)
                if time.monotonic() - last_write >= _WRITE_AFTER_S:
                    self.store.add(done[num_written:])
                    num_written, last_write = len(done), time.monotonic()
        finally:
            self.store.add(done[num_written:])
        return done

    def _score(self, candidates: Sequence[Candidate], *, step: int) -> Iterator[EvaluationRecord]:
        """Yield the record of each candidate as soon as the task yields its outcome."""
        for candidate, (outcome, seconds) in zip(candidates, self._timed_outcomes(candidates), strict=True):
            score, error = self._score_or_floor(outcome)
            yield EvaluationRecord(
                hash=candidate.canonical_hash(),
                key=candidate.canonical_key(),
                graph=json.dumps(candidate.to_dict()),
                score=score.value,
                status=EvaluationStatus.OK if error is None else EvaluationStatus.FAILED,
                seconds=seconds,
                step=step,
                run=self.run,
                error=error,
                num_parameters=score.num_parameters,
                metrics=score.metrics,
            )

    def _timed_outcomes(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Score | Exception, float]]:
        """Yield each outcome with its seconds; the time before the first outcome is divided evenly."""
        seeds = [candidate_seed(self.seed, candidate.canonical_hash()) for candidate in candidates]
        start = time.perf_counter()
        outcomes = self.task.evaluate_many(candidates, seeds=seeds)
        shared = (time.perf_counter() - start) / max(len(candidates), 1)
        num_outcomes = 0
        start = time.perf_counter()
        for outcome in outcomes:
            yield outcome, shared + time.perf_counter() - start
            num_outcomes += 1
            start = time.perf_counter()
        if num_outcomes < len(candidates):
            name = f"{type(self.task).__name__}.evaluate_many"
            raise ValueError(f"{name}: expected {len(candidates)} outcomes, got {num_outcomes}")

    def _score_or_floor(self, outcome: Score | Exception) -> tuple[Score, str | None]:
        """Return a valid score, and the reason of a failed evaluation."""
        floor = Score(self.floor_score)
        if isinstance(outcome, Exception):
            return floor, _describe(outcome)
        if not isinstance(outcome, Score):
            return floor, f"{type(self.task).__name__}.evaluate: expected a Score, got {type(outcome).__name__}"
        try:
            score = _in_plain_numbers(outcome)
            self.task.utilities(score)
        except ValueError as error:
            return floor, str(error)
        if not (math.isfinite(score.value) and score.value >= 0):
            expected = "a score >= 0" if math.isfinite(score.value) else "a finite score"
            return dataclasses.replace(score, value=self.floor_score), f"expected {expected}, got {score.value}"
        return score, None


def _in_plain_numbers(score: Score) -> Score:
    """Return the score with numbers of numpy and torch converted to Python numbers for the store.

    Raises:
        ValueError: a value that is not a number.
    """
    if not isinstance(score.metrics, Mapping):
        raise ValueError(f"metrics: expected a mapping, got {type(score.metrics).__name__}")
    size = score.num_parameters
    return Score(
        _number("score", score.value, float),
        None if size is None else _number("num_parameters", size, int),
        {str(name): _number(f"metric {name!r}", value, float) for name, value in score.metrics.items()},
    )


def _number(name: str, value: Any, kind: Callable[[Any], T]) -> T:
    try:
        return kind(value)
    except Exception as error:  # raised by the user's type
        raise ValueError(f"{name}: expected a number, got {type(value).__name__}") from error


def _describe(error: Exception) -> str:
    """Return type, message and place of an exception on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def utilities_of(record: EvaluationRecord, *, task: GFNTask) -> tuple[float, ...]:
    """Return the utilities of the task's chosen objectives, zeros for a failed evaluation."""
    if record.status is EvaluationStatus.FAILED:
        return (0.0,) * len(task.chosen_objectives)
    return task.utilities(Score(record.score, record.num_parameters, record.metrics))


def _evaluations(records: Sequence[EvaluationRecord], *, task: GFNTask, run: str, step: int) -> list[Evaluation]:
    """Return the evaluations of records.

    A row of this run and step counts as new: only a resumed run finds one, and must report the same as the
    uninterrupted run.
    """
    previous_keys: set[str] = set()
    evaluations = []
    for record in records:
        evaluations.append(
            Evaluation(
                score=record.score,
                status=record.status,
                seconds=record.seconds,
                error=record.error,
                num_parameters=record.num_parameters,
                metrics=record.metrics,
                cached=record.run != run or record.step < step or record.key in previous_keys,
                utilities=utilities_of(record, task=task),
            )
        )
        previous_keys.add(record.key)
    return evaluations


EVALUATORS: dict[str, type[InlineEvaluator]] = {"inline": InlineEvaluator}
