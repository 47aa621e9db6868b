"""The search of a run: its loop over the search method, and the training of a sampler that may follow."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.candidates.sets import PARENTS_NAME, ParentWeights
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import AsynchronousEvaluator, best_within
from gflownet.evaluation.halving import HalvingEvaluator, SuccessiveHalving
from gflownet.evaluation.inheritance import Inheritance, InheritingEvaluator
from gflownet.evaluation.presentation import words_of
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.files import parse_json
from gflownet.graphs.drawing import to_svg
from gflownet.records.status import Phase
from gflownet.report.architectures import Leader
from gflownet.report.results import Finalist, SearchResults, TakenOver
from gflownet.run.components import Components
from gflownet.run.failures import SkippedSteps, refuse_failures
from gflownet.run.final_stage import FinalTrainingsStage
from gflownet.run.plan import NUM_REPORTED
from gflownet.run.progress import ExecutorStatus, mean
from gflownet.run.run import Run, StepStage
from gflownet.run.run_log import StepSamples
from gflownet.search.candidate_model import observed
from gflownet.search.config import ORIGINS
from gflownet.search.loop import LoopOptions, SearchLoop, SearchStep
from gflownet.terminal.interrupts import on_alarm
from gflownet.training.random_states import get_random_state, set_random_state


class SearchStage(StepStage):
    """Search until the last step, a signal or the end of the budget."""

    def __init__(
        self,
        parts: Components,
        evaluator: Dispatcher,
        final: FinalTrainingsStage,
        *,
        halving: SuccessiveHalving | None,
        inheritance: Inheritance | None,
        state_dict: Callable[[], dict[str, Any]],
    ) -> None:
        """Keep the components.

        Args:
            parts: of the run.
            evaluator: of the search.
            final: the stage whose first trainings run while the sampler is trained.
            halving: of the evaluations; None: they are whole.
            inheritance: of weights; None: each training begins with first values.
            state_dict: returns the state of the run.
        """
        self._parts, self._evaluator, self._final, self._halving = parts, evaluator, final, halving
        self._search: AsynchronousEvaluator = evaluator if halving is None else HalvingEvaluator(evaluator, halving)
        self._inheritance = inheritance
        self._executors = ExecutorStatus(evaluator)
        self.skipped = SkippedSteps(parts.config.opt)
        self._before = parts.progress.num_distinct, parts.progress.seconds
        self._best_score, self._has_time_line = -math.inf, not parts.task.is_noisy
        self._num_open = 0  # training steps after the last state that a checkpoint may have
        self._num_before = 0  # steps before the training of the sampler
        self.checkpoint_every, self._state = parts.config.checkpoint_every, state_dict

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        return self._parts.step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run."""
        return self._state()

    def run(self, run: Run) -> None:
        """Take the steps of the search."""
        parts, evaluator = self._parts, self._evaluator
        if self._inheritance is not None:
            method, weights = parts.search.method, ParentWeights(run.folder.path / PARENTS_NAME, write=run.folder.write)
            start = None if method.setup.start is None else method.setup.start.network
            first = None if start is None or start.weights is None else (start.candidate, start.weights)
            self._inheritance.begin(weights, num_first=method.num_first, start=first)
            self._search = InheritingEvaluator(evaluator, self._inheritance, weights, report=run.logger.print)
        with on_alarm(evaluator.executor.interrupt) if parts.config.budget.seconds else nullcontext():
            super().run(run)
        if not run.is_stopped:
            run.store.abandon(run=parts.run_id)
            if self._inheritance is not None:
                self._inheritance.end()
        if self._halving is not None:
            run.logger.print(str(self._halving))

    def steps(self, run: Run) -> Iterator[dict[str, float]]:
        """Take the steps, and yield the metrics of each."""
        parts, evaluator = self._parts, self._evaluator

        def watch() -> None:
            view, num = run.logger.view, parts.plan.num_verified
            if parts.sampler.is_trained and evaluator.num_in_flight:
                view.stage("samples of the sampler", num - evaluator.num_in_flight, num)
            view.show({"seconds": evaluator.budget.seconds, **self._executors.metrics()})
            run.refresh()
            self._final.advance()

        evaluator.watch = watch
        trains_policy = parts.search.method.trains_policy
        if trains_policy and parts.config.num_workers:
            run.logger.print(f"starting {counted(parts.config.num_workers, 'worker')}")
        with run.phase(Phase.TRAINING if trains_policy else Phase.SEARCH):
            yield from self._taken(parts.search, run)
        if parts.search.end and not run.is_stopped:
            run.logger.print(f"the search ends after step {parts.step}: {parts.search.end}")
        if run.is_stopped or not parts.sampler.is_used or not len(observed(parts.search.history)):
            return
        if self._inheritance is not None:  # samples are trained as finalists are
            self._search, evaluator.parents = evaluator, None
        with run.phase(Phase.SAMPLER):
            self._final.begin_early(run)
            if not parts.sampler.is_trained:
                num, num_done = counted(len(parts.search.history), "evaluation"), parts.sampler.num_done
                resumed = f", from update {num_done + 1} on" if num_done else ""
                run.logger.print(f"the sampler is trained on predictions from {num}{resumed}")
                self._num_before = parts.step - parts.sampler.num_done
                run.logger.view.stage(Phase.SAMPLER, parts.sampler.num_done, parts.plan.num_steps)
            num = max(parts.sampler.num_verified, 1)
            yield from self._taken(SearchLoop(parts.sampler, LoopOptions(num, num, num_rounds=1)), run)

    def _taken(self, loop: SearchLoop, run: Run) -> Iterator[dict[str, float]]:
        """Take the remaining steps of a loop, and yield the metrics of each.

        Training steps between two rounds are repeated by a resumed run that is interrupted in their middle.
        """
        parts, was_fallback, random_state = self._parts, False, get_random_state()
        with closing(loop.steps(self._search)) as steps:
            while not run.is_stopped:
                if not self._num_open:
                    random_state = get_random_state()
                try:
                    step = next(steps, None)
                except EvaluationStoppedError as error:  # a resumed run repeats the round
                    set_random_state(random_state)
                    loop.end = "" if run.is_stopped else str(error)
                    break
                if step is None:
                    self._num_open = 0
                    return
                parts.progress.step += 1
                was_fallback = _report_fallback(step, was_fallback, parts.step, run)
                if step.evaluations:
                    self._num_open = 0
                    yield parts.progress.add(step) | step.metrics
                else:
                    self._num_open = 0 if step.is_resumable else self._num_open + 1
                    self._final.advance()
                    run.logger.view.stage(Phase.SAMPLER, parts.step - self._num_before, parts.plan.num_steps)
                    parts.progress.samples, parts.progress.new_failures = StepSamples.of((), step.log_rewards), []
                    yield step.metrics
        if run.is_stopped and self._num_open and not parts.sampler.is_trained:  # else its steps are done
            set_random_state(random_state)
            parts.progress.step -= self._num_open

    def write(self, run: Run, metrics: dict[str, float]) -> None:
        """Write the metrics of a step, with its failures and the status of the executor."""
        parts, evaluator, logger, progress = self._parts, self._evaluator, run.logger, self._parts.progress
        self.is_sound = not self._num_open and self.step != self.skipped.last
        for line in progress.new_failures:
            logger.warn(f"step {self.step}: {line}")
        progress.seconds = evaluator.budget.seconds
        elapsed = progress.seconds - self._before[1]  # 0 where a resumed run has submitted nothing yet
        rate = (progress.num_distinct - self._before[0]) / elapsed if elapsed else 0.0
        metrics["seconds"] = progress.seconds
        if "score_mean" in metrics:  # a training step of the policy after a search evaluates nothing
            metrics |= {"evaluations_per_second": rate, **self._executors.metrics()}
        if self._halving is not None:
            metrics |= self._halving.metrics()
        if progress.best_score > self._best_score:
            self._best_score = progress.best_score
            for graph in (json.loads(each.graph) for each in best_within(run.store, 1, parts.task.limits)):
                logger.name_best(lambda graph=graph: parts.task.words(parts.env.terminal_type.from_dict(graph)))
        logger.write(self.step, metrics, progress.samples)
        # A single cause of all failures ends the search after the first design of a surrogate.
        num_first = min(parts.config.search.num_initial, parts.plan.num_search)
        if len(progress.errors) == 1 and progress.errors.total() == progress.num_distinct >= num_first:
            refuse_failures(run.store, run=parts.run_id, is_early=True)
        if not self._has_time_line and evaluator.mean_seconds:
            self._has_time_line = True
            logger.print(parts.plan.time_line(evaluator.mean_seconds, num_evaluated=progress.num_distinct))
        if self.step % self.checkpoint_every == 0 and logger.has_media:
            records = best_within(run.store, NUM_REPORTED, parts.task.limits)
            logger.write_leaders([record.hash for record in records], lambda: leaders_of(parts, records))

    def finish(self, run: Run, *, is_abandoned: bool) -> None:
        """Note the used time, and cancel rollouts that workers have prepared ahead."""
        self._parts.progress.seconds = self._evaluator.budget.seconds
        self._evaluator.cancel()
        self.record(run)

    def record(self, run: Run) -> None:
        """Add why the search has ended, and its mean scores, to the results."""
        parts, means = self._parts, self._parts.progress.score_means
        tenth, num = max(1, len(means) // 10), counted(parts.progress.num_distinct, "evaluation")
        ends, end = [mean(each) for each in (means[:tenth], means[-tenth:])], parts.search.end or "stopped"
        total = "" if end.startswith(num) else f", {num} in all"
        line = f"search.method={parts.config.search.method}: {end}{total}"
        history, setup = parts.search.history, parts.search.method.setup
        summary = setup.prior.summary(history, parts.config.search.num_initial, has_sampler=parts.sampler.is_used)
        lines = {
            "start": setup.start.line(history) if setup.start else "",
            "inherited": "" if self._inheritance is None else str(self._inheritance),
        }
        taken_over = tuple(TakenOver(**each) for each in summary)
        run.record(search=SearchResults(line, len(means), *ends, taken_over=taken_over, **lines))


def leaders_of(parts: Components, records: Sequence[EvaluationRecord]) -> list[Leader]:
    """Return the rows of evaluations of the search, best first, with the origins of their proposals."""
    proposals = parts.search.history.proposals[::-1]
    words = {each.hash: ORIGINS[each.origin.name.lower()] for each in proposals if each.origin is not None}
    task, candidates = parts.task, [parts.env.terminal_type.from_dict(parse_json(row.graph)) for row in records]
    leaders = []
    for rank, (row, candidate, settings) in enumerate(zip(records, candidates, task.settings(candidates), strict=True)):
        network = task.network(candidate)
        drawing = None if network is None else to_svg(network)
        shown = "" if drawing else settings
        finalist = Finalist(rank, row.score, row.num_parameters, words=words_of(task, candidate), choices=shown)
        leaders.append(Leader(finalist, drawing, words.get(row.hash, ""), row.seconds))
    return leaders


def _report_fallback(step: SearchStep, before: bool, number: int, run: Run) -> bool:
    """Print a line where the use of the surrogate ends or begins again; return whether it has ended."""
    is_fallback = bool(step.metrics.get("fallback", 0.0))
    start = f"step {number}: the surrogate predicts"
    if is_fallback and not before:
        run.logger.print(f"{start} no better than the mean score: mutations and random candidates instead")
    elif before and not is_fallback:
        run.logger.print(f"{start} better than the mean score again: it is used")
    return is_fallback
