"""Evaluation of a job in the current process, the same for every executor: checked scores and described errors."""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from gflownet.errors import UserError
from gflownet.evaluation.job import MAX_ERROR_LENGTH, EvaluationStatus, Job, Outcome, ReferenceName
from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.task import CandidateTraining, GFNTask, Score
from gflownet.operations.values import shown
from gflownet.training.random_states import seeded
from gflownet.training.steps import map_tensors

# The largest integer of a store.
MAX_NUM_PARAMETERS = 2**63 - 1

T = TypeVar("T")
Report = Callable[[Outcome], None]

# Texts of the RuntimeErrors that torch raises without memory, on a CPU and on a GPU.
_OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc", "ALLOC_FAILED")
# Texts of the RuntimeErrors after which the context of a GPU, hence the process, is useless.
_DEVICE_TEXTS = ("CUDA error", "cuDNN error", "CUBLAS_STATUS", "MPS backend")


def attempt(
    task: GFNTask, job: Job, *, report: Report = lambda _: None, raises: tuple[type[BaseException], ...] = ()
) -> tuple[tuple[Outcome, ...], int]:
    """Return the outcomes of a job, and how many candidates were done when one ended the job, for example by sys.exit.

    The remaining candidates share an outcome; evaluated alone, some may succeed. `report`: see `run_job`. `raises`: no
    end of a candidate, but of the evaluation.

    Raises:
        UserError: `evaluate_many` or `train_many` yielded another number of outcomes.
    """
    start = time.perf_counter()
    finished: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        finished.append(outcome)
        report(outcome)

    try:
        return tuple(run_job(task, job, report=keep)), len(finished)
    except (UserError, *raises):
        raise
    except Exception as error:
        outcome = failure(error, time.perf_counter() - start)
    except BaseException as error:
        outcome = crash(error, time.perf_counter() - start)
    return lost_job(job, outcome, finished=finished), len(finished)


def run_job(task: GFNTask, job: Job, *, report: Report = lambda _: None) -> list[Outcome]:
    """Return the outcome of each candidate of a job, in order; `report` is called with each as soon as it is done.

    Raises:
        UserError: `evaluate_many` or `train_many` yielded another number of outcomes.
    """
    outcomes = []
    for position, (result, seconds) in enumerate(_timed(lambda: _results(task, job), num=len(job.candidates))):
        outcome = outcome_of(task, result, seconds)
        if outcome.status is EvaluationStatus.OK:
            outcome = _with_extras(task, job, position, result, outcome)
        outcomes.append(outcome)
        report(outcome)
    if len(outcomes) < len(job.candidates):
        name = f"{type(task).__name__}.{'train_many' if job.trains else 'evaluate_many'}"
        raise UserError(f"{name}: expected {len(job.candidates)} outcomes, got {len(outcomes)}")
    return outcomes


