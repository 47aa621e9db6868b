"""Reference results on the same data: the best of some random architectures, and the task's own reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gflownet.console import ReportRow
from gflownet.evaluation.final import FinalStage
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.report.architectures import as_json, bounds_of, intervals_of, margin_of, with_translation

if TYPE_CHECKING:
    from gflownet.metrics.statistics import Interval

REFERENCES_NAME = "references.json"


def references_of(final: FinalStage) -> list[Reference]:
    """Return the references with scores."""
    references = [*final.references]
    best = final.best_random
    if best is not None and best.scores:
        tests = [test for test in best.tests if test is not None]
        references.insert(
            0, Reference(f"best of {final.num_random} random", best.scores, tests, best.record.num_parameters)
        )
    return references


def reference_rows(references: Sequence[Reference]) -> list[ReportRow]:
    """Return the rows below the best architectures; no reference was chosen by these scores."""
    return [
        ReportRow(
            rank=None,
            validation=(interval := _interval(reference)).value,
            test=_mean(reference.test),
            num_parameters=reference.num_parameters,
            num_hidden=None,
            num_edges=None,
            picture=reference.name,
            margin=margin_of(interval),
        )
        for reference in references
    ]


def references_text(references: Sequence[Reference], *, final: FinalStage, task: GFNTask) -> str:
    """Return the references as JSON, the random one with its graph."""
    entries: list[dict[str, Any]] = []
    for reference in references:
        interval = _interval(reference)
        entry = {
            "name": reference.name,
            "mean": interval.value,
            "interval": bounds_of(interval),
            "scores": list(reference.validation),
            "test_score": _mean(reference.test),
            "test_scores": list(reference.test),
            "num_parameters": reference.num_parameters,
        }
        if final.best_random is not None and reference not in final.references:
            entry["graph"] = with_translation(json.loads(final.best_random.record.graph), task)
        entries.append(entry)
    return as_json(entries)


def _interval(reference: Reference) -> Interval:
    return intervals_of([reference.validation])[0]


def _mean(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None
