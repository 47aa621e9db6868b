"""Whether counts match probabilities, by Pearson's test."""

from collections.abc import Mapping
from typing import Any

from scipy.stats import chi2

FEWEST_EXPECTED = 5.0  # cells in which fewer are expected are put together


def p_value(counts: Mapping[Any, int], probabilities: Mapping[Any, float]) -> float:
    """Return the probability of counts at least this far off; 0 where something impossible was counted."""
    total, cells, remaining = sum(counts.values()), [], [0.0, 0.0]
    if any(count and not probabilities.get(cell) for cell, count in counts.items()):
        return 0.0
    for cell, probability in probabilities.items():
        observed, expected = counts.get(cell, 0), total * probability
        if expected >= FEWEST_EXPECTED:
            cells.append((observed, expected))
        else:
            remaining = [remaining[0] + observed, remaining[1] + expected]
    cells += [tuple(remaining)] if remaining[1] > 0 else []
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
