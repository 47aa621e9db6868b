"""Reference results on the same data: the best of some random architectures, and the task's own reference.

With two objectives random architectures are compared within caps of the cost, and by the hypervolume of their front.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.errors import counted
from gflownet.evaluation.final import FinalStage, Sizes, TopArchitecture
from gflownet.evaluation.task import GFNTask, Reference, Score
from gflownet.metrics.statistics import LEVEL, Interval, hypervolume, simultaneous_intervals, standard_errors
from gflownet.report.architectures import as_json, bounds_of, entry_of, final_intervals
from gflownet.report.verdict import HYPERVOLUME

_NUM_DRAWS = 1_000  # of the mean scores of a front
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
    entries, written = list[dict[str, Any]](), dict[int, dict[str, Any]]()

    def entry_of_random(best: TopArchitecture, interval: Interval | None) -> dict[str, Any]:
        graph, number = from_dict(json.loads(best.record.graph)), len(written)
        if id(best) not in written:
            name, settings = f"random_{number}" if number else "random", task.settings([graph])[0]
            described = {"graph": graph, "task": task, "write": write, "settings": settings}
            written[id(best)] = entry_of(folder, best, interval, rank=number, name=name, **described)
        entry, path = written[id(best)], folder / RANDOM_NAME
        number, has_weights = entry["rank"], "weights" in entry
        code = f'import json, pathlib; graph = json.loads(pathlib.Path("{path}").read_text())[{number}]["graph"]'
        code = task.load_line(graph, path, has_weights=has_weights, rank=number) or code
        tests = [test for test in best.tests if test is not None]
        reference = Reference(_name_of_random(final), best.scores, tests, best.record.num_parameters, code)
        return _entry(reference, interval or simultaneous_intervals([best.scores])[0])

    if final.sizes is None:
        entries += [entry_of_random(best, final_intervals([best])[0]) for best in final.random_top[:1] if best.scores]
    else:
        entries += _front_entries(final, task, final.sizes)
        own, random = (_with_intervals(each, final.sizes) for each in (final.top, final.random_top))
        for cap in final.sizes.caps:
            mine, other = final.sizes.best(final.top, cap), final.sizes.best(final.random_top, cap)
            if mine is not None and other is not None:
                measure = f"at most {cap:,.6g} {final.sizes.metric.replace('_', ' ')}"
                rank, interval = own[id(mine)]
                side = {"name": f"rank {rank}", "mean": mine.mean, "interval": bounds_of(interval)}
                entry = entry_of_random(other, random[id(other)][1])
                entries.append(entry | {"measure": measure, "own": side})
    entries += [_entry(reference, *simultaneous_intervals([reference.validation])) for reference in final.references]
    write(folder / REFERENCES_NAME, as_json(entries))
    if written:
        write(folder / RANDOM_NAME, as_json(list(written.values())))
    return entries


def _with_intervals(top: Sequence[TopArchitecture], sizes: Sizes) -> dict[int, tuple[int, Interval | None]]:
    """Return rank and interval of each architecture by its id."""
    rows = zip(top, final_intervals(top, sizes), strict=True)
    return {id(each): (rank, interval) for rank, (each, interval) in enumerate(rows)}


def _name_of_random(final: FinalStage) -> str:
    name = f"best of {counted(final.num_random, 'random architecture')}"
    name += f", {final.even_share:.0%} of them even over sizes," if final.even_share else ""
    if final.num_random_trainings < final.num_trainings:
        name += f" in {counted(final.num_random_trainings, 'training')}; the run had {final.num_trainings}"
    return name.removesuffix(",")


def _front_entries(final: FinalStage, task: GFNTask, sizes: Sizes) -> list[dict[str, Any]]:
    """Return the hypervolume of the front of random finalists beside that of the run's; none without either."""
    own, random = (front_volume(each, task, sizes) for each in (final.top, final.random_top))
    if own is None or random is None:
        return []
    side = {"name": "the run's front", "mean": own.value, "interval": bounds_of(own)}
    name = f"the front of {counted(final.num_random, 'random architecture')}"
    return [_entry(Reference(name, [], [], None, ""), random) | {"measure": HYPERVOLUME, "own": side}]


def front_volume(architectures: Sequence[TopArchitecture], task: GFNTask, sizes: Sizes) -> Interval | None:
    """Return the hypervolume of the front of mean scores on new seeds, with its 95 % interval; None without any.

    The means are drawn again from Student's t with the variance pooled over the architectures of a range of sizes.
    """
    complete = [each for each in architectures if each.scores and not each.errors]
    if not complete:
        return None

    def volume(means: np.ndarray) -> float:
        metrics = ({**each.record.metrics, task.score_name: mean} for each, mean in zip(complete, means, strict=True))
        return hypervolume(np.array([task.utilities(Score(0.0, None, each)) for each in metrics]))

    means = np.array([each.mean for each in complete])
    error, num_freedom = standard_errors([each.scores for each in complete], sizes.groups(complete))
    noise = np.random.default_rng(0).standard_t(np.maximum(num_freedom, 1), (_NUM_DRAWS, len(means))) * error
    if np.isnan(noise).any():
        return Interval(volume(means), math.nan, math.nan)
    volumes = [volume(drawn) for drawn in np.clip(means + noise, 0.0, 1.0 if means.max() <= 1 else task.max_score)]
    low, high = np.quantile(volumes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    margin = (high - low) / 2  # around the estimate: noise alone makes the front of many drawn means larger
    return Interval(volume(means), volume(means) - margin, volume(means) + margin)


def _entry(reference: Reference, interval: Interval) -> dict[str, Any]:
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
