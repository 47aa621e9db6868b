"""Hard caps on measured metrics: an evaluation above one counts as a failure of the search, with the floor score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gflownet.errors import UserError
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.evaluation.tables import listed

KEY = "evaluation.constraints"


def exceeded(metrics: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Return the first metric that is above its limit or not a number, None where all are within.

    Raises:
        UserError: a metric that the task does not report.
    """
    for name, limit in limits.items():
        if name not in metrics:
            raise UserError(f"{KEY}.{name}: expected a metric that the task reports, {listed(metrics) or 'none'}")
        value = metrics[name]
        if math.isnan(value) or value > limit:
            return name
    return None


def best_within(store: EvaluationStore, num: int, limits: Mapping[str, float]) -> Sequence[EvaluationRecord]:
    """Return the `num` best successful rows of the search within the limits, best first."""
    if not limits:
        return store.top(num)
    return [row for row in store.top(store.count()) if exceeded(row.metrics, limits) is None][:num]
