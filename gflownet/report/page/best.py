"""The best architectures of a run: drawings, scores, and the line that loads each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.evaluation.racing import rank_correlation
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.graphs.assignment import as_yaml, differing, values_of, words_of
from gflownet.pictures.chart import NONE, Table, number_text
from gflownet.records.status import RunState
from gflownet.report.page.drawings import Drawing, drawing_of
from gflownet.report.page.run_data import RunData, figure_of, mapping_of, number_of

NUM_SHOWN = 10
_MAX_COLUMNS = 4  # of the table, so that a phone shows it
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
_ASSIGNMENT = "from gflownet.graphs.assignment import Assignment as Graph"
_COLOURED = "from gflownet.graphs.canonical import ColouredGraph as Graph"
_PROGRAM = "from gflownet.envs.tensor_program import TensorProgram as Graph"


@dataclass(frozen=True)
class Ranked:
    """One architecture of the page."""

    key: str  # id of its card
    title: str
    facts: Sequence[tuple[str, str]]
    drawing: Drawing
    network: Drawing | None = None  # the whole network around a cell
    load: str = ""  # Python lines; empty if there is nothing to load yet
    load_note: str = ""
    choices: str = ""  # YAML; empty for other objects than choices


def table_of(ranked: Sequence[Ranked]) -> Table:
    """Return the first facts of architectures and their choices, a row each."""
    texts = [dict(each.facts[:_MAX_COLUMNS]) | ({"choices": each.choices} if each.choices else {}) for each in ranked]
    header = dict.fromkeys(name for each in texts for name in each)
    titles = [each.title.partition(" ") for each in ranked]
    rows = [
        [title, *(text.get(name, NONE) for name in header)] for (*_, title), text in zip(titles, texts, strict=True)
    ]
    return Table((titles[0][0].lower() if titles else "", *header), rows)


@dataclass(frozen=True)
class BestSection:
    """The best architectures, best first."""

    ranked: Sequence[Ranked]
    table: Table
    source: str  # where the scores come from


def best_section(run: RunData) -> BestSection | None:
    """Return the best architectures from top_architectures.json, or from the evaluations before the end."""
    if run.top:
        top = run.top[:NUM_SHOWN]
        graphs = _differing_first([mapping_of(entry.get("graph")) for entry in top])
        ranked = []
        for rank, (entry, graph) in enumerate(zip(top, graphs, strict=True)):
            number = entry["rank"] if isinstance(entry.get("rank"), int) else rank
            load = _load_lines(run, entry, rank=number)
            ranked.append(_ranked(entry, rank, graph, run=run, start=f"Rank {number}", load=load))
        return BestSection(ranked, table_of(ranked), _source(run.top) + _correlation_words(run))
    records = best_records(run)[:NUM_SHOWN]
    if not records:
        return None
    graphs = _differing_first([json.loads(record.graph) for record in records])
    note = "A line that loads it with its weights appears here after the final stage."
    ranked = []
    for rank, (record, graph) in enumerate(zip(records, graphs, strict=True)):
        entry = {"validation_score": record.score, "num_parameters": record.num_parameters, "words": words_of(graph)}
        entry |= {"metrics": record.metrics, "step": record.step}
        ranked.append(_ranked(entry, rank, graph, run=run, start=f"Rank {rank} so far", load=("", note)))
    is_over = run.status is not None and run.status.state is not RunState.RUNNING
    when = "The run ended before its final stage" if is_over else "The final stage comes at the end of the run"
    source = (
        f"{when}: these are the best evaluations of the search so far, one training each. The best of noisy scores "
        "is too high on average."
    )
    return BestSection(ranked, table_of(ranked), source)


def best_records(run: RunData) -> list[EvaluationRecord]:
    """Return the successful evaluations within evaluation.constraints, best first, the older first of equal ones."""
    return sorted(run.feasible, key=lambda record: -record.score)


def _source(top: Sequence[Mapping[str, Any]]) -> str:
    scores = [mapping_of(entry.get("final")).get("scores") for entry in top]
    num_seeds = max((len(each) for each in scores if isinstance(each, list)), default=0)
    if not num_seeds:
        return "Scores of the search, one training each: the best of noisy scores is too high on average."
    if num_seeds == 1:
        return "Scores are those of one new training on a new seed. Test data had no part in the search."
    return (
        f"Scores are means of up to {num_seeds} trainings on new seeds, with 95 % intervals that hold for all ranks "
        "at once, so also for the best. Scores in the search are too high on average: the best were chosen by them. "
        "Test data had no part in the search."
    )


def _correlation_words(run: RunData) -> str:
    """Return the rank correlation of the finalists in search and final stage, where these may train differently."""
    finals = [(entry.get("validation_score"), mapping_of(entry.get("final"))) for entry in run.top]
    scores = [(figure_of(score), figure_of(final.get("mean"))) for score, final in finals if not final.get("errors")]
    pairs = [pair for pair in scores if all(map(math.isfinite, pair))]
    correlation = rank_correlation(pairs) if run.option("final.epochs") is not None else math.nan
    if math.isnan(correlation):
        return ""
    return (
        f" With final.epochs={run.option('final.epochs')}, the rank correlation of the finalists in the search and on "
        f"new seeds is {number_text(correlation, 2)}."
    )


def _differing_first(graphs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return node-link data with the choices in which architectures differ before the others."""
    order = differing([values_of(graph) for graph in graphs])
    places = {name: position for position, name in enumerate(order)}
    return [
        {**graph, "nodes": sorted(graph["nodes"], key=lambda node: places.get(str(node["name"]), len(places)))}
        if values_of(graph)
        else graph
        for graph in graphs
    ]


