"""Counts, best score and Pareto front of a run, as metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.rows import EvaluationStatus, failure_kind
from gflownet.metrics.statistics import hypervolume, non_dominated
from gflownet.run.failures import failure_line
from gflownet.run.run_log import StepSamples
from gflownet.search.loop import SearchStep


@dataclass
class Progress:
    """Counts and means over the steps of a run."""

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
        self._count_failures(every)
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

    def _count_failures(self, evaluations: Sequence[Evaluation]) -> None:
        self.new_failures = []
        for evaluation in evaluations:
            if evaluation.status is EvaluationStatus.OK or evaluation.cached:
                continue
            kind = failure_kind(evaluation.status, evaluation.error)
            if kind not in self.errors:
                self.new_failures.append(failure_line(evaluation))
            self.errors[kind] += 1

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
        """Return the state for a checkpoint, without failures, which are counted per process, and samples."""
        omitted = {"errors", "new_failures", "samples"}
        return {name: value for name, value in asdict(self).items() if name not in omitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        vars(self).update(state)


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN for no values."""
    return sum(values) / len(values) if values else math.nan
