"""Reference results on the same data: the best of some random architectures, and the task's own reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gflownet.cli.console import ReportRow
from gflownet.errors import counted
from gflownet.evaluation.final import FinalStage
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.metrics.statistics import Interval, simultaneous_intervals
from gflownet.report.architectures import as_json, bounds_of, entry_of, final_intervals, margin_of
from gflownet.report.verdict import Side, verdict_of

REFERENCES_NAME = "references.json"
RANDOM_NAME = "random_architecture.json"  # the best random architecture, as an entry of top_architectures.json


def references_of(
    folder: Path,
    final: FinalStage,
    *,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None],
) -> list[Reference]:
    """Write and return the references with scores, the best random architecture with the line that loads it.

    An architecture without a module is loaded as node-link data.
    """
    references, best = [*final.references], final.best_random
    if best is not None and best.scores:
        name = f"best of {counted(final.num_random, 'random architecture')}"
        if final.num_random_trainings < final.num_trainings:
            name += f" in {counted(final.num_random_trainings, 'training')}; the run had {final.num_trainings}"
        interval, graph = final_intervals([best])[0], from_dict(json.loads(best.record.graph))
        settings = task.settings([graph])[0]
        entry = entry_of(
            folder, best, interval, rank=0, name="random", graph=graph, task=task, write=write, settings=settings
        )
        path = folder / RANDOM_NAME
        write(path, as_json([entry]))
        code = f'import json, pathlib; graph = json.loads(pathlib.Path("{path}").read_text())[0]["graph"]'
        code = task.load_line(graph, path, has_weights="weights" in entry) or code
        tests = [test for test in best.tests if test is not None]
        references.insert(0, Reference(name, best.scores, tests, best.record.num_parameters, code))
    write(folder / REFERENCES_NAME, _references_text(references))
    return references


def verdict_lines(final: FinalStage, references: Sequence[Reference]) -> list[str]:
    """Return the comparison of rank 0 with the references, see `verdict_of`; none without a new seed."""
    best, *_ = final.top
    if not best.scores:
        return []
    interval = final_intervals(final.top)[0]
    sides = [_side(each.name, (mean := _interval(each)).value, mean, each.code) for each in references]
    return verdict_of(_side("rank 0", best.mean, interval), sides)


def _side(name: str, mean: float, interval: Interval | None, load: str = "") -> Side:
    low, high = (math.nan, math.nan) if interval is None else (interval.low, interval.high)
    return Side(name, mean, low, high, load)


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


def _references_text(references: Sequence[Reference]) -> str:
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
            "load": reference.code,
        }
        entries.append(entry)
    return as_json(entries)


def _interval(reference: Reference) -> Interval:
    return simultaneous_intervals([reference.validation])[0]


def _mean(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None
