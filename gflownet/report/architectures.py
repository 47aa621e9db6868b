"""The best architectures of a run: top_architectures.json, drawings, weights, rows of the closing table and of logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.execution import saved_weights
from gflownet.evaluation.final import Sizes, TopArchitecture
from gflownet.evaluation.presentation import words_of
from gflownet.evaluation.statistics import Interval, simultaneous_intervals
from gflownet.evaluation.task import GFNTask
from gflownet.files import sealed, write_whole
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_svg
from gflownet.report.results import Finalist, Side

TOP_NAME = "top_architectures.json"
PICTURES_NAME = "architectures"
SET_NAME = "set.json"


def write_top_architectures(
    folder: Path,
    top: Sequence[TopArchitecture],
    *,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None] = write_whole,
    sizes: Sizes | None = None,
) -> tuple[Finalist, ...]:
    """Write the best architectures with scores, drawings and trained weights, and return them without their graphs."""
    sides = final_sides(top, sizes, task=task)
    entries = entries_of(folder, top, sides, prefix="rank", task=task, from_dict=from_dict, write=write)
    for rank, architecture in enumerate(top):
        if (network := task.network(from_dict(json.loads(architecture.record.graph)))) is not None:
            write(folder / PICTURES_NAME / f"rank_{rank}.svg", to_svg(network))
    write(folder / TOP_NAME, as_json(entries))
    finalists = list[Finalist]()
    for rank, (each, side, entry) in enumerate(zip(top, sides, entries, strict=True)):
        candidate, picture = from_dict(json.loads(each.record.graph)), f"rank_{rank}.svg"
        picture = picture if (folder / PICTURES_NAME / picture).exists() else ""
        shown = {"picture": picture, **{name: entry.get(name, "") for name in ("words", "choices")}}
        load = load_line(candidate, folder / TOP_NAME, rank=rank, task=task, has_weights="weights" in entry)
        finalists.append(finalist_of(rank, each, side, load=load, **shown))
    return tuple(finalists)


def finalist_of(rank: int, architecture: TopArchitecture, side: Side | None, **further: Any) -> Finalist:
    """Return an architecture without its graphs."""
    record, errors = architecture.record, architecture.errors
    figures = record.score, record.num_parameters, dict(record.metrics), architecture.test, side
    return Finalist(rank, *figures, errors, architecture.test_error or "", **further)


def entries_of(
    folder: Path,
    architectures: Sequence[TopArchitecture],
    sides: Sequence[Side | None],
    *,
    prefix: str,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None],
) -> list[dict[str, Any]]:
    """Write the weights of architectures, PREFIX_RANK.safetensors, and return their entries."""
    graphs = [from_dict(json.loads(architecture.record.graph)) for architecture in architectures]
    rows = zip(architectures, sides, graphs, task.settings(graphs), strict=True)
    return [
        _entry(rank, architecture, side)
        | described_in_words(graph, task, settings)
        | _write_weights(folder, f"{PICTURES_NAME}/{prefix}_{rank}.safetensors", architecture, write)
        | _graphs(graph, task.network(graph), task)
        for rank, (architecture, side, graph, settings) in enumerate(rows)
    ]


def described_in_words(graph: Any, task: GFNTask, settings: str) -> dict[str, Any]:
    """Return the words, the choices as YAML and the description of a candidate, for its entry."""
    named = {"words": words_of(task, graph), "choices": settings}
    return {**{name: text for name, text in named.items() if text}, **task.description(graph)}


def _graphs(candidate: Any, network: ComputationGraph | None, task: GFNTask) -> dict[str, Any]:
    """Return the entries of a candidate and, where it is another object, of its network."""
    entry = {"graph": with_translation(candidate.to_dict(), task)}
    if network is None or network is candidate:
        return entry
    return entry | {"network": with_translation(network.to_dict(), task)}


def final_sides(
    top: Sequence[TopArchitecture], sizes: Sizes | None = None, *, task: GFNTask, name: str = ""
) -> list[Side | None]:
    """Return the mean scores on new seeds with intervals valid all at once; None with no such score.

    Rank 0 has the largest of several means, so an interval for one mean alone is too narrow: of 10 architectures of
    digits with 5 seeds each, it covered the mean of 10 further seeds in 77 to 82 % of 4,000 resampled runs, and these
    intervals did in 95 to 97 % (docs/final-stage.md). The variance is that of each range of sizes: small networks vary
    more. With a failed training there is no interval. `name`: of all; empty: their ranks.
    """
    repeated = [architecture for architecture in top if architecture.scores and not architecture.errors]
    groups = sizes.groups(repeated) if sizes else ()
    intervals = iter(simultaneous_intervals([each.measured for each in repeated], groups) if repeated else [])
    sides = list[Side | None]()
    for rank, each in enumerate(top):
        interval = Interval(each.mean, math.nan, math.nan) if each.errors or not each.scores else next(intervals)
        side = side_of(name or f"rank {rank}", interval, each.measured, each.measured_tests, task=task)
        sides.append(replace(side, num_parameters=each.record.num_parameters) if each.scores else None)
    return sides


def side_of(
    name: str, interval: Interval, scores: Sequence[float], tests: Sequence[float | None], *, task: GFNTask
) -> Side:
    """Return a mean score with its interval within the scores of the task, and the mean of its metric."""
    cut = interval.within(0.0, 1.0 if interval.value <= 1 and max(scores, default=0.0) <= 1 else task.max_score)
    values = [task.metric_of(score) for score in scores]
    metric = math.fsum(values) / len(values) if values else math.nan
    margin = (interval.high - interval.low) / 2
    return Side(name, interval.value, cut.low, cut.high, margin, metric, tuple(scores), tuple(tests))


def with_translation(data: dict[str, Any], task: GFNTask) -> dict[str, Any]:
    """Return node-link data of a computation graph with the translation settings of the task, other data unchanged."""
    if not all("node_type" in node for node in data["nodes"]):
        return data
    return data | {"graph": {**data.get("graph", {}), "translation": dict(task.translation_settings)}}


def as_json(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON text of the entries, each with a checksum."""
    return json.dumps([sealed(entry) for entry in entries], indent=1) + "\n"


