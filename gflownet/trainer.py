"""GFNTrainer: the training loop of a run, its checkpoints and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gflownet.components import CERTIFICATE_STREAM, Components
from gflownet.config import to_mapping
from gflownet.data.rollouts import local_rollouts, worker_rollouts
from gflownet.data.source import Rollout
from gflownet.errors import UserError, counted
from gflownet.evaluation.constraints import best_within
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluator
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.final import FinalStage, check_final
from gflownet.evaluation.fingerprint import context_of, report_earlier_versions
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.final_stage import best_tested, final_stage
from gflownet.interrupts import AbandonedError, StopRequest, on_alarm, stop_signals
from gflownet.learning.learner import fit
from gflownet.mdp.policy import PolicyFunction
from gflownet.report.closing import report_run
from gflownet.report.leaders import current_leaders
from gflownet.run.executor_status import ExecutorStatus, simulated_time
from gflownet.run.failures import evaluation_line
from gflownet.run.folder import CERTIFICATE_NAME, CERTIFICATE_STORE_NAME, RunFolder
from gflownet.run.logging import MetricLogger
from gflownet.run.progress import mean
from gflownet.run.quarantine import Quarantine, Reopened, raised_limits
from gflownet.run.view import Limits
from gflownet.run_record import RunRecord, recorded
from gflownet.run_status import Phase, read_status
from gflownet.search_stage import closing_line, completed_scores, sampler_steps, search_steps
from gflownet.startup import start_details
from gflownet.workers.process import get_random_state, set_random_state, stream_seed
from gflownet.workers.transport import make_transport

if TYPE_CHECKING:
    from gflownet.certification import RunCertificate

NUM_REPORTED = 10  # architectures in the closing table and in top_architectures.json, without a final stage


class GFNTrainer(Components):
    """One run: sample architectures, evaluate them, train the policy.

    A subclass may override any of the `build_...` methods.
    """

    _is_abandoned = False  # a signal has ended the last step in its middle
    _raised: Mapping[EvaluationStatus, str] = MappingProxyType({})  # limits larger than before the resume

    def run(self) -> int | None:
        """Train, write the report, and return the number of the signal that stopped the run, None without one.

        Raises:
            UserError: the run folder is in use, holds another run or no checkpoint to resume from, or a file cannot
                be written, for example on a full disk.
        """
        config = self.config
        check_final(config.final, self.task)
        self.scoring_context = context_of(self.task)  # once: the files of the task may change during the run
        with ExitStack() as stack:
            stop = stack.enter_context(stop_signals(ends_process=True))
            folder = stack.enter_context(
                RunFolder(Path(config.log_dir), resume=config.resume, overwrite=config.overwrite_existing_exp)
            )
            self._start(folder)
            store = stack.enter_context(self._open_store(folder))
            executor = stack.enter_context(self.build_executor())
            stop.react = executor.interrupt
            evaluator = self._search_evaluator(store, executor, stop)
            quarantine = Quarantine(folder)
            stack.callback(evaluator.close)
            # Closed after the final report.html, which wandb gets too.
            logger = stack.enter_context(self._open_logger(folder))
            evaluator.on_result = _both(quarantine.add, lambda row: logger.detail(evaluation_line(row)))
            for line in start_details(self):
                logger.detail(line)
            for line in (*self.task.remarks(), self.plan.line()):
                logger.print(line)
            if self.plan.warning:
                logger.warn(self.plan.warning)
            with recorded(
                folder,
                config.report,
                stop=stop,
                report_line=logger.print,
                report_detail=logger.detail,
                plan=asdict(self.plan),
                start_seconds=self.start_seconds,
            ) as record:
                self._search_and_report(folder, store, executor, evaluator, logger, stop, quarantine, record)
        return stop.signal

    def _search_and_report(
        self,
        folder: RunFolder,
        store: EvaluationStore,
        executor: Executor,
        evaluator: Dispatcher,
        logger: MetricLogger,
        stop: StopRequest,
        quarantine: Quarantine,
        record: RunRecord,
    ) -> None:
        """Train, take the final stage, certify, and write the report, also after an error."""
        try:
            with logger.live():
                with on_alarm(executor.interrupt) if self.config.budget.seconds else nullcontext():
                    self._train(folder, logger, evaluator, store, stop, record)
                if stop.signal is None:
                    store.abandon(run=self.run_id)
                if self.halving is not None:
                    logger.print(str(self.halving))
                if executor.simulated_clock is not None:
                    logger.print(simulated_time(evaluator))
                with record.phase(Phase.FINAL):
                    final = final_stage(
                        self,
                        store,
                        executor,
                        stop=stop,
                        report_line=logger.print,
                        report_progress=logger.stage,
                        on_result=evaluator.on_result,
                    )
                with record.phase(Phase.CERTIFICATE):
                    certificate = self._certify(folder, evaluator, logger, stop)
        except Exception as error:
            if self.progress.score_means:  # report the results so far
                with suppress(UserError, OSError):  # raise the first error only
                    self._report(folder, store, executor, logger, stop)
            if isinstance(error, FloatingPointError):
                raise UserError(f"{error}; a smaller opt.learning_rate may help") from error
            raise
        with record.phase(Phase.REPORT):
            write_errors = self._report(folder, store, executor, logger, stop, final=final)
        if quarantine.num:
            logger.print(quarantine.line())
        if certificate is not None:
            from gflownet.report.certificate import print_certificate

            print_certificate(certificate, path=folder.path / CERTIFICATE_NAME, console=logger.console)
        self._print_end(logger, certificate)
        if write_errors:
            raise write_errors[0]

    def fit(self, rollouts: Iterable[Rollout]) -> Iterator[dict[str, float]]:
        """Train on these rollouts, and yield the metrics after each step."""
        steps = fit(
            self.learner,
            rollouts,
            num_steps=self.config.num_training_steps,
            first_step=self.step + 1,
            auxiliary=self.auxiliary,
        )
        for step in steps:
            self.step, rollout = step.number, step.rollout
            log_rewards = rollout.trajectories.log_reward[: rollout.num_fresh]
            progress = self.progress.add(
                rollout.evaluations, other_evaluations=rollout.other_evaluations, log_rewards=log_rewards.tolist()
            )
            yield {**step.metrics, "log_reward_mean": float(log_rewards.mean()), **rollout.metrics, **progress}

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a checkpoint: a resumed run continues exactly."""
        return {
            "run_id": self.run_id,
            "step": self.step,
            "progress": self.progress.state_dict(),
            **self.learner.state_dict(),
            "companions": self.auxiliary.state_dict(),
            "replay": self.replay.state_dict(),
            **({} if self.asynchronous is None else {"asynchronous": self.asynchronous.state_dict()}),
            **({} if self.search is None else {"search": self.search.state_dict()}),
            "random_state": get_random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.run_id = state["run_id"]
        self.step = state["step"]
        self.progress.load_state_dict(state["progress"])
        self.learner.load_state_dict(state)
        self.auxiliary.load_state_dict(state["companions"])
        self.replay.load_state_dict(
            state["replay"], key_of=lambda states, i: self.env.terminal(states, i).canonical_key()
        )
        if self.asynchronous is not None and "asynchronous" in state:
            self.asynchronous.load_state_dict(state["asynchronous"])
        if self.search is not None and "search" in state:
            self.search.load_state_dict(state["search"])
        set_random_state(state["random_state"])

    def _start(self, folder: RunFolder) -> None:
        """Restore the state of a resumed run, or write the first checkpoint of a new one."""
        self.run_id = folder.run_id
        checkpoint = None
        if folder.resumed:
            folder.check_unchanged(self.chosen_config)
            self._check_method(folder)
            checkpoint = folder.last_checkpoint()
            self._raised = raised_limits(folder.started_options.get("evaluation", {}), self.config.evaluation)
        if checkpoint is not None:
            try:
                self.load_state_dict(checkpoint.state)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{checkpoint.path}: expected a state of this version, got another "
                    f"({type(error).__name__}); start a new run with another log_dir"
                ) from error
        folder.write_config(self.chosen_config)
        if checkpoint is None:
            folder.checkpoints.save(self.step, self.state_dict())

    def _check_method(self, folder: RunFolder) -> None:
        """Raise UserError where search.method=auto is another method than at the start of the run."""
        status = read_status(folder.path)
        method = self.plan.method if status is None else status.plan.get("method", self.plan.method)
        if method != self.plan.method:
            raise UserError(
                f"search.method: expected options with which auto is {method}, as the run in {folder.path} was "
                f"started, got {self.plan.method} ({self.plan.reason})"
            )

    def _search_evaluator(self, store: EvaluationStore, executor: Executor, stop: StopRequest) -> Dispatcher:
        """Return the evaluator of the search, with what it has used of its budget."""
        num_evaluated = store.num_evaluations(run=self.run_id)
        if self.halving is not None:
            self.halving.restore(store)
            num_evaluated -= self.halving.num_promoted[self.run_id]  # each has a later row, or none yet
        return self.build_evaluator(
            store, executor, stopped=lambda: stop.signal is not None, num_evaluated=num_evaluated
        )

    def _open_store(self, folder: RunFolder) -> EvaluationStore:
        """Open the store of the run; the claims of its earlier process are free."""
        config = self.config
        if self.step and not config.evaluation.store_url:
            folder.repair_store()
        location = config.evaluation.store_url or folder.store
        store = EvaluationStore(location, context=self.scoring_context)
        report_earlier_versions(store)
        if folder.resumed:
            store.requeue(run=self.run_id)
            self._reopened = Reopened(store, self._raised, run=self.run_id)
            if self.step and store.num_evaluations(run=self.run_id) and not store.count(run=self.run_id):
                self._forget_scores()
        return store

    def _evaluate_again(self, evaluator: Dispatcher, report_line: Callable[[str], None]) -> None:
        """Evaluate failures of earlier, smaller limits; the search method learns from the new results."""
        for line in self._reopened.lines:
            report_line(line)
        candidates = list(map(self.env.terminal_type.from_dict, self._reopened.graphs))
        with suppress(EvaluationStoppedError):  # the next step ends the search
            evaluations = evaluator.evaluate(candidates, step=self.step)
            if self.search is not None:
                self.search.revise(evaluations)

    def _forget_scores(self) -> None:
        """Empty replay and memory, and reset the best score: all scores are of an earlier version of the task."""
        self.replay.load_state_dict({"keys": [], "states": None, "scores": None, "sequences": None})
        self.learner.memory.load_state_dict({"batches": []})
        self.progress.best_score, self.progress.front, self.progress.hypervolume = -math.inf, [], 0.0

    def _open_logger(self, folder: RunFolder) -> MetricLogger:
        config = self.config
        return MetricLogger(
            folder.path,
            num_training_steps=self.num_steps,
            print_every=config.print_every,
            wandb=config.wandb,
            tensorboard=config.tensorboard,
            config=to_mapping(config),
            run=self.run_id,
            resume_step=self.step if folder.resumed else None,
            verbosity=config.console,
            limits=self._limits(),
        )

    def _limits(self) -> Limits:
        """Return the limits of the search and the plan, for the view."""
        plan, budget = self.plan, self.config.budget
        return Limits(
            plan.num_search if budget.evaluations or self.search is not None else 0,
            budget.seconds - plan.final_seconds,
            plan.num_after,
            plan.words(),
        )

    def _train(
        self,
        folder: RunFolder,
        logger: MetricLogger,
        evaluator: Dispatcher,
        store: EvaluationStore,
        stop: StopRequest,
        record: RunRecord,
    ) -> None:
        """Train until the last step, a signal or the end of the budget, with regular checkpoints and one at the end."""
        config, progress, budget = self.config, self.progress, evaluator.budget
        num_before, seconds_before = progress.num_distinct, progress.seconds
        executors, best_score, is_first = ExecutorStatus(evaluator), -math.inf, True

        def watch() -> None:
            logger.show({"seconds": budget.seconds, **executors.metrics()})
            record.refresh()

        evaluator.watch = watch
        if self._raised:
            self._evaluate_again(evaluator, logger.print)
        steps = self._steps(evaluator, logger, stop, record)
        while (metrics := self._next(steps, stop)) is not None:
            for line in progress.new_failures:
                logger.warn(f"step {self.step}: {line}")
            if self.search is None and config.validate_every and self.step % config.validate_every == 0:
                with suppress(EvaluationStoppedError):
                    metrics |= self._validate(evaluator)
            progress.seconds = budget.seconds
            elapsed = progress.seconds - seconds_before  # 0 while no simulated time has passed
            rate = (progress.num_distinct - num_before) / elapsed if elapsed else 0.0
            metrics |= {"evaluations_per_second": rate, "seconds": progress.seconds, **executors.metrics()}
            if self.halving is not None:
                metrics |= self.halving.metrics()
            if progress.best_score > best_score:
                best_score = progress.best_score
                self._name_best(logger, store)
            logger.write(self.step, metrics, progress.samples)
            if is_first and self.task.is_noisy and evaluator.mean_seconds:
                is_first = False
                logger.print(self.plan.time_line(evaluator.mean_seconds, num_evaluated=progress.num_distinct))
            record.refresh()
            if self.step % config.checkpoint_every == 0:
                self._save(folder, logger, stop)
                self._write_leaders(logger, store)
        progress.seconds = budget.seconds
        evaluator.cancel()  # rollouts that workers have prepared ahead
        if self._is_abandoned:
            logger.print(f"step {self.step + 1} is abandoned: a resumed run continues from the last checkpoint")
        else:
            self._save(folder, logger, stop)

    def _next(self, steps: Iterator[dict[str, float]], stop: StopRequest) -> dict[str, float] | None:
        """Return the metrics of the next step; None after the last one, or one that takes too long after a signal."""
        try:
            with stop.abandonable():
                return next(steps, None)
        except AbandonedError:  # somewhere in the step: the state is that of no step
            self._is_abandoned = True
            return None

    def _save(self, folder: RunFolder, logger: MetricLogger, stop: StopRequest) -> None:
        """Write a checkpoint."""
        with stop.completed():
            path = folder.checkpoints.save(self.step, self.state_dict())
        logger.write_checkpoint(path)

    def _name_best(self, logger: MetricLogger, store: EvaluationStore) -> None:
        """Show the best architecture so far in the words of the task."""
        for record in best_within(store, 1, self.task.limits):
            graph = json.loads(record.graph)
            logger.name_best(lambda graph=graph: self.task.words(self.env.terminal_type.from_dict(graph)))

    def _write_leaders(self, logger: MetricLogger, store: EvaluationStore) -> None:
        """Log the best architectures so far."""
        if not logger.has_media:
            return
        records = best_within(store, NUM_REPORTED, self.task.limits)
        draw = partial(current_leaders, task=self.task, from_dict=self.env.terminal_type.from_dict)
        logger.write_leaders([record.hash for record in records], lambda: draw(records))

    def _steps(
        self, evaluator: Dispatcher, logger: MetricLogger, stop: StopRequest, record: RunRecord
    ) -> Iterator[dict[str, float]]:
        """Take the steps of the search, and yield the metrics of each."""
        if self.search is None:
            if self.config.num_workers:
                logger.print(f"starting {counted(self.config.num_workers, 'worker')}")
            with record.phase(Phase.TRAINING), closing(self._rollouts(evaluator)) as rollouts:
                yield from self.fit(self._until_stopped(rollouts, logger, stop))
            return
        with record.phase(Phase.SEARCH):
            yield from search_steps(self, self.search, evaluator, report_line=logger.print, stop=stop)
        if stop.signal is None and self.trains_sampler and len(self.search.history):
            with record.phase(Phase.SAMPLER):
                yield from sampler_steps(self, self.search, report_line=logger.print, stop=stop)

    def _until_stopped(self, rollouts: Iterator[Rollout], logger: MetricLogger, stop: StopRequest) -> Iterator[Rollout]:
        """Yield the rollouts until a signal or the end of the budget."""
        while stop.signal is None:
            replay, random_state = self.replay.state_dict(), get_random_state()
            try:
                rollout = next(rollouts)
            except EvaluationStoppedError as error:  # a resumed run repeats the step
                self.replay.load_state_dict(replay)
                set_random_state(random_state)
                if stop.signal is None:
                    logger.print(f"{error} after step {self.step}")
                return
            yield rollout

    def _rollouts(self, evaluator: Dispatcher) -> Generator[Rollout]:
        """Return the rollouts of the next steps."""
        config, teacher = self.config, self.auxiliary.teacher
        arguments: dict[str, Any] = {
            "policy": self.learner.sampling,
            "evaluator": evaluator,
            "replay": self.replay,
            "first_step": self.step + 1,
            "teacher": None if teacher is None else teacher.policy,
        }
        if self.asynchronous is not None:
            return self.asynchronous.rollouts(num_steps=config.num_training_steps, **arguments)
        if not config.num_workers:
            return local_rollouts(self.source, **arguments)
        transport = make_transport(buffer_size=config.mp_buffer_size, pickle_messages=config.pickle_mp_messages)
        return worker_rollouts(
            self.source, **arguments, num_workers=config.num_workers, transport=transport, config=config.workers
        )

    def _validate(self, evaluator: Evaluator) -> dict[str, float]:
        """Return the mean score of a batch sampled without exploration, and of a greedy one with action values.

        Training is not affected.
        """
        policies: dict[str, PolicyFunction] = {"validation_score_mean": self.learner.sampling}
        if self.auxiliary.action_values is not None:
            greedier = self.auxiliary.action_values.greedier(policies["validation_score_mean"])
            policies["greedy_score_mean"] = greedier
        metrics = {}
        for name, policy in policies.items():
            sampled = self.source.sample_on_policy(self.step, policy=policy)
            _, evaluations = self.source.evaluated(sampled, evaluator, step=self.step)
            metrics[name] = mean([evaluation.score for evaluation in evaluations])
        return metrics

    def _certify(
        self, folder: RunFolder, evaluator: Dispatcher, logger: MetricLogger, stop: StopRequest
    ) -> RunCertificate | None:
        """Write, log and return the certificate of the sampled distribution; None if off or after a signal."""
        config = self.config
        if not config.certify or stop.signal is not None:
            return None
        if self.search is not None and not (self.trains_sampler and len(self.search.history)):
            logger.print(f"certificate: none, search.method={config.search.method} has trained no policy")
            return None
        folder.claim_certificate()
        # Imported here: it takes a second, which runs without a certificate save.
        from gflownet.certification import CertificateStore, Subject, certify
        from gflownet.report.certificate import certificate_metrics, write_certificate

        seed = stream_seed(config.seed, CERTIFICATE_STREAM)
        states = self.replay.sample(config.certify_samples, seed=seed)
        extra_states = None if states is None else states.terminal
        if self.search is not None:
            extra_states = self.search.history.states[: config.certify_samples]
        with EvaluationStore(folder.path / CERTIFICATE_STORE_NAME, context=self.scoring_context) as extra_store:
            combined_store = CertificateStore(evaluator.store, extra_store)
            subject = Subject(
                context=self.context,
                task=self.task,
                policy=self.learner.sampling,
                objective=self.objective,
                trained=self.learner.trained,
                evaluator=self.build_evaluator(
                    combined_store, evaluator.executor, stopped=lambda: stop.signal is not None
                ),
                store=combined_store,
                step=self.step,
                seed=seed,
                complete=None if self.search is None else completed_scores(self.search),
            )
            try:
                with stop.abandonable():
                    certificate = certify(
                        subject,
                        max_states=config.certify_max_states,
                        num_samples=config.certify_samples,
                        extra_states=extra_states,
                        report_stage=logger.print,
                        report_progress=logger.stage,
                        stopped=lambda: stop.signal is not None,
                    )
            except AbandonedError:
                logger.print("certificate: none, interrupted")
                return None
        if certificate is not None:
            run: dict[str, Any] = {"run": self.run_id, "method": config.algo.method, "symmetry": config.algo.symmetry}
            run |= {"seed": config.seed, "step": self.step, "num_distinct": self.progress.num_distinct}
            write_certificate(folder.path / CERTIFICATE_NAME, certificate, run=run)
            logger.summarise(certificate_metrics(certificate))
        return certificate

    def _print_end(self, logger: MetricLogger, certificate: RunCertificate | None) -> None:
        """Print why a search method has ended and whether its sampler has converged."""
        if self.search is None:
            return
        converged = None
        if certificate is not None:
            from gflownet.certification.verdict import has_converged

            converged = all(map(has_converged, certificate.parts))
        logger.print(closing_line(self, self.search, has_converged=converged))

    def _report(
        self,
        folder: RunFolder,
        store: EvaluationStore,
        executor: Executor,
        logger: MetricLogger,
        stop: StopRequest,
        *,
        final: FinalStage | None = None,
    ) -> list[UserError]:
        """Write and print the report; return the errors of files that could not be written."""
        limits = self.task.limits
        if final is None:
            top = best_tested(self, best_within(store, NUM_REPORTED, limits), executor, stop=stop)
        else:
            top = final.top
        write_errors = report_run(
            folder.path,
            top,
            task=self.task,
            terminal_type=self.env.terminal_type,
            score_means=self.progress.score_means,
            errors=self.progress.errors,
            console=logger.console,
            final=final,
            evaluated=best_within(store, store.count(), limits) if self.task.chosen_objectives else (),
            num_successful=store.count(EvaluationStatus.OK),
            spent=(row for row in store if row.run == self.run_id) if self.task.is_noisy else (),
            write=folder.write,
        )
        if not top and self.progress.num_distinct and not store.count(EvaluationStatus.OK):
            raise UserError("every evaluation failed; check that task, environment and evaluation.* fit together")
        return write_errors


def _both(
    first: Callable[[EvaluationRecord], None], second: Callable[[EvaluationRecord], None]
) -> Callable[[EvaluationRecord], None]:
    """Return a function that calls two functions with a row."""

    def call(row: EvaluationRecord) -> None:
        first(row)
        second(row)

    return call
