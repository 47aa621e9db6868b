"""Closing report of a run: change of the mean score, best architectures, failed evaluations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gflownet.console import print_front, print_line, print_report
from gflownet.errors import UserError
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.files import write_whole
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME, write_top_architectures
from gflownet.report.pareto import FRONT_NAME, FRONT_PICTURE_NAME, ParetoFront, write_pareto_front

NUM_WRITTEN = 3  # programs printed, of the first ranks


def report_run(
    folder: Path,
    records: Sequence[EvaluationRecord],
    *,
    task: GFNTask,
    seed: int,
    terminal_type: Any,
    score_means: Sequence[float],
    errors: Counter[str],
    console: Console,
    evaluated: Sequence[EvaluationRecord] = (),
    write: Callable[[Path, str], None] = write_whole,
) -> list[UserError]:
    """Test, write and print the best architectures (and the Pareto front); return the errors of unwritten files.

    Args:
        folder: run folder.
        records: best evaluations, best first.
        task: measures the test scores.
        seed: of the run.
        terminal_type: class of the terminal objects.
        score_means: mean score of each training step.
        errors: number of failed evaluations by reason.
        console: prints the report.
        evaluated: with several objectives, all successful evaluations.
        write: writes a file, or raises UserError.
    """
    write_errors: list[UserError] = []
    report_line = partial(print_line, console)

    def attempt(path: Path, content: str) -> None:
        try:
            write(path, content)
        except UserError as error:
            write_errors.append(error)

    tenth = max(1, len(score_means) // 10)
    first, last = sum(score_means[:tenth]) / tenth, sum(score_means[-tenth:]) / tenth
    report_line(
        f"mean score of sampled architectures: {first:.3f} in the first {tenth} steps, {last:.3f} in the last {tenth}"
    )
    rows = write_top_architectures(
        folder, records, task=task, seed=seed, from_dict=terminal_type.from_dict, report_line=report_line, write=attempt
    )
    load_line, pictures = None, ""
    if terminal_type is ComputationGraph:
        load_line = f'import gflownet; model = gflownet.load("{folder / TOP_NAME}", rank=0)'
        pictures = str(folder / PICTURES_NAME)
    print_report(rows, load_line=load_line, pictures=pictures, console=console)
    for line in _program_lines(records[:NUM_WRITTEN]):
        report_line(line)
    if evaluated:
        front = write_pareto_front(folder, evaluated, task=task, write=attempt)
        print_front(front.objectives, front.values, console=console)
        report_line(_front_line(front, folder))
    report_line(f"everything about this run: {folder}")
    if errors:
        reason, times = errors.most_common(1)[0]
        report_line(f"failed evaluations: {errors.total()}; most often ({times}): {reason}")
    return write_errors


def _program_lines(records: Sequence[EvaluationRecord]) -> Iterator[str]:
    """Yield the programs of tensor-program graphs."""
    for rank, record in enumerate(records):
        program = json.loads(record.graph)["graph"].get("program")
        if program is not None:
            yield f"rank {rank}: {program}"


def _front_line(front: ParetoFront, folder: Path) -> str:
    return (
        f"{len(front.values)} of {front.num_evaluated} are on the front, hypervolume {front.hypervolume:.4f}: "
        f"{folder / FRONT_NAME}, picture {folder / FRONT_PICTURE_NAME}"
    )
