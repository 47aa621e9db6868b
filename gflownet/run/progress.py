"""Counts, best score, Pareto front and executor of a run, as metrics."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.statistics import hypervolume, non_dominated
from gflownet.evaluation.store.rows import EvaluationStatus, failure_kind
from gflownet.run.failures import failure_line
from gflownet.run.run_log import COUNTS, StepSamples
from gflownet.search.loop import SearchStep


@dataclass
class Progress:
    """Counts and means over the steps of a run."""

    step: int = 0  # completed ones
    seconds: float = 0.0
    num_distinct: int = 0  # evaluated architectures
    best_score: float = -math.inf
    score_means: list[float] = field(default_factory=list)  # of each step
    front: list[list[float]] = field(default_factory=list)  # non-dominated utilities
    hypervolume: float = 0.0  # of the front, above utilities of 0
    errors: Counter[str] = field(default_factory=Counter)  # kinds of this process's failed evaluations
    new_failures: list[str] = field(default_factory=list)  # lines for the kinds that are new in the last step
    samples: StepSamples = field(default_factory=StepSamples)  # fresh ones of the last step

    def add(self, step: SearchStep) -> dict[str, float]:
        """Count a step's evaluations, and return its metrics.

        Means and shares cover its proposals; best score, distinct graphs, failures and front other states, too.
        """
        evaluations, every = step.evaluations, [*step.evaluations, *step.other_evaluations]
        scores = [evaluation.score for evaluation in evaluations]
        num = len(evaluations)
        self.new_failures = []
        for evaluation in every:
            if evaluation.status is not EvaluationStatus.OK and not evaluation.cached:
                kind = failure_kind(evaluation.status, evaluation.error)
                self.new_failures += [] if kind in self.errors else [failure_line(evaluation)]
                self.errors[kind] += 1
        self.best_score = max(self.best_score, *(evaluation.score for evaluation in every))
        self.score_means.append(mean(scores))
        self.samples = StepSamples.of(scores, step.log_rewards)
        self.num_distinct += sum(not e.cached and e.status is not EvaluationStatus.REFUSED for e in every)
        return {
            "score_mean": self.score_means[-1],
            "score_best": self.best_score,
            "num_distinct": self.num_distinct,
            "cached_share": sum(e.cached for e in evaluations) / num,
            "failed_share": sum(e.status is not EvaluationStatus.OK for e in evaluations) / num,
            **self._trade_offs(every),
        }

    def _trade_offs(self, evaluations: Sequence[Evaluation]) -> dict[str, float]:
        """Update the front, and return its metrics; nothing for one objective."""
        if not any(evaluation.utilities for evaluation in evaluations):
            return {}
        previous = {tuple(point) for point in self.front}
        candidates = previous | {e.utilities for e in evaluations if e.status is EvaluationStatus.OK}
        if candidates != previous:
            points = np.array(sorted(candidates))
            self.front = points[non_dominated(points)].tolist()
        if {tuple(point) for point in self.front} != previous:
            self.hypervolume = hypervolume(np.array(self.front))
        return {"hypervolume": self.hypervolume, "front_size": len(self.front)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the step, the failures of this process and the samples."""
        omitted = {"step", "errors", "new_failures", "samples"}
        return {name: value for name, value in asdict(self).items() if name not in omitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        vars(self).update(state)


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN for no values."""
    return sum(values) / len(values) if values else math.nan


# The busy share covers at least this many seconds, or evaluations of this many times their mean duration.
_WINDOW_S, _WINDOW_EVALUATIONS = 30.0, 4


class ExecutorStatus:
    """Metrics of the executor behind a dispatcher, for this process."""

    def __init__(self, dispatcher: Dispatcher, *, now: Callable[[], float] = time.monotonic) -> None:
        """Keep the dispatcher; `now` returns the time in seconds."""
        self._dispatcher = dispatcher
        self._now = now
        self._is_shared = isinstance(dispatcher.executor, InlineExecutor)  # evaluates in the main process
        self._window = deque([(now(), 0.0)])  # moments, and seconds of finished evaluations before them

    def metrics(self) -> dict[str, float]:
        """Return the current values; the busy share only for executors with processes."""
        dispatcher = self._dispatcher
        metrics: dict[str, float] = {"in_flight": dispatcher.num_in_flight}
        metrics |= {name: dispatcher.counts[name] for name in COUNTS}
        if not self._is_shared:
            metrics["busy_share"] = self._busy_share()
        return metrics

    def _busy_share(self) -> float:
        """Return the seconds of evaluations that finished in the window, per second and place of the executor."""
        dispatcher, moment = self._dispatcher, self._now()
        length = max(_WINDOW_S, _WINDOW_EVALUATIONS * dispatcher.mean_seconds)
        while len(self._window) > 1 and moment - self._window[1][0] >= length:
            self._window.popleft()
        start, before = self._window[0]
        if moment - self._window[-1][0] >= length / 100:
            self._window.append((moment, dispatcher.evaluation_seconds))
        if moment <= start:
            return 0.0
        busy = (dispatcher.evaluation_seconds - before) / (moment - start) / dispatcher.executor.capacity
        return min(1.0, busy)
