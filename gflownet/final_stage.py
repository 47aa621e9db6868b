"""The final stage of a run: new trainings of its best architectures and of random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gflownet.components import RANDOM_STREAM, Components
from gflownet.data.uniform import uniform_candidates
from gflownet.evaluation.constraints import best_within
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError, Store
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.final import (
    FinalStage,
    FinalTrainings,
    NoStore,
    Progress,
    TopArchitecture,
    has_final_stage,
    with_test_scores,
)
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.interrupts import StopRequest
from gflownet.workers.process import stream_seed


def final_stage(
    run: Components,
    store: EvaluationStore,
    executor: Executor,
    *,
    stop: StopRequest,
    report_line: Callable[[str], None],
    report_progress: Progress = lambda stage, done, total: None,
    on_result: Callable[[EvaluationRecord], None] = lambda record: None,
) -> FinalStage | None:
    """Train the best architectures of a run on new seeds; None if off, after a signal or without any success."""
    config = run.config
    if not has_final_stage(config.final, run.task) or stop.signal is not None:
        return None
    best = best_within(store, config.final.top, run.task.limits)
    if not best:
        return None

    def build_dispatcher(store: Store) -> Dispatcher:
        dispatcher = run.build_evaluator(store, executor, stopped=lambda: stop.signal is not None)
        dispatcher.on_result = on_result
        return dispatcher

    trainings = FinalTrainings(
        store,
        build_dispatcher=build_dispatcher,
        config=config.final,
        from_dict=run.env.terminal_type.from_dict,
        step=run.step,
        report_line=report_line,
        report_progress=report_progress,
    )
    generator = torch.Generator().manual_seed(stream_seed(config.seed, RANDOM_STREAM))
    num_random = min(config.final.num_random, run.progress.num_distinct)
    return trainings.run(best, random_candidates=uniform_candidates(run.env, num_random, generator=generator))


def best_tested(
    run: Components, records: Sequence[EvaluationRecord], executor: Executor, *, stop: StopRequest
) -> tuple[TopArchitecture, ...]:
    """Return the best architectures of a run without a final stage, with test scores.

    A stop request ends the trainings for test scores; after one, only cheap tasks measure them.
    """
    was_stopped = stop.signal is not None
    untested = tuple(TopArchitecture(record) for record in records)
    if was_stopped and not run.task.is_cheap:
        return untested
    stopped = (lambda: False) if was_stopped else (lambda: stop.signal is not None)
    dispatcher, from_dict = run.build_evaluator(NoStore(), executor, stopped=stopped), run.env.terminal_type.from_dict
    try:
        return with_test_scores(records, dispatcher=dispatcher, from_dict=from_dict, step=run.step)
    except EvaluationStoppedError:
        return untested
