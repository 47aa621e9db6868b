"""Section about failed evaluations: kinds, numbers and examples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.evaluation.status import EvaluationStatus
from gflownet.evaluation.store_rows import EvaluationRecord
from gflownet.report.page.run_data import RunData
from gflownet.report.page.secrets import masked

MAX_KINDS = 12
MAX_EXAMPLE = 1_500
_WORDS = {
    EvaluationStatus.FAILED: "failed",
    EvaluationStatus.TIMEOUT: "exceeded the deadline",
    EvaluationStatus.CRASHED: "ended its process",
    EvaluationStatus.OUT_OF_MEMORY: "out of memory",
    EvaluationStatus.REFUSED: "refused before the evaluation",
}
# Numbers and addresses differ between errors of one kind.
_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class FailureKind:
    """Failures with one status and one error, numbers aside."""

    status: str
    error: str  # first line of the first example
    num: int
    share: str
    example: str  # whole error text
    where: str


@dataclass(frozen=True)
class FailureSection:
    """Failed evaluations by kind, the most frequent first."""

    num_failed: int
    num_evaluated: int
    kinds: Sequence[FailureKind]
    num_other_kinds: int


def failure_section(run: RunData) -> FailureSection | None:
    """Return the failures of all evaluations of a run, None without evaluations."""
    failed = [record for record in run.evaluations if record.status is not EvaluationStatus.OK]
    if not run.evaluations:
        return None
    groups: dict[tuple[str, str], list[EvaluationRecord]] = {}
    for record in failed:
        kind = _VARIABLE.sub("N", _first_line(record.error))
        groups.setdefault((record.status.value, kind), []).append(record)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    kinds = [_kind(group, len(failed)) for group in ordered[:MAX_KINDS]]
    return FailureSection(len(failed), len(run.evaluations), kinds, len(ordered) - len(kinds))


def _kind(group: Sequence[EvaluationRecord], num_failed: int) -> FailureKind:
    first = group[0]
    text = masked(first.error or "")
    return FailureKind(
        status=_WORDS.get(first.status, first.status.value),
        error=_first_line(text) or "no message",
        num=len(group),
        share=f"{len(group) / num_failed:.0%} of the failures",
        example=text if len(text) <= MAX_EXAMPLE else f"…{text[-MAX_EXAMPLE:]}",
        where=f"step {first.step:,}, architecture {first.hash[:16]}",
    )


def _first_line(error: str | None) -> str:
    """Return the line of an error that names it: the last one of a traceback, otherwise the first."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
