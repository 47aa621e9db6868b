"""Evaluations in one line, and kinds of failed ones: equal for failures with one cause."""

from __future__ import annotations

import re

from gflownet.errors import counted
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.status import EvaluationStatus
from gflownet.evaluation.store import EvaluationRecord

_TYPED = re.compile(r"(?:\w+\.cost: )?(?P<type>\w+): .*\((?P<place>[^()\s]+:\d+)\)")  # as written by `describe`
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_MAX_LENGTH = 100
_HASH_LENGTH = 12
_VERBS = {
    EvaluationStatus.FAILED: "failed",
    EvaluationStatus.TIMEOUT: "exceeded its deadline",
    EvaluationStatus.CRASHED: "crashed",
    EvaluationStatus.OUT_OF_MEMORY: "ran out of memory",
    EvaluationStatus.REFUSED: "was refused",
}


def failure_kind(evaluation: Evaluation) -> str:
    """Return status, error type, file and line of a failed evaluation; without a place its text without numbers."""
    error = evaluation.error or ""
    typed = _TYPED.fullmatch(error)
    if typed is not None:
        cause = f"{typed['type']} ({typed['place']})"
    elif evaluation.status is EvaluationStatus.TIMEOUT:  # the deadline of a job depends on its size
        cause = ""
    elif evaluation.status is EvaluationStatus.CRASHED:  # its numbers are exit statuses
        cause = error[:_MAX_LENGTH]
    else:
        cause = _NUMBER.sub("…", error)[:_MAX_LENGTH]
    return f"{evaluation.status.value}: {cause}" if cause else evaluation.status.value


def failure_line(evaluation: Evaluation) -> str:
    """Return the line that reports the first failure of its kind."""
    verb = _VERBS.get(evaluation.status, "failed")
    return f"evaluation of {evaluation.hash[:_HASH_LENGTH]} {verb}: {evaluation.error or 'no reason known'}"


_SHORT_HASH = 11  # with its version, as in g1-


def evaluation_line(record: EvaluationRecord) -> str:
    """Return hash, status or score, seconds and size of an evaluation, and the reason of a failure."""
    result = f"score {record.score:.4f}" if record.status is EvaluationStatus.OK else str(record.status)
    size = "" if record.num_parameters is None else f", {counted(record.num_parameters, 'parameter')}"
    is_random, seed = record.seed >= RANDOM_REPEAT, record.seed % RANDOM_REPEAT
    place = (", random" if is_random else "") + (f", seed {seed}" if seed else "")
    place += f", {record.fidelity} epochs or steps" if record.fidelity else ""
    reason = "" if record.error is None else f": {' '.join(record.error.split())}"
    return f"evaluation {record.hash[:_SHORT_HASH]}: {result} in {record.seconds:.1f} s{size}{place}{reason}"
