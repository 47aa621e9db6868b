"""Closing report of a run: the files of its best architectures, and its results as lines and tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gflownet.errors import counted, printable
from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.final import FinalStage, TopArchitecture
from gflownet.evaluation.presentation import words_of
from gflownet.evaluation.statistics import hypervolume, non_dominated
from gflownet.evaluation.store.evaluations import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import write_whole
from gflownet.graphs.assignment import Assignment, values_of
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import (
    PICTURES_NAME,
    TOP_NAME,
    as_json,
    complaints,
    described_in_words,
    with_translation,
    write_top_architectures,
)
from gflownet.report.references import compare_references
from gflownet.report.results import Comparison, Finalist, FinalResults, Front, Results, SearchResults, Side
from gflownet.report.verdict import (
    HYPERVOLUME,
    NO_BREAK,
    PLUS_MINUS,
    comparison_rows,
    full_name,
    random_note,
    sampler_lines,
    side_words,
    spent_line,
    summary_of,
)
from gflownet.terminal.console import print_line

FRONT_NAME = "pareto_front.json"


def write_pareto_front(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    write: Callable[[Path, bytes | str], None] = write_whole,
) -> Front:
    """Write the front as data for gflownet.load, and return it."""
    objectives = task.chosen_objectives
    utilities = np.array([utilities_of(record, task=task) for record in records])
    is_on_front = non_dominated(utilities)
    # Best in the first objective first, ties by the next objective.
    order = [i for i in np.lexsort(-utilities.T[::-1]) if is_on_front[i]]
    graphs = [json.loads(records[i].graph) for i in order]
    candidates = [Assignment.from_dict(graph) if values_of(graph) else None for graph in graphs]
    entries = [
        {
            "rank": rank,
            "run": records[i].run,
            "utilities": dict(zip(objectives, utilities[i].tolist(), strict=True)),
            "validation_score": records[i].score,
            "num_parameters": records[i].num_parameters,
            "metrics": dict(records[i].metrics),
            **({} if candidate is None else described_in_words(candidate, task, settings)),
            "graph": with_translation(graph, task),
        }
        for rank, (i, graph, candidate, settings) in enumerate(
            zip(order, graphs, candidates, task.settings(candidates), strict=True)
        )
    ]
    write(folder / FRONT_NAME, as_json(entries))
    values = tuple(tuple(records[i].metrics[name] for name in objectives) for i in order)
    directions = tuple(task.directions()[name] for name in objectives)
    return Front(tuple(objectives), directions, values, hypervolume(utilities[is_on_front]), len(records))


NUM_WRITTEN = 3  # programs or choices printed, of the first ranks
NUM_FAILURE_KINDS = 5  # kinds of failed evaluations printed


def write_final(
    folder: Path,
    top: Sequence[TopArchitecture],
    *,
    task: GFNTask,
    terminal_type: Any,
    final: FinalStage | None = None,
    evaluated: Sequence[EvaluationRecord] = (),
    write: Callable[[Path, bytes | str], None] = write_whole,
) -> FinalResults:
    """Write the best architectures, the best random ones and the Pareto front, and return their figures.

    `top` are best first, and `final` is the stage that has measured them; `evaluated` are all successful evaluations.
    """
    files: dict[str, Any] = {"task": task, "from_dict": terminal_type.from_dict, "write": write}
    finalists = write_top_architectures(folder, top, **files, sizes=None if final is None else final.sizes)
    comparisons, random = ((), ()) if final is None else compare_references(folder, final, finalists, **files)
    has_front = bool(task.chosen_objectives and evaluated)
    results = FinalResults(
        finalists,
        random,
        comparisons,
        write_pareto_front(folder, evaluated, task=task, write=write) if has_front else None,
        steps=tuple(_next_lines(folder, top, task, terminal_type)),
        has_limits=bool(task.limits),
    )
    if final is None:
        return results
    length = "" if final.fidelity is None else counted(final.fidelity, task.fidelity_unit.removesuffix("s"))
    return replace(
        results,
        has_trainings=True,
        cost=final.sizes.metric if final.sizes else "",
        length=length,
        correlation=final.correlation,
        is_stopped=final.is_stopped,
        is_complete=final.is_complete,
        notes=final.notes,
    )


def print_results(results: Results, folder: Path, console: Console) -> None:
    """Print the comparisons, the best architectures, how to use them, the Pareto front and the sampler of a run."""
    report_line, final = partial(print_line, console), results.final or FinalResults()
    if final.comparisons:
        print_comparisons(final.comparisons, console, metric=results.metric)
    for line in (_mean_line(results.search), *complaints(final.finalists)):
        report_line(line)
    if final.finalists:
        references = [each.reference for each in final.comparisons if each.reference.measure != HYPERVOLUME]
        print_best([*final.finalists, *map(_row_of, references)], console)
    elif final.has_limits and final.num_successful:
        report_line(f"no architecture is within evaluation.constraints, {final.num_successful} could be evaluated")
    else:
        report_line("no architecture could be evaluated")
    for line in [*_captions(final, name=results.score), *final.notes, *final.steps]:
        report_line(line)
    if (front := final.front) is not None:
        names = [f"{name} ({direction})" for name, direction in zip(front.objectives, front.directions, strict=True)]
        print_front(names, front.values, console=console)
        volume = f"hypervolume {front.hypervolume:.4f}: {folder / FRONT_NAME}"
        report_line(f"{len(front.values)} of {front.num_evaluated} are on the front, {volume}")
    lines = [spent_line(final.spent), f"everything about this run: {folder}", _failure_line(final.failures)]
    if (search := results.search) is not None:
        lines += [search.start, *(each.line for each in search.taken_over), search.end]
    lines += sampler_lines(results.sampler) if results.sampler else []
    for line in filter(None, lines):
        report_line(line)


def _next_lines(folder: Path, top: Sequence[TopArchitecture], task: GFNTask, terminal_type: Any) -> Iterator[str]:
    """Yield pictures, the line that loads the best, weights, and the first programs or choices."""
    best = [terminal_type.from_dict(json.loads(each.record.graph)) for each in top[:NUM_WRITTEN]]
    if not best:
        return
    is_drawn = terminal_type is ComputationGraph
    if is_drawn:
        yield f"pictures: {folder / PICTURES_NAME}"
    if load_line := task.load_line(best[0], folder / TOP_NAME, has_weights=top[0].weights is not None):
        yield "Load one as an nn.Module in Python:"
        yield f"  {load_line}"
    if next_step := task.next_step(best[0], folder):
        yield next_step
    if not is_drawn and any(architecture.weights is not None for architecture in top):
        yield f"weights: {folder / PICTURES_NAME}"
    programs = [json.loads(each.record.graph)["graph"].get("program") for each in top[:NUM_WRITTEN] if not is_drawn]
    is_named = bool(words_of(task, best[0])) or task.network(best[0]) is not None
    written = [*programs, *([] if is_named else task.settings(best))]
    yield from (f"rank {place % len(best)}: {text}" for place, text in enumerate(written) if text)


def _failure_line(failures: Mapping[str, int]) -> str:
    if not failures:
        return ""
    kinds = [f"{times} x {kind}" for kind, times in Counter(failures).most_common(NUM_FAILURE_KINDS)]
    if len(failures) > len(kinds):
        kinds.append(counted(len(failures) - len(kinds), "more kind"))
    return f"failed evaluations: {sum(failures.values())} ({'; '.join(kinds)})"


def _mean_line(search: SearchResults | None) -> str:
    if search is None or not search.num_steps:
        return "mean score of sampled architectures: none, no step is complete"
    tenth = max(1, search.num_steps // 10)
    start, end = ("first step", "last") if tenth == 1 else (f"first {tenth} steps", f"last {tenth}")
    means = f"{search.first_mean:.3f} in the {start}, {search.last_mean:.3f} in the {end}"
    return f"mean score of sampled architectures: {means}"


def _captions(final: FinalResults, *, name: str) -> Iterator[str]:
    """Yield the meaning of the figures in the table: scores with a name."""
    if not final.has_trainings or not final.finalists:
        return
    numbers = sorted({len(each.final.scores) for each in final.finalists if each.final is not None})
    if not numbers:
        yield "no architecture was trained on a new seed: the scores are those of the search, too high for the best"
        return
    length = f" of {final.length}" if final.length else ""
    number = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    seeds = counted(1, "new seed") if numbers == [1] else f"{number} new seeds"
    search_score = f"{final.finalists[0].score:.4f}"
    metric = "" if name in ("score", "accuracy") else f"{name}, "
    tests = ", test" if any(each.test_score is not None for each in final.finalists) else ""
    yield f"validation{tests}: {metric}means of trainings{length} on {seeds} (rank 0 in the search: {search_score})"
    yield "ranks: by the posterior mean of the search and the first new seeds; later seeds measure the winners"
    if numbers != [1]:
        num = len(final.finalists)
        ranks = f" that hold for all {num} ranks at once, so also for the best" if num > 1 else ""
        yield f"±: 95 % intervals{ranks}; a reference has its own"
    if final.correlation is not None:
        yield f"rank correlation of the finalists in the search and in these trainings: {final.correlation:.2f}"
    if not final.is_complete:
        yield "the final stage was interrupted: ranked by the trainings so far"
    elif final.is_stopped:
        yield "the final stage was interrupted: no references"


# Maximum number of rows of a front's table, and of characters of choices.
_MAX_FRONT_ROWS, _MAX_WORDS = 20, 120


def print_comparisons(comparisons: Sequence[Comparison], console: Console, *, metric: str = "") -> None:
    """Print all verdicts in a sentence, and a row for each."""
    header, rows = comparison_rows(comparisons, metric=metric)
    if rows:
        words = summary_of(comparisons, metric=metric)
        print_line(console, f"{words[:1].upper()}{words[1:]}.")
        table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
        cells = list[list[str]]()
        for name, *figures, verdict in ([printable(cell) for cell in row] for row in rows):
            whole = [
                figure.replace(f" {PLUS_MINUS}", f"{NO_BREAK}{PLUS_MINUS}").replace(", ", f",{NO_BREAK}")
                for figure in figures
            ]
            cells.append([name, *whole, verdict.replace(" ", NO_BREAK).replace(f"{NO_BREAK}(", " (")])
        columns = list(zip(header, *cells, strict=True))
        longest = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
        spare = console.width - sum(longest) - len(columns) - 1
        for column, width in zip(columns, longest, strict=True):  # no word is cut where all fit
            extra = max(0, min(spare, max(-(-len(column[0]) // 2), *map(len, column[1:])) - width))
            table.add_column(column[0], width=width + extra)
            spare -= extra
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
    if note := random_note(comparisons):
        print_line(console, note)


def _row_of(side: Side) -> Finalist:
    """Return the row of a reference."""
    further: dict[str, Any] = {"num_parameters": side.num_parameters, "test_score": side.test_score}
    return Finalist(None, side.mean, final=side, words=full_name(side), **further)


def print_best(rows: Sequence[Finalist], console: Console) -> None:
    """Print the table of the best architectures, then references."""
    table = Table(title="best architectures", title_justify="left", box=box.SIMPLE_HEAD)
    has_test = any(each.test_score is not None for each in rows)
    has_size = any(each.num_parameters is not None for each in rows)
    for header in ("rank", "validation", *["test"] * has_test, *["parameters"] * has_size):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("architecture", overflow="fold")
    for each, following in zip_longest(rows, rows[1:]):
        score = f"{each.score:.4f}" if each.final is None else side_words(each.final)
        test = "-" if each.test_score is None else f"{each.test_score:.4f}"
        shown = each.shown or each.picture or "-"
        if len(shown) > _MAX_WORDS:
            start = shown[: _MAX_WORDS - 1]
            shown = f"{start.rpartition(', ')[0] or start}, …"
        is_last_rank = each.rank is not None and following is not None and following.rank is None
        cells = [_count(each.rank), score, *[test] * has_test, *[_count(each.num_parameters)] * has_size]
        table.add_row(*cells, Text(printable(shown)), end_section=is_last_rank)
    console.print(table)


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def print_front(objectives: Sequence[str], values: Sequence[Sequence[float]], *, console: Console) -> None:
    """Print the table of a Pareto front, at most `_MAX_FRONT_ROWS` evenly spaced rows."""
    num_rows = min(len(values), _MAX_FRONT_ROWS)
    ranks = [round(i * (len(values) - 1) / max(num_rows - 1, 1)) for i in range(num_rows)]
    title = "Pareto front" if num_rows == len(values) else f"Pareto front, {num_rows} of {len(values)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("rank", *map(printable, objectives)):
        table.add_column(Text(header), justify="right", no_wrap=True)
    for rank in ranks:
        cells = (f"{v:,.0f}" if v.is_integer() and abs(v) < 1e15 else f"{v:.4g}" for v in values[rank])
        table.add_row(str(rank), *cells)
    console.print(table)
