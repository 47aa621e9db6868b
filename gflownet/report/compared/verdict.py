"""The order of two groups in one sentence, with the doubt that their seeds leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gflownet.report.compared.comparison import Comparison
from gflownet.report.compared.figures import FIGURES, Estimate, FigureKind
from gflownet.report.page.axes import number_text

# The first of these that two groups have is compared.
_COMPARED = ("test_score", "final_score", "best_score")


def verdict_of(comparison: Comparison) -> str:
    """Return the sentence, empty with less than two comparable groups."""
    for key in _COMPARED:
        kind = next(kind for kind in FIGURES if kind.key == key)
        estimates = [figures[key] for figures in comparison.figures]
        order = sorted(_known(estimates), key=lambda index: -estimates[index].mean)
        if len(order) > 1:
            names = [comparison.groups[index].name for index in order[:2]]
            return _sentence(kind, names, [estimates[index] for index in order[:2]])
    return ""


def estimate_text(estimate: Estimate, *, unit: str = "") -> str:
    """Return a mean with its interval as text."""
    suffix = f" {unit}" if unit else ""
    if math.isnan(estimate.low):
        return number_text(estimate.mean) + (suffix if math.isfinite(estimate.mean) else "")
    low, high = number_text(estimate.low, 3), number_text(estimate.high, 3)
    return f"{number_text(estimate.mean)} [{low}, {high}]{suffix}"


def _known(estimates: Sequence[Estimate]) -> list[int]:
    return [index for index, estimate in enumerate(estimates) if math.isfinite(estimate.mean)]


def _sentence(kind: FigureKind, names: Sequence[str], estimates: Sequence[Estimate]) -> str:
    first, second = estimates
    start = (
        f"Highest {kind.title}: {estimate_text(first)} of {names[0]}; next is {estimate_text(second)} of {names[1]}."
    )
    if math.isnan(first.low) or math.isnan(second.low):
        return f"{start} Without two seeds of each, the order may be chance."
    if first.low > second.high:
        return f"{start} Their 95 % intervals over seeds do not overlap."
    return f"{start} Their 95 % intervals over seeds overlap: the order may be chance."