def _entry(rank: int, architecture: TopArchitecture, side: Side | None) -> dict[str, Any]:
    record = architecture.record
    entry = {
        "rank": rank,
        "run": record.run,
        "validation_score": record.score,
        "test_score": architecture.test,
        "num_parameters": record.num_parameters,
        "metrics": dict(record.metrics),
    }
    if side is None:
        return entry
    final = {
        "mean": side.mean,
        "posterior_mean": architecture.posterior,
        "interval": None if math.isnan(side.low) else [side.low, side.high],
        "scores": list(architecture.scores),
        "test_scores": list(architecture.tests),
        "num_choice": architecture.num_choice,
        "errors": list(architecture.errors),
    }
    return entry | {"final": final}


def load_line(candidate: Any, path: Path, *, rank: int, task: GFNTask, has_weights: bool) -> str:
    """Return the Python that loads a rank of a file with entries: its module, or the candidate where none is known."""
    kind = type(candidate)
    entry = f'json.loads(pathlib.Path("{path}").read_text())[{rank}]'
    graph = f'graph = {kind.__qualname__}.from_dict({entry}["graph"])'
    line = task.load_line(candidate, path, has_weights=has_weights, rank=rank)
    return line or f"import json, pathlib; from {kind.__module__} import {kind.__qualname__}; {graph}"


def _write_weights(
    folder: Path, name: str, architecture: TopArchitecture, write: Callable[[Path, bytes | str], None]
) -> dict[str, Any]:
    """Write the weights as safetensors and return the entry with their file; empty without weights on disk."""
    if architecture.weights is None:
        return {}
    content = saved_weights(architecture.weights)
    write(folder / name, content)
    return {"weights": {"file": name, "sha256": sha256(content).hexdigest()}} if (folder / name).exists() else {}


def complaints(finalists: Sequence[Finalist]) -> Iterator[str]:
    """Yield a line for the first missing test score, and one for the first architecture with failed trainings."""
    untested = [each for each in finalists if each.test_error]
    if untested:
        remaining = f" (and of {len(untested) - 1} more)" if len(untested) > 1 else ""
        yield f"no test score of rank {untested[0].rank}: {untested[0].test_error}{remaining}"
    failed = [each for each in finalists if each.errors]
    if failed:
        first = failed[0]
        remaining = f" (and some of {counted(len(failed) - 1, 'more rank')})" if len(failed) > 1 else ""
        num = len(first.final.scores) if first.final else 0
        counts = f"{len(first.errors)} of {counted(num, 'training')} on new seeds failed"
        yield f"rank {first.rank}: {counts}: {first.errors[0]}{remaining}"


@dataclass(frozen=True)
class Leader:
    """A row of the tables of logs: one of the best architectures, or another candidate of the search."""

    finalist: Finalist
    drawing: str | None  # SVG; None for candidates that are no networks
    origin: str  # of its proposal
    seconds: float  # of its training in the search
