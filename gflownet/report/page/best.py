"""The best architectures of a run: drawings, scores, and the line that loads each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.graphs.assignment import as_yaml, differing, values_of, words_of
from gflownet.pictures.chart import NONE, Table, number_text
from gflownet.records.status import RunState
from gflownet.report.page.drawings import Drawing, drawing_of
from gflownet.report.page.run_data import RunData, mapping_of
from gflownet.report.results import Finalist, FinalResults, Results
from gflownet.report.verdict import score_text, side_words

NUM_SHOWN = 10
_MAX_COLUMNS = 4  # of the table, so that a phone shows it


@dataclass(frozen=True)
class Ranked:
    """One architecture of the page."""

    key: str  # id of its card
    title: str
    facts: Sequence[tuple[str, str]]
    drawing: Drawing
    network: Drawing | None = None  # the whole network around a cell
    load: str = ""  # Python lines; empty if there is nothing to load yet
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
    if finalists := run.results.finalists[:NUM_SHOWN]:
        entries = {rank: entry for entry in run.top if isinstance(rank := entry.get("rank"), int)}
        top = [entries.get(each.rank or 0, {}) for each in finalists]
        graphs = _differing_first([mapping_of(entry.get("graph")) for entry in top])
        ranked = [
            _ranked(each, entry, graph, run=run, start="Rank {}")
            for each, entry, graph in zip(finalists, top, graphs, strict=True)
        ]
        return BestSection(ranked, table_of(ranked), _source(run.results))
    records = best_records(run)[:NUM_SHOWN]
    if not records:
        return None
    graphs = _differing_first([json.loads(record.graph) for record in records])
    ranked = []
    for rank, (record, graph) in enumerate(zip(records, graphs, strict=True)):
        words = words_of(graph) or ""
        finalist = Finalist(rank, record.score, record.num_parameters, record.metrics, words=words)
        ranked.append(_ranked(finalist, {"step": record.step}, graph, run=run, start="Rank {} so far"))
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


def _source(results: Results) -> str:
    final = results.final or FinalResults()
    num_seeds = max((len(each.final.scores) for each in final.finalists if each.final is not None), default=0)
    if not num_seeds:
        return "Scores of the search, one training each: the best of noisy scores is too high on average."
    if num_seeds == 1:
        return "Scores are those of one new training on a new seed. Test data had no part in the search."
    correlation = ""
    if final.correlation is not None:
        correlation = f" Rank correlation of their scores in the search and on new seeds: {final.correlation:.2f}."
    return (
        f"Scores are means of up to {num_seeds} trainings on new seeds, with 95 % intervals that hold for all ranks "
        "at once, so also for the best. Scores in the search are too high on average: the best were chosen by them. "
        f"Test data had no part in the search.{correlation}"
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
    finalist: Finalist, entry: Mapping[str, Any], graph: Mapping[str, Any], *, run: RunData, start: str
) -> Ranked:
    """Return the card of an architecture with its entry of top_architectures.json."""
    network, values = mapping_of(entry.get("network")), values_of(graph)
    words = finalist.words
    drawing = drawing_of(graph, num_parameters=finalist.num_parameters)
    return Ranked(
        key=f"rank-{finalist.rank}",
        title=start.format(finalist.rank) + (f": {words}" if words else ""),
        facts=list(_facts(finalist, entry, run.score_name, run.results.metric)),
        drawing=drawing,
        network=drawing_of(network) if network else None,
        load=finalist.load,
        choices=as_yaml(values) if values and drawing.svg is None and not words else "",
    )


def _facts(each: Finalist, entry: Mapping[str, Any], score: str, metric: str) -> Iterator[tuple[str, str]]:
    if each.final is not None:
        yield f"{score}, new seeds", side_words(each.final)
    yield f"{score} in the search", score_text(each.score)
    if each.final is not None and metric:
        yield f"{metric}, new seeds", number_text(each.final.metric)
    if each.test_score is not None:
        yield f"test {score}", score_text(each.test_score)
    if each.num_parameters is not None:
        yield "parameters", f"{each.num_parameters:,}"
    if "step" in entry:
        yield "found in step", f"{entry['step']:,}"
    shown = {"parameters"} | {name for name, value in each.metrics.items() if value == each.score}
    for name in [name for name in each.metrics if name not in shown][:3]:
        yield name.replace("_", " "), number_text(each.metrics[name])
