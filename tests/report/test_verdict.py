"""The winner of a run in words."""

import math
from dataclasses import replace

from gflownet.report.verdict import Side, spent_line, verdict_of
from tests.evaluation.candidates import record

BEST = Side("rank 0", 0.95, 0.94, 0.96)


def test_verdict_names_better_references_first():
    equal = Side("best of 9 random architectures", 0.945, 0.93, 0.96, "load(it)")
    better = Side("a forest", 0.99, 0.98, 1.0)
    worse = Side("a line", 0.5, 0.4, 0.6)
    lines = verdict_of(BEST, [worse, equal, better])
    assert lines == [
        "a forest (0.9900 ± 0.0100) is better than rank 0 (0.9500 ± 0.0100), by 0.0400",
        "no clear difference: best of 9 random architectures (0.9450 ± 0.0150) equals rank 0 (0.9500 ± 0.0100) within "
        "the intervals; in Python: load(it)",
        "rank 0 (0.9500 ± 0.0100) is better than a line (0.5000 ± 0.1000), by 0.4500",
    ]
    assert verdict_of(BEST, []) == []
    (unknown,) = verdict_of(BEST, [Side("one training", 0.5, math.nan, math.nan)])
    assert unknown.startswith("no clear difference: one training (0.5000) equals")


def test_spent_line_counts_parts():
    seconds = {0: 2.0, 1: 3.0, 1_000_001: 60.0}
    rows = [replace(record("a", seed=seed), seconds=value) for seed, value in seconds.items()]
    assert spent_line(rows) == (
        "evaluations and their time, summed over processes: search 1 in 0:00:02, final stage 1 in 0:00:03, "
        "random reference 1 in 0:01:00"
    )
    assert spent_line([]) is None
