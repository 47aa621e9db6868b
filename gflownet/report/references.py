"""The run against the best of some random architectures, and against the task's own references.

With two objectives random architectures are compared within caps of the cost, and by the hypervolume of their front.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.errors import counted
from gflownet.evaluation.final import FinalStage, Sizes, TopArchitecture
from gflownet.evaluation.statistics import LEVEL, Interval, hypervolume, simultaneous_intervals, standard_errors
from gflownet.evaluation.task import GFNTask, Score
from gflownet.report.architectures import as_json, entries_of, final_sides, finalist_of, load_line, side_of
from gflownet.report.results import Comparison, Finalist, Side
from gflownet.report.verdict import HYPERVOLUME, comparisons_of

_COSTS = {"latency": "s of latency"}  # words of a cap
_NUM_DRAWS = 1_000  # of the mean scores of a front
RANDOM_NAME = "random_architecture.json"  # the best random architecture, as an entry of top_architectures.json


def compare_references(
    folder: Path,
    final: FinalStage,
    finalists: Sequence[Finalist],
    *,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None],
) -> tuple[tuple[Comparison, ...], tuple[Finalist, ...]]:
    """Return the comparisons, and the random finalists; write the best random architectures as data to load."""
    random, sizes = final.random_top, final.sizes
    sides = final_sides(random, sizes, task=task, name=_name_of_random(final))
    best = [(0, "", None)] if random and sides[0] is not None else []
    pairs = list[tuple[Side, Side | None]]()
    if sizes is not None:
        best = list(_within_caps(final.top, finalists, random, sizes))
        pairs += _fronts(final, task, sizes)
    places = list(dict.fromkeys(place for place, *_ in best))
    chosen = [random[place] for place in places]
    known = [sides[place] for place in places]
    saved = entries_of(folder, chosen, known, prefix="random", task=task, from_dict=from_dict, write=write)
    if saved:
        write(folder / RANDOM_NAME, as_json(saved))
    for place, measure, own in best:
        rank, side, graph = places.index(place), sides[place], from_dict(json.loads(random[place].record.graph))
        code = load_line(graph, folder / RANDOM_NAME, rank=rank, task=task, has_weights="weights" in saved[rank])
        pairs += [] if side is None else [(replace(side, load=code, measure=measure), own)]
    for each in final.references:
        (interval,) = simultaneous_intervals([each.validation])
        side = side_of(each.name, interval, each.validation, each.test, task=task)
        pairs.append((replace(side, num_parameters=each.num_parameters, load=each.code), None))
    raced = tuple(finalist_of(rank, *each) for rank, each in enumerate(zip(random, sides, strict=True)))
    return comparisons_of(finalists[0].final if finalists else None, pairs), raced


def _within_caps(
    top: Sequence[TopArchitecture], finalists: Sequence[Finalist], random: Sequence[TopArchitecture], sizes: Sizes
) -> Iterator[tuple[int, str, Side | None]]:
    """Yield the place of the best random architecture within each cap, with the cap and the best of the run."""
    pairs = {(sizes.best(top, cap), sizes.best(random, cap)): cap for cap in reversed(sizes.caps)}  # each once
    for (rank, place), cap in reversed(pairs.items()):
        if rank is not None and place is not None:
            yield (
                place,
                f"at most {cap:,.6g} {_COSTS.get(sizes.metric) or sizes.metric.replace('_', ' ')}",
                finalists[rank].final,
            )


def _name_of_random(final: FinalStage) -> str:
    name = f"best of {counted(final.num_random, 'random architecture')}"
    name += f", {final.even_share:.0%} of them even over sizes," if final.even_share else ""
    if final.num_random_trainings < final.num_trainings:
        name += f" in {counted(final.num_random_trainings, 'training')}; the run had {final.num_trainings}"
    return name.removesuffix(",")


def _fronts(final: FinalStage, task: GFNTask, sizes: Sizes) -> list[tuple[Side, Side | None]]:
    """Return the hypervolume of the front of random finalists with that of the run's; none without either."""
    own, random = (front_volume(each, task, sizes) for each in (final.top, final.random_top))
    if own is None or random is None:
        return []
    name = f"the front of {counted(final.num_random, 'random architecture')}"
    front, other = (side_of(text, each, (), (), task=task) for text, each in (("the run's front", own), (name, random)))
    return [(replace(other, measure=HYPERVOLUME), front)]


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
    error, num_freedom = standard_errors([each.measured for each in complete], sizes.groups(complete))
    noise = np.random.default_rng(0).standard_t(np.maximum(num_freedom, 1), (_NUM_DRAWS, len(means))) * error
    if np.isnan(noise).any():
        return Interval(value, math.nan, math.nan)
    volumes = [volume(drawn) for drawn in np.clip(means + noise, 0.0, 1.0 if means.max() <= 1 else task.max_score)]
    low, high = np.quantile(volumes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    margin = (high - low) / 2  # around the estimate: noise alone makes the front of many drawn means larger
    return Interval(value, value - margin, value + margin)
