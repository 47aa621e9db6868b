"""Kinds of failed evaluations: equal for failures with one cause."""

from __future__ import annotations

import re

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.status import EvaluationStatus

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
