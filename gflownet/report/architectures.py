"""The best architectures of a run: top_architectures.json, drawings, weights, rows of the closing table and of logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.execution import saved_weights
from gflownet.evaluation.final import Sizes, TopArchitecture
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import parse_json, read_entries, sealed, write_whole
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.drawing import to_svg
from gflownet.metrics.statistics import Interval, simultaneous_intervals
from gflownet.report.verdict import full_name

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
) -> list[dict[str, Any]]:
    """Write the best architectures with scores, drawings and trained weights, and return the entries of the file."""
    entries = entries_of(
        folder, top, final_intervals(top, sizes), prefix="rank", task=task, from_dict=from_dict, write=write
    )
    for rank, architecture in enumerate(top):
        if (network := task.network(from_dict(json.loads(architecture.record.graph)))) is not None:
            write(folder / PICTURES_NAME / f"rank_{rank}.svg", to_svg(network))
    write(folder / TOP_NAME, as_json(entries))
    return entries


def entries_of(
    folder: Path,
    architectures: Sequence[TopArchitecture],
    intervals: Sequence[Interval | None],
    *,
    prefix: str,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    write: Callable[[Path, bytes | str], None],
) -> list[dict[str, Any]]:
    """Write the weights of architectures, PREFIX_RANK.safetensors, and return their entries."""
    graphs = [from_dict(json.loads(architecture.record.graph)) for architecture in architectures]
    rows = zip(architectures, intervals, graphs, task.settings(graphs), strict=True)
    return [
        _entry(rank, architecture, interval)
        | described_in_words(graph, task, settings)
        | _write_weights(folder, f"{PICTURES_NAME}/{prefix}_{rank}.safetensors", architecture, write)
        | _graphs(graph, task.network(graph), task)
        for rank, (architecture, interval, graph, settings) in enumerate(rows)
    ]


def described_in_words(graph: Any, task: GFNTask, settings: str) -> dict[str, Any]:
    """Return the words, the choices as YAML and the description of a candidate, for its entry."""
    named = {"words": task.words(graph), "choices": settings}
    return {**{name: text for name, text in named.items() if text}, **task.description(graph)}


def _graphs(candidate: Any, network: ComputationGraph | None, task: GFNTask) -> dict[str, Any]:
    """Return the entries of a candidate and, where it is another object, of its network."""
    entry = {"graph": with_translation(candidate.to_dict(), task)}
    if network is None or network is candidate:
        return entry
    return entry | {"network": with_translation(network.to_dict(), task)}


def final_intervals(top: Sequence[TopArchitecture], sizes: Sizes | None = None) -> list[Interval | None]:
    """Return the intervals of the mean scores on new seeds, valid all at once; None with no such score or a failed one.

    Rank 0 has the largest of several means, so an interval for one mean alone is too narrow: of 10 architectures of
    digits with 5 seeds each, it covered the mean of 10 further seeds in 77 to 82 % of 4,000 resampled runs, and these
    intervals did in 95 to 97 % (docs/final-stage.md). The variance is that of each range of sizes: small networks vary
    more.
    """
    complete = [bool(architecture.scores) and not architecture.errors for architecture in top]
    repeated = [architecture for architecture, is_complete in zip(top, complete, strict=True) if is_complete]
    groups = sizes.groups(repeated) if sizes else ()
    intervals = iter(simultaneous_intervals([each.scores for each in repeated], groups) if repeated else [])
    return [next(intervals) if is_complete else None for is_complete in complete]


def with_translation(data: dict[str, Any], task: GFNTask) -> dict[str, Any]:
    """Return node-link data of a computation graph with the translation settings of the task, other data unchanged."""
    if not all("node_type" in node for node in data["nodes"]):
        return data
    return data | {"graph": {**data.get("graph", {}), "translation": dict(task.translation_settings)}}


def as_json(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON text of the entries, each with a checksum."""
    return json.dumps([sealed(entry) for entry in entries], indent=1) + "\n"


def bounds_of(interval: Interval | None) -> list[float] | None:
    """Return the ends of an interval, None without one."""
    return None if interval is None or math.isnan(interval.low) else [interval.low, interval.high]


def _entry(rank: int, architecture: TopArchitecture, interval: Interval | None) -> dict[str, Any]:
    record = architecture.record
    entry = {
        "rank": rank,
        "run": record.run,
        "validation_score": record.score,
        "test_score": architecture.test,
        "num_parameters": record.num_parameters,
        "metrics": dict(record.metrics),
    }
    if not architecture.scores:
        return entry
    final = {
        "mean": architecture.mean,
        "posterior_mean": architecture.posterior,
        "interval": bounds_of(interval),
        "scores": list(architecture.scores),
        "test_scores": list(architecture.tests),
        "errors": list(architecture.errors),
    }
    return entry | {"final": final}