def _ranked(
    entry: Mapping[str, Any], rank: int, graph: Mapping[str, Any], *, run: RunData, start: str, load: tuple[str, str]
) -> Ranked:
    """Return the card of an entry of top_architectures.json, or of an evaluation in the same form."""
    network, words, values = mapping_of(entry.get("network")), entry.get("words"), values_of(graph)
    drawing = drawing_of(graph, num_parameters=entry.get("num_parameters"))
    return Ranked(
        key=f"rank-{rank}",
        title=start + (f": {words}" if isinstance(words, str) and words else ""),
        facts=list(_facts(entry, run.score_name)),
        drawing=drawing,
        network=drawing_of(network) if network else None,
        load=load[0],
        load_note=load[1],
        choices=as_yaml(values) if values and drawing.svg is None and not words else "",
    )


def score_words(value: object, interval: object) -> str:
    """Return a score with half the width of its interval: 0.9347 ± 0.0302."""
    match value, interval:
        case (int() | float(), [int() | float() as low, int() | float() as high]):
            half, text = (high - low) / 2, _score(value)
            has_decimals = text == f"{value:.4f}" and f"{half:.4f}" != "0.0000"
            return f"{text} {PLUS_MINUS} {f'{half:.4f}' if has_decimals else number_text(half)}"
        case (int() | float(), _):
            return _score(value)
    return number_text(None)


def _score(value: float) -> str:
    """Return a score with four decimals, or four digits where it is far from 1."""
    return f"{value:.4f}" if abs(value) < 10 and round(value, 2) else number_text(float(value))


def _facts(entry: Mapping[str, Any], score: str) -> Iterator[tuple[str, str]]:
    final = mapping_of(entry.get("final"))
    if _is_number(final.get("mean")):
        yield f"{score}, new seeds", score_words(final["mean"], final.get("interval"))
    yield f"{score} in the search", score_words(entry.get("validation_score"), None)
    if _is_number(entry.get("test_score")):
        yield f"test {score}", score_words(entry["test_score"], None)
    if _is_number(entry.get("num_parameters")):
        yield "parameters", f"{entry['num_parameters']:,}"
    if _is_number(entry.get("step")):
        yield "found in step", f"{entry['step']:,}"
    metrics = mapping_of(entry.get("metrics"))
    shown = {"parameters"} | {name for name in metrics if metrics[name] == entry.get("validation_score")}
    for name in [name for name in metrics if name not in shown][:3]:
        if _is_number(metrics[name]):
            yield name.replace("_", " "), number_text(float(metrics[name]))


def _load_lines(run: RunData, entry: Mapping[str, Any], *, rank: int) -> tuple[str, str]:
    """Return the Python lines that load an architecture, and a note."""
    path = str(run.folder / "top_architectures.json")
    graph = mapping_of(entry.get("network")) or mapping_of(entry.get("graph"))
    nodes = graph.get("nodes")
    first = mapping_of(nodes[0]) if isinstance(nodes, list) and nodes else {}
    if "node_type" in first or "module" in entry:
        has_weights = bool(mapping_of(entry.get("weights")))
        end = "" if has_weights else ", weights=False"
        note = "With its trained weights." if has_weights else "A new, untrained model: no weights were saved."
        return f"import gflownet\nmodel = gflownet.load({path!r}, rank={rank}{end})", note
    kind = _ASSIGNMENT if "name" in first else _COLOURED
    if mapping_of(graph.get("graph")).get("program") is not None:
        kind = _PROGRAM
    lines = f"import json, pathlib\n{kind}\nentries = json.loads(pathlib.Path({path!r}).read_text())\n"
    weights = mapping_of(entry.get("weights")).get("file")
    note = f"Trained weights: {run.folder / str(weights)} (safetensors)." if weights else ""
    entry_code = f"next(entry['graph'] for entry in entries if entry['rank'] == {rank})"
    return f"{lines}graph = Graph.from_dict({entry_code})", note


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and number_of(value) is not None
