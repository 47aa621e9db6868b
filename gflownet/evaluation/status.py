"""Status of an evaluation (torch-free)."""

from __future__ import annotations

from enum import StrEnum


class EvaluationStatus(StrEnum):
    """State of an evaluation."""

    OK = "ok"
    FAILED = "failed"  # the candidate raised, or its score is invalid
    TIMEOUT = "timeout"  # its process was ended at the deadline
    CRASHED = "crashed"  # its process ended by itself
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"  # by the task, or larger than budget.parameters or budget.flops; nothing was allocated
    RUNNING = "running"  # a row of the store without a result yet
