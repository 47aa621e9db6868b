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
from gflownet.report.architectures import as_json, bounds_of, entries_of, final_intervals
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
    top, random, sizes = final.top, final.random_top, final.sizes
    if sizes is None:
        entries, random = list[dict[str, Any]](), random[:1]
        pairs = [(0, {}) for best in random if best.scores]
    else:
        entries, pairs = _front_entries(final, task, sizes), _compared(top, random, sizes)
    intervals, places = final_intervals(random, sizes), list(dict.fromkeys(place for place, _ in pairs))
    best = [random[place] for place in places], [intervals[place] for place in places]
    saved = entries_of(folder, *best, prefix="random", task=task, from_dict=from_dict, write=write)
    for place, further in pairs:
        each, rank, path = random[place], places.index(place), folder / RANDOM_NAME
        code = f'import json, pathlib; graph = json.loads(pathlib.Path("{path}").read_text())[{rank}]["graph"]'
        graph, has_weights = from_dict(json.loads(each.record.graph)), "weights" in saved[rank]
        code = task.load_line(graph, path, has_weights=has_weights, rank=rank) or code
        tests = [test for test in each.tests if test is not None]
        reference = Reference(_name_of_random(final), each.scores, tests, each.record.num_parameters, code)
        entries.append(_entry(reference, intervals[place] or simultaneous_intervals([each.scores])[0]) | further)
    entries += [_entry(reference, *simultaneous_intervals([reference.validation])) for reference in final.references]
    write(folder / REFERENCES_NAME, as_json(entries))
    if saved:
        write(folder / RANDOM_NAME, as_json(saved))
    return entries


def _compared(
    top: Sequence[TopArchitecture], random: Sequence[TopArchitecture], sizes: Sizes
) -> list[tuple[int, dict[str, Any]]]:
    """Return the place of the best random architecture within each cap, with the cap and the best of the run."""
    intervals, pairs = final_intervals(top, sizes), list[tuple[int, dict[str, Any]]]()
    for cap in sizes.caps:
        rank, place = sizes.best(top, cap), sizes.best(random, cap)
        if rank is not None and place is not None:
            measure = f"at most {cap:,.6g} {sizes.metric.replace('_', ' ')}"
            own = {"name": f"rank {rank}", "mean": top[rank].mean, "interval": bounds_of(intervals[rank])}
            own |= {"scores": list(top[rank].scores)}
            pairs.append((place, {"measure": measure, "own": own}))
    return pairs


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
    value = volume(means)
    error, num_freedom = standard_errors([each.scores for each in complete], sizes.groups(complete))
    noise = np.random.default_rng(0).standard_t(np.maximum(num_freedom, 1), (_NUM_DRAWS, len(means))) * error
    if np.isnan(noise).any():
        return Interval(value, math.nan, math.nan)
    volumes = [volume(drawn) for drawn in np.clip(means + noise, 0.0, 1.0 if means.max() <= 1 else task.max_score)]
    low, high = np.quantile(volumes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    margin = (high - low) / 2  # around the estimate: noise alone makes the front of many drawn means larger
    return Interval(value, value - margin, value + margin)


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
