"""The search of a run: the policy is trained on scores, or a search method takes rounds, then trains it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import torch

from gflownet.cli.interrupts import on_alarm
from gflownet.data.rollouts import local_rollouts, worker_rollouts
from gflownet.data.sampler import sample_forward
from gflownet.data.source import Rollout
from gflownet.errors import counted
from gflownet.evaluation.config import TemperatureConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import AsynchronousEvaluator, best_within
from gflownet.evaluation.halving import HalvingEvaluator
from gflownet.evaluation.store_rows import EvaluationRecord
from gflownet.learning.learner import OnSkip
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.records.status import Phase
from gflownet.report.architectures import Leader, current_leaders
from gflownet.run.executor_status import ExecutorStatus
from gflownet.run.failures import SkippedSteps, refuse_failures
from gflownet.run.parts import SAMPLER_STREAM, Parts
from gflownet.run.progress import mean
from gflownet.run.run import Run
from gflownet.run.run_log import StepSamples
from gflownet.run.stage import StepStage
from gflownet.search.amortised_search import AmortisedPolicy
from gflownet.search.candidate_model import observed
from gflownet.search.config import ORIGINS
from gflownet.search.loop import SearchLoop, SearchStep
from gflownet.search.proposals import accepted, unknown_mask
from gflownet.search.sampler import SamplerTarget, capped_conditioning, sample_metrics
from gflownet.training.random_states import get_random_state, set_random_state
from gflownet.workers.process import stream_seed
from gflownet.workers.transport import make_transport

# Samples on which the trained sampler is checked, and their random stream.
_NUM_CHECKED, _CHECK = 64, (2,)
NUM_REPORTED = 10  # architectures in the closing table and in top_architectures.json, without a final stage


class SearchStage(StepStage):
    """Search until the last step, a signal or the end of the budget."""

    def __init__(self, parts: Parts, evaluator: Dispatcher) -> None:
        """Take the evaluator of the search."""
        self._parts, self._evaluator = parts, evaluator
        halving = parts.halving
        self._search: AsynchronousEvaluator = evaluator if halving is None else HalvingEvaluator(evaluator, halving)
        self._executors = ExecutorStatus(evaluator)
        self.skipped = SkippedSteps(parts.config.opt)
        self._before = parts.progress.num_distinct, parts.progress.seconds
        self._best_score, self._has_time_line = -math.inf, not parts.task.is_noisy
        self._may_save = True
        self.checkpoint_every = parts.config.checkpoint_every
        # Evaluations after which a single cause of all failures ends the search: the first design of a surrogate.
        self._num_first = min(parts.config.search.num_initial, parts.plan.num_search)

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        return self._parts.step

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the parts."""
        return self._parts.state_dict()

    def run(self, run: Run) -> None:
        """Take the steps of the search."""
        parts, evaluator = self._parts, self._evaluator
        with on_alarm(evaluator.executor.interrupt) if parts.config.budget.seconds else nullcontext():
            super().run(run)
        if not run.is_stopped:
            run.store.abandon(run=parts.run_id)
        if parts.halving is not None:
            run.logger.print(str(parts.halving))

    def steps(self, run: Run) -> Iterator[dict[str, float]]:
        """Take the steps, and yield the metrics of each."""
        parts, evaluator = self._parts, self._evaluator

        def watch() -> None:
            run.logger.view.show({"seconds": evaluator.budget.seconds, **self._executors.metrics()})
            run.refresh()

        evaluator.watch = watch
        parts.learner.on_skip = self._on_skip(run)
        if parts.search is None:
            if parts.config.num_workers:
                run.logger.print(f"starting {counted(parts.config.num_workers, 'worker')}")
            with run.phase(Phase.TRAINING), closing(self._rollouts()) as rollouts:
                yield from parts.fit(self._until_stopped(rollouts, run))
            return
        with run.phase(Phase.SEARCH):
            yield from self._rounds(parts.search, run)
        if not run.is_stopped and parts.trains_sampler and len(observed(parts.search.history)):
            with run.phase(Phase.SAMPLER):
                yield from self._sampler_steps(parts.search, run)

    def write(self, run: Run, metrics: dict[str, float]) -> None:
        """Write the metrics of a step, with its failures and the status of the executor."""
        parts, evaluator, logger, progress = self._parts, self._evaluator, run.logger, self._parts.progress
        config = parts.config
        self.is_sound = self._may_save and self.step != self.skipped.last
        for line in progress.new_failures:
            logger.warn(f"step {self.step}: {line}")
        if parts.search is None and config.validate_every and self.step % config.validate_every == 0:
            with suppress(EvaluationStoppedError):
                metrics |= self._validate()
        progress.seconds = evaluator.budget.seconds
        elapsed = progress.seconds - self._before[1]  # 0 where a resumed run has submitted nothing yet
        rate = (progress.num_distinct - self._before[0]) / elapsed if elapsed else 0.0
        metrics["seconds"] = progress.seconds
        if "score_mean" in metrics:  # a training step of the policy after a search evaluates nothing
            metrics |= {"evaluations_per_second": rate, **self._executors.metrics()}
        if parts.halving is not None:
            metrics |= parts.halving.metrics()
        if progress.best_score > self._best_score:
            self._best_score = progress.best_score
            self._name_best(run)
        logger.write(self.step, metrics, progress.samples)
        if len(progress.errors) == 1 and progress.errors.total() == progress.num_distinct >= self._num_first:
            refuse_failures(run.store, run=parts.run_id, is_early=True)
        if not self._has_time_line and evaluator.mean_seconds:
            self._has_time_line = True
            logger.print(parts.plan.time_line(evaluator.mean_seconds, num_evaluated=progress.num_distinct))
        if self.step % self.checkpoint_every == 0:
            self._write_leaders(run)

    def finish(self, run: Run, *, is_abandoned: bool) -> None:
        """Note the used time, and cancel rollouts that workers have prepared ahead."""
        self._parts.progress.seconds = self._evaluator.budget.seconds
        self._evaluator.cancel()

    def _on_skip(self, run: Run) -> OnSkip:
        return lambda error, batch: self.skipped.add(run, self.step + 1, error, batch)

    def _name_best(self, run: Run) -> None:
        """Show the best architecture so far in the words of the task."""
        task, from_dict = self._parts.task, self._parts.env.terminal_type.from_dict
        for record in best_within(run.store, 1, task.limits):
            graph = json.loads(record.graph)
            run.logger.name_best(lambda graph=graph: task.words(from_dict(graph)))

    def _write_leaders(self, run: Run) -> None:
        """Log the best architectures so far."""
        if not run.logger.has_media:
            return
        records = best_within(run.store, NUM_REPORTED, self._parts.task.limits)
        run.logger.write_leaders([record.hash for record in records], lambda: leaders_of(self._parts, records))

    def _until_stopped(self, rollouts: Iterator[Rollout], run: Run) -> Iterator[Rollout]:
        """Yield the rollouts until a signal or the end of the budget."""
        while not run.is_stopped:
            replay, random_state = self._parts.replay.state_dict(), get_random_state()
            try:
                rollout = next(rollouts)
            except EvaluationStoppedError as error:  # a resumed run repeats the step
                self._parts.replay.load_state_dict(replay)
                set_random_state(random_state)
                if not run.is_stopped:
                    run.logger.print(f"{error} after step {self.step}")
                return
            self.skipped.batch = rollout.trajectories
            yield rollout

    def _rollouts(self) -> Generator[Rollout]:
        """Return the rollouts of the next steps."""
        parts, config, teacher = self._parts, self._parts.config, self._parts.auxiliary.teacher
        arguments: dict[str, Any] = {
            "policy": parts.learner.sampling,
            "evaluator": self._search,
            "replay": parts.replay,
            "first_step": self.step + 1,
            "teacher": None if teacher is None else teacher.policy,
        }
        if parts.asynchronous is not None:
            return parts.asynchronous.rollouts(num_steps=config.num_training_steps, **arguments)
        if not config.num_workers:
            return local_rollouts(parts.source, **arguments)
        transport = make_transport(buffer_size=config.mp_buffer_size, pickle_messages=config.pickle_mp_messages)
        return worker_rollouts(
            parts.source, **arguments, num_workers=config.num_workers, transport=transport, config=config.workers
        )

    def _validate(self) -> dict[str, float]:
        """Return the mean score of a batch sampled without exploration, and of a greedy one with action values.

        Training is not affected.
        """
        parts = self._parts
        policies: dict[str, PolicyFunction] = {"validation_score_mean": parts.learner.sampling}
        if parts.auxiliary.action_values is not None:
            greedier = parts.auxiliary.action_values.greedier(policies["validation_score_mean"])
            policies["greedy_score_mean"] = greedier
        metrics = {}
        for name, policy in policies.items():
            sampled = parts.source.sample_on_policy(self.step, policy=policy)
            _, evaluations = parts.source.evaluated(sampled, self._search, step=self.step)
            metrics[name] = mean([evaluation.score for evaluation in evaluations])
        return metrics

    def _rounds(self, search: SearchLoop, run: Run) -> Iterator[dict[str, float]]:
        """Take the remaining rounds of a search method, and yield the metrics of each."""
        parts, was_fallback = self._parts, False
        with closing(search.steps(self._search)) as steps:
            while not run.is_stopped and not search.end:
                try:
                    step = next(steps, None)
                except EvaluationStoppedError as error:  # a resumed run repeats the round
                    if not run.is_stopped:
                        search.end = str(error)
                        break
                    return
                if step is None:
                    break
                parts.step += 1
                was_fallback = _report_fallback(
                    step, was_fallback, lambda text: run.logger.print(f"step {parts.step}: {text}")
                )
                yield parts.progress.add(step.evaluations) | step.metrics
        if search.end:
            run.logger.print(f"the search ends after step {parts.step}: {search.end}")

    def _sampler_steps(self, search: SearchLoop, run: Run) -> Iterator[dict[str, float]]:
        """Train the sampler on predicted scores unless it has learned from all evaluations, then evaluate samples.

        An interrupted training is repeated by a resumed run.
        """
        parts, view, first, num = self._parts, run.logger.view, self._parts.step, self._parts.plan.num_steps
        if not search.is_sampler_trained:
            run.logger.print(f"the sampler is trained on predictions from {counted(len(search.history), 'evaluation')}")
            view.stage(Phase.SAMPLER, 0, num)
            self._may_save = False
            for metrics in sampler_training(parts, on_skip=self._on_skip(run)):
                parts.step += 1
                view.stage(Phase.SAMPLER, parts.step - first, num)
                yield metrics
                if run.is_stopped:
                    parts.step = first
                    return
            self._may_save = True
        states = samples_to_verify(parts)
        if not len(states):
            return
        candidates = [parts.env.terminal(states, index) for index in range(len(states))]
        try:
            step = search.verify(states, self._search.evaluate(candidates, step=parts.step + 1))
        except EvaluationStoppedError as error:
            run.logger.print(f"{error} before the samples of the sampler were evaluated")
            return
        parts.step += 1
        yield parts.progress.add(step.evaluations) | step.metrics


