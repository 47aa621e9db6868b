"""The budget of a run: new evaluations, seconds of training, size of candidates."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.execution import describe
from gflownet.evaluation.job import EvaluationStatus, Outcome, ReferenceName
from gflownet.evaluation.task import GFNTask

# The alarm rings this much after the end of the seconds, because its clock is another one.
_ALARM_MARGIN_S = 0.01


@dataclass(frozen=True)
class Reserve:
    """The part of a budget that the search leaves to the final stage."""

    evaluations: int = 0
    seconds: float = 0.0


class Budget:
    """Limits of a search, and the part that is used; refused candidates are not counted."""

    def __init__(
        self, limits: BudgetConfig, *, num_evaluated: int = 0, seconds: float = 0.0, reserve: Reserve | None = None
    ) -> None:
        """Start with the part used so far.

        Without `reserve` all is for the search.
        """
        self.limits, self.num_evaluated = limits, num_evaluated
        self._reserve = reserve or Reserve()
        self._seconds = limits.seconds - self._reserve.seconds if limits.seconds else 0.0
        self._seconds_before = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of training so far, from the first submitted candidate on."""
        return self._seconds_before + (0.0 if self._started is None else time.monotonic() - self._started)

    @property
    def seconds_left(self) -> float:
        """The seconds until the budget is spent, inf without a limit."""
        return max(0.0, self._seconds - self.seconds) if self.limits.seconds else math.inf

    def start(self) -> None:
        """Start the clock, unless it runs; a handler of SIGALRM gets that signal when the seconds are spent."""
        if self._started is None:
            self._started = time.monotonic()
            if self.limits.seconds and callable(signal.getsignal(signal.SIGALRM)):
                left = max(0.0, self._seconds - self._seconds_before)
                signal.setitimer(signal.ITIMER_REAL, left + _ALARM_MARGIN_S)

    def num_left(self, num_in_flight: int) -> float:
        """Return the number of evaluations that may still be started."""
        limit = self.limits.evaluations - self._reserve.evaluations if self.limits.evaluations else math.inf
        return limit - self.num_evaluated - num_in_flight

    def spent_seconds(self) -> str | None:
        """Return the reason to stop when the seconds are spent, otherwise None."""
        if self.seconds_left <= 0:
            return f"budget.seconds={self.limits.seconds:g} is spent{self._left(self._reserve.seconds, 'seconds')}"
        return None

    def spent_evaluations(self) -> str:
        """Return the reason to stop when a candidate may not be started any more."""
        left = self._left(self._reserve.evaluations, "trainings")
        return f"budget.evaluations={self.limits.evaluations} is spent{left}"

    def _left(self, reserve: float, unit: str) -> str:
        return f" but for {reserve:g} {unit} of the final stage" if reserve else ""

    def check_task(self, task: GFNTask) -> None:
        """Raise UserError if the size of candidates is limited and the task cannot compute it."""
        name = next((name for name, limit in self._size_limits() if limit), None)
        if name is not None and type(task).cost is GFNTask.cost:
            raise UserError(f"task {type(task).__name__}: expected cost(graph) with {name}, got a task without")

    def refusal(self, task: GFNTask, graph: Any) -> Outcome | None:
        """Return the outcome of a candidate that the task refuses, or that is too large or of unknown size, or None.

        All are REFUSED: another budget may accept them.
        """
        start = time.perf_counter()
        if isinstance(graph, ReferenceName):
            return None
        try:
            reason = task.refusal(graph) or self._excess(task, graph)
        except Exception as error:  # raised by the user's task
            reason = f"{type(task).__name__}.refusal: {describe(error)}"
        if reason is None:
            return None
        return Outcome(EvaluationStatus.REFUSED, time.perf_counter() - start, error=reason)

    def _excess(self, task: GFNTask, graph: Any) -> str | None:
        """Return the reason why a candidate does not fit the budget, None if it does."""
        limits = [(name, limit) for name, limit in self._size_limits() if limit]
        if not limits:
            return None
        try:
            cost = task.cost(graph)
            sizes = None if cost is None else (int(cost.num_parameters), int(cost.flops))
        except Exception as error:  # raised by the user's task
            return f"{type(task).__name__}.cost: {describe(error)}"
        if sizes is None:
            return f"{type(task).__name__}.cost: expected a Cost with {limits[0][0]}, got None"
        units = ("parameters", "FLOPs per example")
        for (name, limit), size, unit in zip(self._size_limits(), sizes, units, strict=True):
            if limit and size > limit:
                return f"expected at most {limit} {unit} ({name}), got {size}"
        return None

    def _size_limits(self) -> tuple[tuple[str, int], tuple[str, int]]:
        limits = self.limits
        return ("budget.parameters", limits.parameters), ("budget.flops", limits.flops)