def describe(error: BaseException) -> str:
    """Return type, message and place of an exception on one line, at most MAX_ERROR_LENGTH characters."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    try:
        message = str(error)
    except Exception as inner:  # a broken __str__ of the user's class
        message = f"its text raised {type(inner).__name__}"
    return f"{capped(f'{type(error).__name__}: {message}', MAX_ERROR_LENGTH - len(place))}{place}"


def capped(text: str, length: int = MAX_ERROR_LENGTH) -> str:
    """Return a text on one line, valid UTF-8, cut to a length."""
    line = " ".join(text[: 4 * length].encode(errors="replace").decode().split())
    return line if len(line) <= length else f"{line[: length - 4]} ..."


def failure(error: BaseException, seconds: float) -> Outcome:
    """Return the outcome of an evaluation that raised."""
    if is_out_of_memory(error):
        return Outcome(EvaluationStatus.OUT_OF_MEMORY, seconds, error=describe(error), is_transient=True)
    if is_device_error(error):
        return crash(error, seconds)
    is_transient = isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)
    return Outcome(EvaluationStatus.FAILED, seconds, error=describe(error), is_transient=is_transient)


def crash(error: BaseException, seconds: float) -> Outcome:
    """Return the outcome of an evaluation that raised an exception after which its process ends, as SystemExit."""
    return Outcome(EvaluationStatus.CRASHED, seconds, error=describe(error), is_transient=True)


def lost_job(job: Job, outcome: Outcome, *, finished: Sequence[Outcome] = ()) -> tuple[Outcome, ...]:
    """Return the outcomes of a job whose process was lost after some candidates; the others share its time evenly."""
    num = len(job.candidates) - len(finished)
    seconds = max(0.0, outcome.seconds - sum(each.seconds for each in finished)) / max(1, num)
    return (*finished, *(dataclasses.replace(outcome, seconds=seconds),) * num)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports missing memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in describe(error) for text in _OUT_OF_MEMORY_TEXTS)


def is_device_error(error: BaseException) -> bool:
    """Return whether an exception reports a failed kernel: later kernels of its process fail too."""
    return isinstance(error, RuntimeError) and any(text in describe(error) for text in _DEVICE_TEXTS)


def saved(state: dict[str, Any]) -> bytes:
    """Return the state of a training as bytes, safe to load with `weights_only=True`."""
    buffer = io.BytesIO()
    torch.save(map_tensors(torch.Tensor.cpu, state), buffer)
    return buffer.getvalue()


def saved_weights(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Return the weights of a model as safetensors, copied, because these refuse tensors that share memory."""
    return save({name: value.detach().cpu().clone().contiguous() for name, value in weights.items()})


def restored(training: bytes | None) -> dict[str, Any] | None:
    """Return the state in the result of `saved`."""
    return None if training is None else torch.load(io.BytesIO(training), weights_only=True)


def _results(task: GFNTask, job: Job) -> Iterable[Score | CandidateTraining | np.ndarray | Reference | Exception]:
    if isinstance(job.candidates[0], ReferenceName):
        return _references(task, job)
    if job.split:
        return _outputs(task, job)
    if not job.trains:
        return task.evaluate_many(job.candidates, seeds=job.seeds)
    states = [restored(training) for training in job.trainings or (None,) * len(job.candidates)]
    fidelity = task.max_fidelity if job.fidelity is None else job.fidelity
    schedule = fidelity if job.schedule is None else job.schedule
    return task.train_many(job.candidates, seeds=job.seeds, fidelity=fidelity, schedule=schedule, states=states)


def _outputs(task: GFNTask, job: Job) -> Iterator[np.ndarray | Exception]:
    for candidate, weights in zip(job.candidates, job.trainings, strict=True):
        try:
            yield task.outputs(candidate, load_tensors(weights or b""), split=job.split).numpy()
        except Exception as error:
            yield error


def _references(task: GFNTask, job: Job) -> Iterator[Reference | Exception]:
    """Yield the result of each reference method for one seed; without scores where it has none."""
    methods = {method.name: method for method in task.reference_methods()}
    for candidate, seed in zip(job.candidates, job.seeds, strict=True):
        try:
            with seeded(seed):
                result = methods[candidate.canonical_key()].result([seed])
            yield result or Reference("", (), ())
        except Exception as error:
            yield error


def _timed(results: Callable[[], Iterable[T]], *, num: int) -> Iterator[tuple[T, float]]:
    """Yield up to `num` results with their seconds; the time before they are iterated is divided evenly."""
    start = time.perf_counter()
    values = results()
    shared = (time.perf_counter() - start) / num
    start = time.perf_counter()
    for value in itertools.islice(values, num):
        yield value, shared + time.perf_counter() - start
        start = time.perf_counter()