def leaders_of(parts: Parts, records: Sequence[EvaluationRecord]) -> list[Leader]:
    """Return the rows of evaluations of the search, best first, with the origins of their proposals."""
    proposals = [] if parts.search is None else parts.search.history.proposals
    words = {each.hash: ORIGINS[each.origin.name.lower()] for each in proposals[::-1] if each.origin is not None}
    from_dict = parts.env.terminal_type.from_dict
    return current_leaders(records, task=parts.task, from_dict=from_dict, origins=words)


def sampler_training(parts: Parts, *, on_skip: OnSkip) -> Iterator[dict[str, float]]:
    """Train the policy of a run on predicted scores, from its first weights, and yield the metrics of each update."""
    search, config = parts.search, parts.config
    assert search is not None
    search.num_trained_on, search.scale = 0, None

    def generator(*stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(config.seed, SAMPLER_STREAM, *stream))

    chooses_beta = dict(cast(Mapping[str, Any], config.cond.temperature)) == asdict(TemperatureConfig())
    parts.progress.samples = StepSamples()
    target = SamplerTarget(search.method.setup, search.score_model(), chooses_beta=chooses_beta, generator=generator())
    for phase, (learner, num) in enumerate(parts.build_sampler_learners()):
        learner.on_skip = on_skip
        policy, sampled, of_samples = AmortisedPolicy(parts.context, learner), None, dict[str, float]()
        for metrics in policy.train(num, target, partial(generator, phase)):
            if policy.sampled is not None and policy.sampled is not sampled:
                sampled = policy.sampled
                of_samples = sample_metrics(policy, target)
                parts.progress.samples = StepSamples.of(log_rewards=sampled.log_reward.tolist())
            if metrics and learner.objective.imitates:
                yield {f"likelihood_{name}": value for name, value in metrics.items()}
            elif metrics:
                yield {**metrics, **of_samples}
            if metrics:
                parts.progress.samples = StepSamples()
    parts.learner = parts.build_learner()
    search.num_trained_on, search.scale = len(search.history), target.scale


