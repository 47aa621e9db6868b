"""The record of a finished run, from its trainer, its store and its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.evaluator import evaluation_of
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.evaluation.store_rows import EvaluationStatus
from gflownet.evaluation.task import GFNTask
from gflownet.files import parse_json, read_entries, read_rows
from gflownet.report.architectures import TOP_NAME
from gflownet.report.compared.record import RunRecord
from gflownet.run.logging import METRICS_NAME
from gflownet.run.progress import Progress
from gflownet.run.trainer import GFNTrainer

_TOP_SHARE = 0.01


def record_of(trainer: GFNTrainer, config: Mapping[str, Any]) -> RunRecord:
    """Return the record of a run that `trainer.run` has finished.

    Args:
        trainer: its progress recorded the new evaluations.
        config: nested, as the run was started.

    Raises:
        UserError: the run was started without the record of its evaluations, or it has none.
    """
    progress, search, folder = trainer.progress, trainer.search, Path(trainer.config.log_dir)
    if progress.new_evaluations is None:
        raise UserError(f"{folder}: expected a run of a comparison, got another one; choose another --out")
    with EvaluationStore(folder / STORE_NAME, context=trainer.scoring_context) as store:
        rows = {row.hash: row for row in store if not row.seed}
    unfinished = [] if search is not None else unfinished_step(progress, rows.values(), task=trainer.task)
    evaluations = [*progress.new_evaluations, *unfinished]
    if not evaluations:
        reason = "the training of the policy proposed none within the caps" if search is None else search.end
        raise UserError(f"expected at least one evaluation, got none: {reason}")
    hashes, scores, proposals = ([*column] for column in zip(*evaluations, strict=True))
    is_capped = has_caps(trainer)
    return RunRecord(
        config=config,
        hashes=hashes,
        scores=scores,
        tests=test_scores(trainer, [rows[each] for each in hashes]),
        proposals=proposals,
        own_seconds=own_seconds(folder / METRICS_NAME, rows.values(), num=len(hashes)),
        num_proposals=progress.num_proposals + len(unfinished),
        evaluation_seconds=math.fsum(row.seconds for row in rows.values()),
        end="" if search is None else search.end,
        optimum=None if is_capped else max(trainer.task.all_scores(), default=None),
        metrics=last_metrics(folder / METRICS_NAME),
        top_test=None if is_capped else top_threshold(trainer.task.all_test_scores()),
        final_scores=final_scores(folder / TOP_NAME) if trainer.config.final.top else (),
        num_final=trainer.plan.num_final,
    )


def has_caps(trainer: GFNTrainer) -> bool:
    """Return whether the options of a run make some architectures of its space unreachable."""
    budget = trainer.config.budget
    return bool(trainer.task.limits or budget.parameters or budget.flops)


def unfinished_step(
    progress: Progress, rows: Iterable[EvaluationRecord], *, task: GFNTask
) -> list[tuple[str, float, int]]:
    """Return the evaluations of the step in which the budget was spent, as `Progress.new_evaluations`.

    The training of the policy drops this step. Its repeats are not known and not counted.
    """
    counted = {each[0] for each in progress.new_evaluations or ()}
    new = (row for row in rows if row.hash not in counted and row.status is not EvaluationStatus.REFUSED)
    evaluations = (evaluation_of(row, task=task, cached=False) for row in new)
    return [(each.hash, each.score, place) for place, each in enumerate(evaluations, progress.num_proposals + 1)]


def test_scores(trainer: GFNTrainer, rows: Sequence[EvaluationRecord]) -> list[float | None]:
    """Return the test scores of evaluated architectures where they cost nothing, None elsewhere."""
    task, from_dict = trainer.task, trainer.env.terminal_type.from_dict
    if not task.is_cheap:
        return [None] * len(rows)
    return [
        task.test(from_dict(parse_json(row.graph)), seed=trainer.config.seed)
        if row.status is EvaluationStatus.OK
        else None
        for row in rows
    ]


def top_threshold(scores: Iterable[float]) -> float | None:
    """Return the smallest score among the best 1 %, at least one; None for no scores."""
    ordered = sorted(scores, reverse=True)
    return ordered[max(round(_TOP_SHARE * len(ordered)), 1) - 1] if ordered else None


def own_seconds(path: Path, rows: Iterable[EvaluationRecord], *, num: int) -> list[float]:
    """Return the seconds of the method's work for each of `num` new evaluations, equal shares within a step.

    A search method measures its own work. The training of the policy is the time of the run without its evaluations,
    which is too little where evaluations run in other processes meanwhile.

    Args:
        path: metrics.jsonl.
        rows: of the store.
        num: new evaluations.
    """
    evaluation_seconds = Counter[int]()
    for row in rows:
        evaluation_seconds[row.step] += row.seconds  # type: ignore[assignment]
    result: list[float] = []
    total, pending = 0.0, 0.0
    for metrics in read_rows(path)[0]:
        num_new = metrics.get("num_distinct", len(result)) - len(result)
        if "method_seconds_per_evaluation" in metrics:
            seconds = metrics["method_seconds_per_evaluation"] * max(metrics["num_distinct"], 1)
            step_seconds = seconds - total
        else:
            seconds = metrics["seconds"]
            step_seconds = seconds - total - evaluation_seconds[metrics["step"]]
        total, pending = seconds, pending + max(step_seconds, 0.0)
        if num_new > 0:
            result += [pending / num_new] * num_new
            pending = 0.0
    return (result + result[-1:] * num)[:num]


def last_metrics(path: Path) -> dict[str, float]:
    """Return the last number of every metric in metrics.jsonl."""
    result: dict[str, float] = {}
    for row in read_rows(path)[0]:
        result |= {key: value for key, value in row.items() if isinstance(value, int | float)}
    return result


def final_scores(path: Path) -> tuple[float, ...]:
    """Return the mean scores on new seeds of the best architectures, best first."""
    return tuple(entry["final"]["mean"] for entry in read_entries(path)[0] if "final" in entry)
