"""The final stage of a run: new trainings of its best architectures and of random ones."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from gflownet.config import Config
from gflownet.errors import UserError, counted
from gflownet.evaluation.budget import Budget
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import best_within, exceeded, utilities_of
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.final import Finalists, FinalStage, FinalTrainings, Sizes, TopArchitecture, with_test_scores
from gflownet.evaluation.racing import RANDOM_REPEAT, NormalMeans, num_finalists, num_for_choice, shrunk, spread_of
from gflownet.evaluation.statistics import largest_addition, non_dominated
from gflownet.evaluation.store.claims import NoStore
from gflownet.evaluation.store.evaluations import EvaluationRecord
from gflownet.evaluation.store.rows import EvaluationStatus, failure_kind
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.canonical import Candidate
from gflownet.learning.sampler import distinct_candidates
from gflownet.mdp.environment import Environment
from gflownet.records.status import Phase
from gflownet.report.closing import write_final
from gflownet.report.verdict import spent_on
from gflownet.run.components import Components
from gflownet.run.final_set import with_set
from gflownet.run.plan import NUM_REPORTED, SHARES, capped_objective
from gflownet.run.run import Run, Stage
from gflownet.search.method import random_draws
from gflownet.workers.process import Stream, stream_seed

# The first guess of the noise without a model: this share of the variance of scores.
_NOISE_SHARE = 0.5
# In a small space most samples are known or refused: times that more of them are drawn.
_MAX_DRAWS = 4


@dataclass
class FinalTrainingsStage(Stage):
    """New trainings of the best architectures."""

    parts: Components
    evaluator: Dispatcher  # of the search
    result: FinalStage | None = None  # before, and without trainings: off, after a signal, or without any success
    records: Sequence[EvaluationRecord] = ()  # of the best architectures, once they are written
    write_errors: list[UserError] = field(default_factory=list)  # of files that could not be written
    _trainings: FinalTrainings | None = None
    _even_share: float = 0.0  # of the random architectures, drawn evenly over sizes

    def run(self, run: Run) -> None:
        """Train until the end or a signal; a resumed run continues with the next training."""
        with run.phase(Phase.FINAL):
            self.result = final_stage(self, run)
            self.write(run)

    def write(self, run: Run) -> None:
        """Write the best architectures, and the results of this stage; without it, those of the search."""
        parts, store, final = self.parts, run.store, self.result
        task, limits = parts.task, parts.task.limits
        if final is None:
            top = best_tested(parts, best_within(store, NUM_REPORTED, limits), self.evaluator.executor, run)
        else:
            top = final.top
        self.records = [each.record for each in top]

        def write(path: Path, content: bytes | str) -> None:
            try:
                run.folder.write(path, content)
            except UserError as error:
                self.write_errors.append(error)

        results = write_final(
            run.folder.path,
            top,
            task=task,
            terminal_type=parts.env.terminal_type,
            final=final,
            evaluated=best_within(store, store.count(), limits) if task.chosen_objectives else (),
            write=write,
        )
        rows = [*store.of_run(parts.run_id)]
        failed = (row for row in rows if row.status is not EvaluationStatus.OK)
        results = replace(
            results,
            num_successful=store.count(EvaluationStatus.OK),
            spent=spent_on(rows) if task.is_noisy else {},
            failures=dict(Counter(failure_kind(row.status, row.error) for row in failed)),
        )
        run.record(score=task.score_name, metric=task.metric_name, final=results)

    def begin(self, run: Run) -> FinalTrainings:
        """Start what depends on no result of the search: random architectures and reference methods."""
        if self._trainings is None:
            self._trainings = _trainings(self.parts, self.evaluator, run)
            self._trainings.begin(self._random_candidates, step=self.parts.search.round)
        return self._trainings

    def begin_early(self, run: Run) -> None:
        """Start it while the sampler is trained, where other processes do it and no limit of time is shared with it."""
        plan = self.parts.plan
        if plan.num_final and self.evaluator.executor.isolates and not plan.seconds:
            self.begin(run)

    def advance(self) -> None:
        """Collect finished trainings and start the next ones, if any have begun."""
        if self._trainings is not None:
            self._trainings.advance()

    def _random_candidates(self) -> Sequence[Candidate]:
        parts, num = self.parts, self.parts.plan.num_random
        if not num:
            return ()
        candidates, self._even_share = random_candidates(parts.config, parts.env, parts.task, num)
        return candidates


def _trainings(parts: Components, evaluator: Dispatcher, run: Run) -> FinalTrainings:
    """Return the trainings of the final stage; they end with the run."""
    stores = run.store, NoStore()
    dispatcher, references = (
        run.open(closing(parts.build_evaluator(store, evaluator.executor, stopped=lambda: run.is_stopped)))
        for store in stores
    )
    dispatcher.on_result, dispatcher.weights = evaluator.on_result, evaluator.weights
    return FinalTrainings(
        dispatcher,
        references,
        config=parts.config.final,
        from_dict=parts.env.terminal_type.from_dict,
        report_line=run.logger.print,
        report_progress=lambda name, done, total, rows: run.logger.stage(
            name, done, total, {**final_metrics(rows), "seconds": evaluator.budget.seconds}
        ),
    )


def final_stage(stage: FinalTrainingsStage, run: Run) -> FinalStage | None:
    """Train the best architectures of a run on new seeds; None if off, after a signal or without any success."""
    parts, plan, store = stage.parts, stage.parts.plan, run.store
    if not plan.num_final or run.is_stopped:
        return None
    records = best_within(store, store.count(), parts.task.limits)
    if not records:
        return None

    trainings, sizes = stage.begin(run), sizes_of(parts, records)
    before = [row for row in store.of_run(parts.run_id) if row.fidelity == (trainings.fidelity or 0)]
    spent = [row for row in before if 0 < row.seed < RANDOM_REPEAT]

    def random_finalists(rows: Sequence[EvaluationRecord]) -> list[Finalists]:
        rows = [row for row in rows if not parts.task.limits or exceeded(row.metrics, parts.task.limits) is None]
        raced = [row for row in before if row.seed > RANDOM_REPEAT]
        return _races(parts, rows, plan.num_random_final, sizes=sizes, before=raced, offset=RANDOM_REPEAT)

    final = trainings.run(
        _races(
            parts,
            records,
            plan.num_final,
            sizes=sizes,
            before=spent,
            seconds=plan.seconds_after(parts.progress.seconds) - math.fsum(row.seconds for row in spent),
            predicted=_predicted(parts, records),
        ),
        step=parts.step,
        random_finalists=random_finalists,
        num_planned=plan.num_compared,
        sizes=sizes,
    )
    num = parts.progress.num_distinct + sum(len(each.scores) for each in final.top)
    final = replace(final, num_trainings=num, sizes=sizes, even_share=stage._even_share)
    return with_set(parts, stage.evaluator, run, final)


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


def sizes_of(parts: Components, records: Sequence[EvaluationRecord]) -> Sizes | None:
    """Return the caps for which finalists are chosen; None unless the objectives are the score and a cost.

    None, too, where every row is above the largest cap. Caps that no row exceeds, such as those of parameters for a
    latency, give way to shares of the largest value.
    """
    caps, metric = tuple(sorted({*map(float, parts.config.final.caps)})), capped_objective(parts.task)
    values = [record.metrics[metric] for record in records] if metric else []
    if not values or (caps and min(values) > caps[-1]):
        return None
    if caps and max(values) <= caps[0]:
        caps = ()
    return Sizes(metric, caps or tuple(dict.fromkeys(_rounded_up(max(values) * share) for share in SHARES)))


def _rounded_up(value: float) -> float:
    """Return a number above 0 with two significant digits, not below the value; 1 for others."""
    if value <= 0:
        return 1.0
    exponent = math.floor(math.log10(value)) - 1
    return max(float(f"{math.ceil(round(value / 10.0**exponent, 9))}e{exponent}"), value)


def _races(
    parts: Components,
    records: Sequence[EvaluationRecord],
    num_trainings: int,
    *,
    sizes: Sizes | None,
    before: Sequence[EvaluationRecord],
    offset: int = 0,
    seconds: float = math.inf,
    predicted: tuple[NormalMeans, float] | None = None,
) -> list[Finalists]:
    """Return the finalists of one race, or of one race per range of sizes, each with its share of the trainings.

    Those of a range are on its front, of one race the best by posterior mean. `before` has the trainings of an earlier
    process.
    """
    groups, final = [records], parts.config.final
    if sizes is not None:
        ends = pairwise((-math.inf, *sizes.caps))
        groups = [[row for row in records if low < row.metrics[sizes.metric] <= high] for low, high in ends]
    groups = [group for group in groups if group]
    # Of a remainder the ranges of large networks get one each: they have the best scores.
    shares = [(num_trainings + place) // len(groups) for place in range(len(groups))]
    quotas = [num_finalists(share, final.top) for share in shares]
    orders = [None] if sizes is None else _on_front(parts, groups, quotas)
    races = list[Finalists]()
    for group, num, quota, order in zip(groups, shares, quotas, orders, strict=False):
        scores, hashes = [record.score for record in group], {record.hash for record in group}
        known, guess = predicted or (None, math.sqrt(_NOISE_SHARE) * spread_of(scores))
        best = np.argsort(-(known or shrunk(scores, guess)).mean, kind="stable")[:quota].tolist()
        if places := best if order is None else order:
            prior, num_before = partial(_prior, known, scores, places), sum(row.hash in hashes for row in before)
            finalists = [group[place] for place in places]
            num_choice = num_for_choice(num, len(places), num_seeds=final.num_seeds)
            if final.epochs is not None and len(groups) > 1:  # scores of another length: all races need one
                num_choice = max(num_choice, 1)
            plan = num, num_choice, num_before, offset, seconds / len(groups)
            races.append(Finalists(finalists, prior, guess, *plan))
    return races


def _prior(known: NormalMeans | None, scores: Sequence[float], places: list[int], noise: float) -> NormalMeans:
    """Return the means of some rows by a model; without one by the empirical Bayes posterior of all rows."""
    means = known or shrunk(scores, noise)
    return NormalMeans(means.mean[places], means.std[places])


def _on_front(
    parts: Components, groups: Sequence[Sequence[EvaluationRecord]], quotas: Sequence[int]
) -> list[list[int]]:
    """Return the positions of the finalists of each group, on its front.

    The best score of each, then those that add most to the hypervolume of all finalists so far.
    """
    estimates = parts.search.method.setup.estimates
    points = [
        estimates(
            torch.tensor([utilities_of(row, task=parts.task) for row in group], dtype=torch.float64),
            [row.metrics for row in group],
        ).numpy()
        for group in groups
    ]
    fronts = [np.flatnonzero(non_dominated(each)).tolist() for each in points]
    chosen = [
        [max(front, key=lambda place, group=group: group[place].score)] * min(quota, 1)
        for front, group, quota in zip(fronts, groups, quotas, strict=True)
    ]
    while left := [
        (number, place)
        for number, (front, quota) in enumerate(zip(fronts, quotas, strict=True))
        if len(chosen[number]) < quota
        for place in front
        if place not in chosen[number]
    ]:
        before = [points[number][place] for number, places in enumerate(chosen) for place in places]
        tried = np.array([*before, *(points[number][place] for number, place in left)])
        number, place = left[largest_addition(tried, range(len(before)), range(len(before), len(tried))) - len(before)]
        chosen[number].append(place)
    return chosen


def _predicted(parts: Components, records: Sequence[EvaluationRecord]) -> tuple[NormalMeans, float] | None:
    """Return the posterior of the method's model for rows of the search and its noise, None without a model.

    Rows that the method has not seen, such as those of another run, keep the empirical Bayes posterior.
    """
    if not len(parts.search.history) or parts.task.chosen_objectives:
        return None
    history = parts.search.history
    prediction = parts.search.method.predicted(history.states)
    if prediction is None:
        return None
    scores = [record.score for record in records]
    noise = prediction.noise or math.sqrt(_NOISE_SHARE) * spread_of(scores)
    means = shrunk(scores, noise)
    mean, std = means.mean.copy(), means.std.copy()
    positions = history.positions_by_hash()
    for place, record in enumerate(records):
        if record.hash in positions:
            mean[place] = prediction.mean[positions[record.hash]]
            std[place] = prediction.latent_std[positions[record.hash]]
    return NormalMeans(mean, std), noise


def random_candidates(config: Config, env: Environment, task: GFNTask, num: int) -> tuple[list[Candidate], float]:
    """Return up to `num` different random architectures within the caps of the budget, and the share spread over sizes.

    They are drawn as those of search.method=random.
    """
    budget, seed = Budget(config.budget), stream_seed(config.seed, Stream.RANDOM_NETWORKS)

    def is_refused(candidate: Candidate) -> bool:
        return budget.refusal(task, candidate) is not None

    generator, share = torch.Generator().manual_seed(seed), config.search.random.even_share
    draws = random_draws(env, task, even_share=share, is_refused=is_refused, generator=generator)
    accepted = list[Candidate]()
    for factor in range(_MAX_DRAWS):
        generator.manual_seed(seed)
        candidates = distinct_candidates(env, num << factor, lambda size: draws(size, generator))
        accepted = [each for each in candidates if not is_refused(each)][:num]
        if len(accepted) == num or len(candidates) < num << factor:
            break
    return accepted, draws.even_share


def best_tested(
    parts: Components, records: Sequence[EvaluationRecord], executor: Executor, run: Run
) -> tuple[TopArchitecture, ...]:
    """Return the best architectures of a run without a final stage, with test scores.

    A stop request ends the trainings for test scores; after one, only cheap tasks measure them, in this process: other
    processes, and above all those of Ray, may take the seconds in which a stopped run ends.
    """
    was_stopped = run.is_stopped
    untested = tuple(TopArchitecture(record) for record in records)
    if was_stopped and (executor.isolates or not parts.task.is_cheap):
        return untested
    if records and parts.task.has_test and not parts.task.is_cheap:
        num = counted(len(records), "more evaluation")
        run.logger.print(f"test scores: {num} with the seed of the search, because the run has no final stage")
    stopped = (lambda: False) if was_stopped else (lambda: run.is_stopped)
    from_dict = parts.env.terminal_type.from_dict
    try:
        with closing(parts.build_evaluator(NoStore(), executor, stopped=stopped)) as dispatcher:  # ends its thread
            return with_test_scores(records, dispatcher=dispatcher, from_dict=from_dict, step=parts.step)
    except EvaluationStoppedError:
        return untested