def outcome_of(task: GFNTask, result: Any, seconds: float) -> Outcome:
    """Return the outcome of a result of the task, with a checked score."""
    if isinstance(result, Exception):
        return failure(result, seconds)
    if isinstance(result, np.ndarray):
        return Outcome(EvaluationStatus.OK, seconds, outputs=result)
    if isinstance(result, Reference):
        return Outcome(EvaluationStatus.OK, seconds, reference=result)
    curve: tuple[float, ...] = ()
    try:
        if isinstance(result, CandidateTraining):
            result, curve = result.score(), result.curve
        if not isinstance(result, Score):
            raise _InvalidScoreError(f"{type(task).__name__}.evaluate: expected a Score, got {type(result).__name__}")
        score = _in_plain_numbers(result)
        task.utilities(score)
    except (_InvalidScoreError, ValueError) as error:
        return Outcome(EvaluationStatus.FAILED, seconds, error=capped(str(error)))
    except Exception as error:
        return failure(error, seconds)
    if not (math.isfinite(score.value) and 0 <= score.value <= task.max_score):
        expected = f"a score in [0, {task.max_score:g}]" if math.isfinite(score.value) else "a finite score"
        reason = f"expected {expected}, got {score.value}"
        return Outcome(EvaluationStatus.FAILED, seconds, score, error=reason)
    return Outcome(EvaluationStatus.OK, seconds, score, curve)


class _InvalidScoreError(Exception):
    """The task returned something else than a valid score."""


def _with_extras(task: GFNTask, job: Job, position: int, result: Any, outcome: Outcome) -> Outcome:
    if job.saves_training and isinstance(result, CandidateTraining):
        outcome = dataclasses.replace(outcome, training=saved(result.state_dict()))
    if job.returns_weights and result.model is not None:
        outcome = dataclasses.replace(outcome, weights=saved_weights(result.model.state_dict()))
    if not job.tests:
        return outcome
    try:
        if isinstance(result, CandidateTraining):
            value = result.test()
        else:
            value = task.test(job.candidates[position], seed=job.seeds[position])
        test = None if value is None else _number("test score", value)
    except _InvalidScoreError as error:
        return dataclasses.replace(outcome, test_error=str(error))
    except Exception as error:
        return dataclasses.replace(outcome, test_error=describe(error))
    if test is not None and not math.isfinite(test):
        return dataclasses.replace(outcome, test_error=f"expected a finite score, got {test}")
    return dataclasses.replace(outcome, test=test)


def _in_plain_numbers(score: Score) -> Score:
    """Return the score with numbers of numpy and torch converted to Python numbers for the store.

    Raises:
        _InvalidScoreError: a value that is not a number.
    """
    if not isinstance(score.metrics, Mapping):
        raise _InvalidScoreError(f"metrics: expected a mapping, got {type(score.metrics).__name__}")
    for name in score.metrics:
        if not isinstance(name, str):
            raise _InvalidScoreError(f"metrics: expected names, got {shown(name)}")
    size = score.num_parameters
    return Score(
        _number("score", score.value),
        None if size is None else _size(size),
        {name: _number(f"metric {name!r}", value) for name, value in score.metrics.items()},
    )


def _number(name: str, value: Any) -> float:
    """Return a value as a float; text and booleans are mistakes of the task, although Python converts them."""
    is_boolean = isinstance(value, bool) or getattr(value, "dtype", None) in (torch.bool, "bool")
    if value is None or is_boolean or isinstance(value, str | bytes):
        raise _InvalidScoreError(f"{name}: expected a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError as error:  # an int above the floats
        raise _InvalidScoreError(f"{name}: expected a number, got {shown(value)}") from error
    except Exception as error:  # raised by the user's type
        raise _InvalidScoreError(f"{name}: expected a number, got {type(value).__name__}") from error


def _size(value: Any) -> int:
    number = _number("num_parameters", value)
    size = int(value) if math.isfinite(number) else -1
    if not (0 <= size <= MAX_NUM_PARAMETERS and size == value):
        raise _InvalidScoreError(f"num_parameters: expected an integer in [0, 2**63), got {shown(value)}")
    return size
