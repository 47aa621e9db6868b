"""The final stage of a run: new trainings of its best architectures and of random ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from gflownet.data.sampler import uniform_candidates
from gflownet.evaluation.budget import Budget
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError, Store
from gflownet.evaluation.evaluator import best_within, exceeded
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.final import Finalists, FinalStage, FinalTrainings, NoStore, TopArchitecture, with_test_scores
from gflownet.evaluation.racing import RANDOM_REPEAT, Belief, num_finalists, shrunk, spread_of
from gflownet.evaluation.store import EvaluationRecord
from gflownet.graphs.canonical import Candidate
from gflownet.records.status import Phase
from gflownet.run.final_set import with_set
from gflownet.run.parts import RANDOM_STREAM, Parts
from gflownet.run.run import Run
from gflownet.run.stage import Stage
from gflownet.workers.process import stream_seed

# The first guess of the noise without a model: this share of the variance of scores.
_NOISE_SHARE = 0.5
# In a small space most samples are known or refused: times that more of them are drawn.
_MAX_DRAWS = 4


class FinalTrainingsStage(Stage):
    """New trainings of the best architectures.

    Attributes:
        result: None before, and without trainings: off, after a signal, or without any successful evaluation.
    """

    result: FinalStage | None = None

    def __init__(self, parts: Parts, evaluator: Dispatcher) -> None:
        """Take the evaluator of the search."""
        self._parts, self._evaluator = parts, evaluator

    def run(self, run: Run) -> None:
        """Train until the end or a signal; a resumed run continues with the next training."""
        with run.phase(Phase.FINAL):
            self.result = final_stage(self._parts, self._evaluator, run)


def final_stage(parts: Parts, evaluator: Dispatcher, run: Run) -> FinalStage | None:
    """Train the best architectures of a run on new seeds; None if off, after a signal or without any success."""
    config, plan, store = parts.config, parts.plan, run.store
    if not plan.num_final or run.is_stopped:
        return None
    records = best_within(store, store.count(), parts.task.limits)
    if not records:
        return None

    def build_dispatcher(store: Store) -> Dispatcher:
        dispatcher = parts.build_evaluator(store, evaluator.executor, stopped=lambda: run.is_stopped)
        dispatcher.on_result, dispatcher.weights = evaluator.on_result, evaluator.weights
        return dispatcher

    trainings = FinalTrainings(
        store,
        build_dispatcher=build_dispatcher,
        config=config.final,
        from_dict=parts.env.terminal_type.from_dict,
        step=parts.step,
        report_line=run.logger.print,
        report_progress=lambda name, done, total, rows: run.logger.stage(
            name, done, total, {**final_metrics(rows), "seconds": evaluator.budget.seconds}
        ),
    )
    before = [
        row for row in store if row.run == parts.run_id and row.seed and row.fidelity == (trainings.fidelity or 0)
    ]
    spent = [row for row in before if row.seed < RANDOM_REPEAT]

    def random_finalists(rows: Sequence[EvaluationRecord]) -> Finalists | None:
        rows = [row for row in rows if not parts.task.limits or exceeded(row.metrics, parts.task.limits) is None]
        num_before = sum(row.seed > RANDOM_REPEAT for row in before)
        if not plan.num_random_final or not rows:
            return None
        return _finalists(parts, rows, plan.num_random_final, num_before=num_before, offset=RANDOM_REPEAT)

    stage = trainings.run(
        _finalists(
            parts,
            records,
            plan.num_final,
            num_before=len(spent),
            seconds=plan.seconds_after(parts.progress.seconds) - math.fsum(row.seconds for row in spent),
            predicted=_predicted(parts, records),
        ),
        random_candidates=random_candidates(parts, plan.num_random),
        random_finalists=random_finalists,
        num_planned=plan.num_compared,
    )
    stage = replace(stage, num_trainings=parts.progress.num_distinct + sum(len(each.scores) for each in stage.top))
    return with_set(parts, evaluator, run, stage)


def final_metrics(rows: Sequence[EvaluationRecord]) -> dict[str, float]:
    """Return the metrics of finished trainings on new seeds: of the finalists, and of random architectures."""
    scores: dict[tuple[bool, str], list[float]] = defaultdict(list)  # of finalists and of random ones
    for row in rows:
        scores[row.seed >= RANDOM_REPEAT, row.hash].append(row.score)
    metrics: dict[str, float] = {"num_trainings": len(rows)}
    finalists, randoms = ([each for (is_random, _), each in scores.items() if is_random == wanted] for wanted in (0, 1))
    if finalists:
        metrics |= {"num_finalists": len(finalists), "num_new_seeds": max(map(len, finalists))}
        metrics["final_score_best"] = max(math.fsum(each) / len(each) for each in finalists)
    if randoms:
        metrics |= {"num_random": len(randoms), "random_score_best": max(map(max, randoms))}
    return metrics


def _finalists(
    parts: Parts,
    records: Sequence[EvaluationRecord],
    num_trainings: int,
    *,
    num_before: int,
    offset: int = 0,
    seconds: float = math.inf,
    predicted: tuple[Belief, float] | None = None,
) -> Finalists:
    """Return the best rows by posterior mean, and the prior of their race.

    Without predictions of a model, the prior is the empirical Bayes posterior of all rows.
    """
    scores = [record.score for record in records]
    guess = math.sqrt(_NOISE_SHARE) * spread_of(scores) if predicted is None else predicted[1]
    means = shrunk(scores, guess).mean if predicted is None else predicted[0].mean
    order = np.argsort(-means, kind="stable")[: num_finalists(num_trainings, parts.config.final.top)]

    def prior(noise: float) -> Belief:
        belief = shrunk(scores, noise) if predicted is None else predicted[0]
        return Belief(belief.mean[order], belief.std[order])

    return Finalists(
        [records[place] for place in order.tolist()],
        prior,
        guess,
        num_trainings,
        num_before=num_before,
        offset=offset,
        seconds=seconds,
    )


def _predicted(parts: Parts, records: Sequence[EvaluationRecord]) -> tuple[Belief, float] | None:
    """Return the posterior of the method's model for rows of the search and its noise, None without a model.

    Rows that the method has not seen, such as those of another run, keep the empirical Bayes posterior.
    """
    if parts.search is None or not len(parts.search.history) or parts.task.chosen_objectives:
        return None
    history = parts.search.history
    prediction = parts.search.method.predicted(history.states)
    if prediction is None:
        return None
    scores = [record.score for record in records]
    noise = prediction.noise or math.sqrt(_NOISE_SHARE) * spread_of(scores)
    belief = shrunk(scores, noise)
    mean, std = belief.mean.copy(), belief.std.copy()
    positions = history.positions_by_hash()
    for place, record in enumerate(records):
        if record.hash in positions:
            mean[place] = prediction.mean[positions[record.hash]]
            std[place] = prediction.latent_std[positions[record.hash]]
    return Belief(mean, std), noise


def random_candidates(parts: Parts, num: int) -> list[Candidate]:
    """Return up to `num` different random architectures within the caps of the budget."""
    generator = partial(torch.Generator().manual_seed, stream_seed(parts.config.seed, RANDOM_STREAM))
    budget, accepted = Budget(parts.config.budget), list[Candidate]()
    for factor in range(_MAX_DRAWS if num else 0):
        candidates = uniform_candidates(parts.env, num << factor, generator=generator())
        accepted = [each for each in candidates if budget.refusal(parts.task, each) is None][:num]
        if len(accepted) == num or len(candidates) < num << factor:
            break
    return accepted


def best_tested(
    parts: Parts, records: Sequence[EvaluationRecord], executor: Executor, run: Run
) -> tuple[TopArchitecture, ...]:
    """Return the best architectures of a run without a final stage, with test scores.

    A stop request ends the trainings for test scores; after one, only cheap tasks measure them, in this process: other
    processes, and above all those of Ray, may take the seconds in which a stopped run ends.
    """
    was_stopped = run.is_stopped
    untested = tuple(TopArchitecture(record) for record in records)
    if was_stopped and (executor.isolates or not parts.task.is_cheap):
        return untested
    stopped = (lambda: False) if was_stopped else (lambda: run.is_stopped)
    dispatcher, from_dict = (
        parts.build_evaluator(NoStore(), executor, stopped=stopped),
        parts.env.terminal_type.from_dict,
    )
    try:
        with closing(dispatcher):  # ends the thread of its claims
            return with_test_scores(records, dispatcher=dispatcher, from_dict=from_dict, step=parts.step)
    except EvaluationStoppedError:
        return untested