def samples_to_verify(parts: Parts) -> GraphStates:
    """Return new samples of the trained sampler, as many as the plan has and are not evaluated yet."""
    search = parts.search
    assert search is not None
    num = parts.plan.num_verified - len(search.verified)
    states = check_samples(parts).terminal
    new = unknown_mask(search.history, states).nonzero().squeeze(1)
    return states[accepted(states, new, max(num, 0), search.method.setup.is_refused_at)]


def check_samples(parts: Parts, **fixed: Any) -> TrajectoryBatch:
    """Return the samples of the trained sampler that are checked, without exploration; some conditions are fixed."""
    generator = torch.Generator().manual_seed(stream_seed(parts.config.seed, SAMPLER_STREAM, *_CHECK))
    conditioning = capped_conditioning(parts.task, parts.env, _NUM_CHECKED, generator, caps={}, **fixed)
    return sample_forward(parts.context, parts.learner.sampling, conditioning=conditioning, generator=generator)


def closing_line(parts: Parts, search: SearchLoop) -> str:
    """Return why the search has ended."""
    end, num = search.end or "stopped", search.history.num_new
    total = "" if end.startswith(counted(num, "evaluation")) else f", {counted(num, 'evaluation')} in all"
    return f"search.method={parts.config.search.method}: {end}{total}"


def _report_fallback(step: SearchStep, before: bool, report_line: Callable[[str], None]) -> bool:
    """Print a line where the use of the surrogate ends or begins again; return whether it has ended."""
    is_fallback = bool(step.metrics.get("fallback", 0.0))
    if is_fallback and not before:
        report_line("the surrogate predicts no better than the mean score: mutations and random candidates instead")
    elif before and not is_fallback:
        report_line("the surrogate predicts better than the mean score again: it is used")
    return is_fallback
