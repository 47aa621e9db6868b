"""Reference results on the same data: the best of some random architectures, and the task's own reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.final import FinalStage
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.metrics.statistics import simultaneous_intervals
from gflownet.report.architectures import as_json, bounds_of, entry_of, final_intervals

REFERENCES_NAME = "references.json"
RANDOM_NAME = "random_architecture.json"  # the best random architecture, as an entry of top_architectures.json


def write_references(
    folder: Path,
    final: FinalStage,
    *,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None],
) -> list[dict[str, Any]]:
    """Write the references with scores and return their entries; the best random architecture has a line to load it.

    An architecture without a module is loaded as node-link data.
    """
    references, best = [*final.references], final.best_random
    if best is not None and best.scores:
        name = f"best of {counted(final.num_random, 'random architecture')}"
        name += f", {final.even_share:.0%} of them even over sizes," if final.even_share else ""
        if final.num_random_trainings < final.num_trainings:
            name += f" in {counted(final.num_random_trainings, 'training')}; the run had {final.num_trainings}"
        interval, graph = final_intervals([best])[0], from_dict(json.loads(best.record.graph))
        name, settings = name.removesuffix(","), task.settings([graph])[0]
        entry = entry_of(
            folder, best, interval, rank=0, name="random", graph=graph, task=task, write=write, settings=settings
        )
        path = folder / RANDOM_NAME
        write(path, as_json([entry]))
        code = f'import json, pathlib; graph = json.loads(pathlib.Path("{path}").read_text())[0]["graph"]'
        code = task.load_line(graph, path, has_weights="weights" in entry) or code
        tests = [test for test in best.tests if test is not None]
        references.insert(0, Reference(name, best.scores, tests, best.record.num_parameters, code))
    entries = list(map(_entry, references))
    write(folder / REFERENCES_NAME, as_json(entries))
    return entries


def _entry(reference: Reference) -> dict[str, Any]:
    (interval,) = simultaneous_intervals([reference.validation])
    tests: Sequence[float] = reference.test
    return {
        "name": reference.name,
        "mean": interval.value,
        "interval": bounds_of(interval),
        "scores": list(reference.validation),
        "test_score": sum(tests) / len(tests) if tests else None,
        "test_scores": list(tests),
        "num_parameters": reference.num_parameters,
        "load": reference.code,
    }
