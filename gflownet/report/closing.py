"""Closing report of a run: change of the mean score, best architectures, Pareto front, failed evaluations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gflownet.cli.console import ReportRow, print_front, print_line, print_report
from gflownet.errors import UserError, counted
from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.final import FinalStage, TopArchitecture
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask, Reference
from gflownet.files import write_whole
from gflownet.graphs.assignment import Assignment, values_of
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.metrics.statistics import hypervolume, non_dominated
from gflownet.pictures.chart import svg_of
from gflownet.pictures.line_charts import Highlight, scatter_chart
from gflownet.report.architectures import (
    PICTURES_NAME,
    TOP_NAME,
    as_json,
    described_in_words,
    with_translation,
    write_top_architectures,
)
from gflownet.report.references import reference_rows, references_of, verdict_lines
from gflownet.report.verdict import spent_line

FRONT_NAME = "pareto_front.json"
FRONT_PICTURE_NAME = "pareto_front.svg"


@dataclass(frozen=True)
class ParetoFront:
    """The evaluations that no other evaluation dominates, best in the first objective first."""

    objectives: tuple[str, ...]
    values: Sequence[Sequence[float]]  # [N, K] measured objectives
    hypervolume: float  # of the utilities, above the origin
    num_evaluated: int


def write_pareto_front(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    write: Callable[[Path, bytes | str], None] = write_whole,
) -> ParetoFront:
    """Write the front as data for gflownet.load and as a picture, and return it.

    Args:
        folder: run folder.
        records: all successful evaluations, at least one.
        task: has the objectives.
        write: writes a file.
    """
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
    values = np.array([[record.metrics[name] for name in objectives] for record in records])
    write(folder / FRONT_PICTURE_NAME, _drawn(objectives, values, order))
    return ParetoFront(objectives, values[order].tolist(), hypervolume(utilities[is_on_front]), len(records))


def _drawn(objectives: Sequence[str], values: np.ndarray, order: Sequence[int]) -> str:
    """Return a picture of the measured values, the second objective to the right and the first upwards."""
    highlights = []
    for rank, i in enumerate(order):
        measured = [f"{name} {value:.6g}" for name, value in zip(objectives, values[i], strict=True)]
        highlights.append(Highlight(float(values[i, 1]), float(values[i, 0]), f"rank {rank}: {', '.join(measured)}"))
    title = f"Pareto front: {len(order)} of {counted(len(values), 'architecture')}"
    points = [(x, y) for y, x, *_ in np.delete(values, order, axis=0).tolist()]
    chart = scatter_chart(
        "front",
        title,
        points,
        highlights,
        x_label=objectives[1],
        y_label=objectives[0],
        names=("evaluated", "on the front"),
    )
    assert chart is not None, "there is at least one evaluation"
    return svg_of(chart)


NUM_WRITTEN = 3  # programs or choices printed, of the first ranks
NUM_FAILURE_KINDS = 5  # kinds of failed evaluations printed


def report_run(
    folder: Path,
    top: Sequence[TopArchitecture],
    *,
    task: GFNTask,
    terminal_type: Any,
    score_means: Sequence[float],
    errors: Counter[str],
    console: Console,
    final: FinalStage | None = None,
    evaluated: Sequence[EvaluationRecord] = (),
    num_successful: int = 0,
    spent: Iterable[EvaluationRecord] = (),
    write: Callable[[Path, bytes | str], None] = write_whole,
) -> list[UserError]:
    """Write and print the best architectures (and the Pareto front); return the errors of unwritten files.

    With a final stage, the first line is that of the winner.

    Args:
        folder: run folder.
        top: best architectures, best first.
        task: of the run.
        terminal_type: class of the terminal objects.
        score_means: mean score of each training step.
        errors: number of failed evaluations by kind.
        console: prints the report.
        final: the final stage, which measured `top`; None without one.
        evaluated: with several objectives, all successful evaluations.
        num_successful: number of successful evaluations, those above a limit included.
        spent: all evaluations of the run; empty: not shown.
        write: writes a file, or raises UserError.
    """
    write_errors, report_line = list[UserError](), partial(print_line, console)

    def attempt(path: Path, content: bytes | str) -> None:
        try:
            write(path, content)
        except UserError as error:
            write_errors.append(error)

    references: list[Reference] = []
    if final is not None:
        references = references_of(folder, final, task=task, from_dict=terminal_type.from_dict, write=attempt)
        for line in verdict_lines(final, references):
            report_line(line)
    report_line(_mean_line(score_means))
    rows = write_top_architectures(
        folder, top, task=task, from_dict=terminal_type.from_dict, report_line=report_line, write=attempt
    )
    notes = () if final is None else [*_captions(final, unit=task.fidelity_unit, name=task.score_name), *final.notes]
    rows += reference_rows(references)
    _print_ranks(folder, rows, top, task, terminal_type, notes, num_successful, console)
    if evaluated:
        report_line(_report_front(folder, evaluated, task=task, console=console, write=attempt))
    for line in (spent_line(spent), f"everything about this run: {folder}", _failure_line(errors)):
        if line:
            report_line(line)
    return write_errors


def _print_ranks(
    folder: Path,
    rows: Sequence[ReportRow],
    top: Sequence[TopArchitecture],
    task: GFNTask,
    terminal_type: Any,
    notes: Sequence[str],
    num_successful: int,
    console: Console,
) -> None:
    no_rows = "no architecture could be evaluated"
    if task.limits and num_successful:
        no_rows = f"no architecture is within evaluation.constraints, {num_successful} could be evaluated"
    is_drawn = terminal_type is ComputationGraph
    best = [terminal_type.from_dict(json.loads(each.record.graph)) for each in top]
    load_line = next_step = ""
    if best:
        load_line = task.load_line(best[0], folder / TOP_NAME, has_weights=top[0].weights is not None)
        next_step = task.next_step(best[0], folder)
    print_report(
        rows,
        load_line=load_line or None,
        pictures=str(folder / PICTURES_NAME) if is_drawn else "",
        notes=notes,
        no_rows=no_rows,
        console=console,
    )
    is_named = any(task.words(each) or task.network(each) is not None for each in best[:1])
    settings = [] if is_named else task.settings(best)[:NUM_WRITTEN]
    lines = [next_step, *_other_lines(folder, top, is_drawn=is_drawn)]
    for line in [*lines, *(f"rank {rank}: {setting}" for rank, setting in enumerate(settings) if setting)]:
        if line:
            print_line(console, line)


def _failure_line(errors: Counter[str]) -> str:
    if not errors:
        return ""
    kinds = [f"{times} x {kind}" for kind, times in errors.most_common(NUM_FAILURE_KINDS)]
    if len(errors) > len(kinds):
        kinds.append(counted(len(errors) - len(kinds), "more kind"))
    return f"failed evaluations: {errors.total()} ({'; '.join(kinds)})"


def _mean_line(score_means: Sequence[float]) -> str:
    if not score_means:
        return "mean score of sampled architectures: none, no step is complete"
    tenth = max(1, len(score_means) // 10)
    first, last = sum(score_means[:tenth]) / tenth, sum(score_means[-tenth:]) / tenth
    start, end = ("first step", "last") if tenth == 1 else (f"first {tenth} steps", f"last {tenth}")
    return f"mean score of sampled architectures: {first:.3f} in the {start}, {last:.3f} in the {end}"


def _captions(final: FinalStage, *, unit: str, name: str) -> Iterator[str]:
    """Yield the meaning of the figures in the table: scores with a name; `unit` is that of the length of a training."""
    if not any(architecture.scores for architecture in final.top):
        yield "no architecture was trained on a new seed: the scores are those of the search, too high for the best"
        return
    length = "" if final.fidelity is None else f" of {counted(final.fidelity, unit.removesuffix('s'))}"
    numbers = sorted({len(architecture.scores) for architecture in final.top if architecture.scores})
    number = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    seeds = counted(1, "new seed") if numbers == [1] else f"{number} new seeds"
    search_score = f"{final.top[0].record.score:.4f}"
    metric = "" if name in ("score", "accuracy") else f"{name}, "
    yield f"validation, test: {metric}means of trainings{length} on {seeds} (rank 0 in the search: {search_score})"
    yield "ranks: by the posterior mean, which combines the search and the new seeds"
    if numbers != [1]:
        ranks = f" that hold for all {len(final.top)} ranks at once, so also for the best" if len(final.top) > 1 else ""
        yield f"±: 95 % intervals{ranks}; a reference has its own"
    if final.correlation is not None:
        yield f"rank correlation of the finalists in the search and in these trainings: {final.correlation:.2f}"
    if not final.is_complete:
        yield "the final stage was interrupted: ranked by the trainings so far"
    elif final.is_stopped:
        yield "the final stage was interrupted: no references"


def _other_lines(folder: Path, top: Sequence[TopArchitecture], *, is_drawn: bool) -> Iterator[str]:
    """Yield the folder of the weights, and programs of tensor-program graphs."""
    if is_drawn:
        return
    if any(architecture.weights is not None for architecture in top):
        yield f"weights: {folder / PICTURES_NAME}"
    for rank, architecture in enumerate(top[:NUM_WRITTEN]):
        program = json.loads(architecture.record.graph)["graph"].get("program")
        if program is not None:
            yield f"rank {rank}: {program}"


def _report_front(
    folder: Path,
    evaluated: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    console: Console,
    write: Callable[[Path, bytes | str], None],
) -> str:
    front = write_pareto_front(folder, evaluated, task=task, write=write)
    directions = task.directions()
    print_front([f"{name} ({directions[name]})" for name in front.objectives], front.values, console=console)
    return (
        f"{len(front.values)} of {front.num_evaluated} are on the front, hypervolume {front.hypervolume:.4f}: "
        f"{folder / FRONT_NAME}, picture {folder / FRONT_PICTURE_NAME}"
    )
