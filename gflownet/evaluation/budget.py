"""The budget of a search: new evaluations, seconds of training, size of candidates."""

from __future__ import annotations

import math
import signal
import time
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.execution import describe
from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.task import GFNTask

# The alarm rings this much after the end of the seconds, because its clock is another one.
_ALARM_MARGIN_S = 0.01


class Budget:
    """Limits of a search, and the part that is used.

    Attributes:
        num_evaluated: new evaluations of the run; refused candidates are not counted.
    """

    def __init__(self, limits: BudgetConfig, *, num_evaluated: int = 0, seconds: float = 0.0) -> None:
        """Start with the part used so far: evaluations and seconds of training."""
        self.limits, self.num_evaluated = limits, num_evaluated
        self._seconds_before = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of training so far, from the first submitted candidate on."""
        return self._seconds_before + (0.0 if self._started is None else time.monotonic() - self._started)

    def start(self) -> None:
        """Start the clock, unless it runs; a handler of SIGALRM gets that signal when the seconds are spent."""
        if self._started is None:
            self._started = time.monotonic()
            if self.limits.seconds and callable(signal.getsignal(signal.SIGALRM)):
                left = max(0.0, self.limits.seconds - self._seconds_before)
                signal.setitimer(signal.ITIMER_REAL, left + _ALARM_MARGIN_S)

    def num_left(self, num_in_flight: int) -> float:
        """Return the number of evaluations that may still be started."""
        limit = self.limits.evaluations or math.inf
        return limit - self.num_evaluated - num_in_flight

    def spent_seconds(self) -> str | None:
        """Return the reason to stop when the seconds are spent, otherwise None."""
        if self.limits.seconds and self.seconds >= self.limits.seconds:
            return f"budget.seconds={self.limits.seconds:g} is spent"
        return None

    def spent_evaluations(self) -> str:
        """Return the reason to stop when a candidate may not be started any more."""
        return f"budget.evaluations={self.limits.evaluations} is spent"

    def check_task(self, task: GFNTask) -> None:
        """Raise UserError if the size of candidates is limited and the task cannot compute it."""
        name = next((name for name, limit in self._size_limits() if limit), None)
        if name is not None and type(task).cost is GFNTask.cost:
            raise UserError(f"task {type(task).__name__}: expected cost(graph) with {name}, got a task without")

    def refusal(self, task: GFNTask, graph: Any) -> Outcome | None:
        """Return the outcome of a candidate that is too large, or whose size cannot be computed; None for others.

        Both are REFUSED: another budget may accept them.
        """
        limits = [(name, limit) for name, limit in self._size_limits() if limit]
        if not limits:
            return None
        start = time.perf_counter()
        try:
            cost = task.cost(graph)
            sizes = None if cost is None else (int(cost.num_parameters), int(cost.flops))
        except Exception as error:  # raised by the user's task
            reason = f"{type(task).__name__}.cost: {describe(error)}"
            return Outcome(EvaluationStatus.REFUSED, time.perf_counter() - start, error=reason)
        if sizes is None:
            reason = f"{type(task).__name__}.cost: expected a Cost with {limits[0][0]}, got None"
            return Outcome(EvaluationStatus.REFUSED, time.perf_counter() - start, error=reason)
        units = ("parameters", "FLOPs per example")
        for (name, limit), size, unit in zip(self._size_limits(), sizes, units, strict=True):
            if limit and size > limit:
                reason = f"expected at most {limit} {unit} ({name}), got {size}"
                return Outcome(EvaluationStatus.REFUSED, time.perf_counter() - start, error=reason)
        return None

    def _size_limits(self) -> tuple[tuple[str, int], tuple[str, int]]:
        limits = self.limits
        return ("budget.parameters", limits.parameters), ("budget.flops", limits.flops)