def _write_weights(
    folder: Path, name: str, architecture: TopArchitecture, write: Callable[[Path, bytes | str], None]
) -> dict[str, Any]:
    """Write the weights as safetensors and return the entry with their file; empty without weights on disk."""
    if architecture.weights is None:
        return {}
    content = saved_weights(architecture.weights)
    write(folder / name, content)
    return {"weights": {"file": name, "sha256": sha256(content).hexdigest()}} if (folder / name).exists() else {}


def complaints(top: Sequence[TopArchitecture]) -> Iterator[str]:
    """Yield a line for the first missing test score, and one for the first architecture with failed trainings."""
    untested = [(rank, each.test_error) for rank, each in enumerate(top) if each.test_error is not None]
    if untested:
        remaining = f" (and of {len(untested) - 1} more)" if len(untested) > 1 else ""
        yield f"no test score of rank {untested[0][0]}: {untested[0][1]}{remaining}"
    failed = [(rank, each) for rank, each in enumerate(top) if each.errors]
    if failed:
        rank, first = failed[0]
        remaining = f" (and some of {counted(len(failed) - 1, 'more rank')})" if len(failed) > 1 else ""
        counts = f"{len(first.errors)} of {counted(len(first.scores), 'training')} on new seeds failed"
        yield f"rank {rank}: {counts}: {first.errors[0]}{remaining}"


@dataclass(frozen=True)
class Leader:
    """One of the best architectures, or a reference: a row of the closing table and of logs."""

    rank: int | None  # None: not among the best
    score: float  # validation: mean of the new seeds at the end, of the search before
    num_parameters: int | None
    search_score: float | None = None  # of the search, at the end
    origin: str = ""  # of its proposal
    seconds: float | None = None  # of its training in the search
    low: float | None = None  # interval of the mean
    high: float | None = None
    test_score: float | None = None
    drawing: str | None = None  # SVG; None for candidates that are no networks
    words: str = ""  # of the task, or choices as YAML; empty for others
    load: str = ""  # a line of Python; empty before the end, and for other objects than graphs
    num_hidden: int | None = None  # nodes of a drawn candidate, at the end
    num_edges: int | None = None

    @property
    def interval(self) -> str:
        """Return the interval as text, empty without one."""
        return "" if self.low is None or self.high is None else f"[{self.low:.4g}, {self.high:.4g}]"


def current_leaders(
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    from_dict: Callable[[dict[str, Any]], Any],
    origins: Mapping[str, str],
) -> list[Leader]:
    """Return the rows of evaluations, best first.

    `origins` are those of proposals, by canonical hash.
    """
    leaders = []
    candidates = [from_dict(parse_json(record.graph)) for record in records]
    rows = zip(records, candidates, task.settings(candidates), strict=True)
    for rank, (record, candidate, settings) in enumerate(rows):
        network = task.network(candidate)
        drawing = None if network is None else to_svg(network)
        words = task.words(candidate) or ("" if drawing else settings)
        searched = record.score, origins.get(record.hash, ""), record.seconds
        leaders.append(Leader(rank, record.score, record.num_parameters, *searched, drawing=drawing, words=words))
    return leaders


def final_leaders(folder: Path) -> list[Leader]:
    """Return the rows of top_architectures.json in a run folder; none without that file."""
    path = folder / TOP_NAME
    return [leader_of(entry, path) for entry in read_entries(path)[0]] if path.exists() else []


def leader_of(entry: Mapping[str, Any], path: Path) -> Leader:
    """Return the row of an entry of the file at a path, or of references.json."""
    rank, final = entry.get("rank"), entry.get("final") or {}
    low, high = final.get("interval") or entry.get("interval") or (None, None)
    if rank is None:
        figures = {"low": low, "high": high, "test_score": entry["test_score"]}
        words = full_name(entry["name"], entry.get("measure", ""))
        return Leader(None, entry["mean"], entry["num_parameters"], words=words, load=entry["load"], **figures)
    picture = path.parent / PICTURES_NAME / f"rank_{rank}.svg"
    is_loadable = "module" in entry or (picture.exists() and "network" not in entry)
    arguments = f"rank={rank}" if "weights" in entry else f"rank={rank}, weights=False"
    words, data = entry.get("words", ""), entry.get("network") or entry["graph"]
    words = words or ("" if picture.exists() else entry.get("choices", ""))
    hidden = [n for n in data["nodes"] if n.get("node_type", NodeType.HIDDEN.value) == NodeType.HIDDEN.value]
    return Leader(
        rank=rank,
        score=final.get("mean", entry["validation_score"]),
        num_parameters=entry["num_parameters"],
        low=low,
        high=high,
        test_score=entry["test_score"],
        drawing=picture.read_text(encoding="utf-8") if picture.exists() else None,
        words=words,
        load=f'gflownet.load("{path}", {arguments})' if is_loadable else "",
        num_hidden=None if words else len(hidden),
        num_edges=None if words else len(data["edges"]),
    )
