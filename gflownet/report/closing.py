"""What a run says when it ends: how sampling changed, the best architectures, and why evaluations failed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gflownet.console import print_front, print_report
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME, write_top_architectures
from gflownet.report.pareto import FRONT_NAME, FRONT_PICTURE_NAME, write_pareto_front

NUM_WRITTEN = 3  # programs that are written out, those of the first ranks


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
) -> None:
    """Measure the best architectures on test data, write and show them, and with them the front of several objectives.

    Args:
        folder: the run folder.
        records: the best evaluations, best first.
        task: measures the test scores.
        seed: the run's seed.
        terminal_type: the class of what was sampled.
        score_means: mean score of each training step.
        errors: how often evaluations failed for which reason.
        console: where to show it.
        evaluated: with several objectives, all successful evaluations.
    """

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    tenth = max(1, len(score_means) // 10)
    first, last = sum(score_means[:tenth]) / tenth, sum(score_means[-tenth:]) / tenth
    say(f"mean score of sampled architectures: {first:.3f} in the first {tenth} steps, {last:.3f} in the last {tenth}")
    rows = write_top_architectures(folder, records, task=task, seed=seed, from_dict=terminal_type.from_dict, say=say)
    load_line, pictures = None, ""
    if terminal_type is ComputationGraph:
        load_line = f'import gflownet; model = gflownet.load("{folder / TOP_NAME}", rank=0)'
        pictures = str(folder / PICTURES_NAME)
    print_report(rows, load_line=load_line, pictures=pictures, console=console)
    for rank, record in enumerate(records[:NUM_WRITTEN]):
        program = json.loads(record.graph)["graph"].get("program")
        if program is not None:
            say(f"rank {rank}: {program}")
    if evaluated:
        front = write_pareto_front(folder, evaluated, task=task)
        print_front(front.objectives, front.values, console=console)
        say(
            f"{len(front.values)} of {front.num_evaluated} are on the front, hypervolume {front.hypervolume:.4f}: "
            f"{folder / FRONT_NAME}, picture {folder / FRONT_PICTURE_NAME}"
        )
    say(f"everything about this run: {folder}")
    if errors:
        reason, times = errors.most_common(1)[0]
        say(f"failed evaluations: {errors.total()}; most often ({times}): {reason}")
