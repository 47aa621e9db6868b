"""Pearson's chi-square test of counts against probabilities."""

from collections.abc import Mapping
from typing import Any

import torch

MIN_EXPECTED = 5.0  # cells with a smaller expected count are merged


def p_value(counts: Mapping[Any, int], probabilities: Mapping[Any, float]) -> float:
    """Return the p-value of the counts; 0 if a cell of probability 0 was observed."""
    total, cells, remaining = sum(counts.values()), [], [0.0, 0.0]
    if any(count and not probabilities.get(cell) for cell, count in counts.items()):
        return 0.0
    for cell, probability in probabilities.items():
        observed, expected = counts.get(cell, 0), total * probability
        if expected >= MIN_EXPECTED:
            cells.append((observed, expected))
        else:
            remaining = [remaining[0] + observed, remaining[1] + expected]
    cells += [tuple(remaining)] if remaining[1] > 0 else []
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    half = torch.tensor([len(cells) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(*half))
