"""GFNTrainer: one search, built from its config, with its run."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict

import torch

from gflownet.config import Config
from gflownet.errors import UserError, counted, summary_lines
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.final import check_final
from gflownet.evaluation.inheritance import is_other_training
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.evaluation.store.fingerprint import context_of, report_earlier_versions
from gflownet.plugins import load_class
from gflownet.records.status import Phase, read_status
from gflownet.run.closing_stages import certify_run, report_run, show_results
from gflownet.run.components import Builder, Components, is_importable, name_of
from gflownet.run.extensions import unused_line
from gflownet.run.failures import Quarantine, evaluation_line
from gflownet.run.final_set import kept_weights
from gflownet.run.final_stage import FinalTrainingsStage
from gflownet.run.folder import DATA_NAME, RunFolder
from gflownet.run.run import Run, open_run
from gflownet.run.search_stage import SearchStage
from gflownet.run.view import PlannedWork

_STORE_PATIENCE = 300.0  # seconds for which a run waits for a PostgreSQL server that went away


class GFNTrainer(Builder):
    """One search with its run. A subclass may override any of the `build_...` methods.

    Its class, and that of a task which `build_task` returns, are options of the run: it is resumed with them.
    """

    def __init__(self, config: Config) -> None:
        """Build all components. Raises ValueError (mostly UserError) with the name of an invalid option."""
        super().__init__(config)
        self.chosen_config.trainer = "" if type(self) is GFNTrainer else name_of(type(self))

    def run(self) -> int | None:
        """Search, write the report, and return the number of the signal that stopped the run, None without one.

        Raises:
            UserError: the run folder is in use, holds another run or no checkpoint to resume from, or a file cannot
                be written, for example on a full disk.
        """
        config = self.config
        check_final(config.final, self.task)
        with open_run(config, default_folder=self.default_folder) as run:
            self._start(run.folder)
            run.store = self._open_store(run)
            shared = self.config, self.plan, self.task, self.context, self.search, self.sampler, self.progress
            parts = Components(*shared, self.run_id, self.build_evaluator)
            evaluator = self._search_evaluator(run, parts)
            quarantine = Quarantine(run.folder)
            # Closed after the final report.html, which wandb gets too.
            self._open_logger(run)

            def on_result(row: EvaluationRecord) -> None:
                quarantine.add(row)
                run.logger.detail(evaluation_line(row))

            evaluator.on_result = on_result
            for line in self._details():
                run.logger.detail(line)
            remarks = *summary_lines(self.task.summary), *self.task.remarks(), *self.env.remarks()
            plan_lines = self.plan.objectives_line(), self.plan.line(), unused_line(config)
            for line in filter(None, (*remarks, *plan_lines)):
                run.logger.print(line)
            if self.plan.warning:
                run.logger.warn(self.plan.warning)
            about = (type(self.task).__doc__ or "").strip().partition("\n")[0]
            plan = asdict(self.plan) | {"about": about}
            with run.recorded(config.report, plan=plan, start_seconds=self.start_seconds):
                self._take_stages(run, parts, evaluator, quarantine)
        return run.stop.signal

    def _details(self) -> Iterator[str]:
        """Yield the details of a run that starts: versions, device, and the size of its components."""
        config, num_parameters = self.config, sum(weight.numel() for weight in self.policy.parameters())
        versions = f"python {platform.python_version()}, torch {torch.__version__}"
        yield f"start-up: {versions}, {self.device} with {torch.get_num_threads()} threads"
        networks = f"policy {config.model.name} with {counted(num_parameters, 'parameter')}"
        yield (
            f"start-up: task {config.task}, environment {config.env.name}, {networks}, objective {config.algo.method}, "
            f"search method {config.search.method}"
        )
        workers = counted(config.num_workers, "worker")
        yield f"start-up: executor {config.evaluation.executor}, {workers}, seed {config.seed}"
        step, command = f"step {self.progress.step} of {self._num_steps}", " ".join(sys.argv)
        yield f"start-up: {step}, run {self.run_id}, command {command}"

    def _take_stages(self, run: Run, parts: Components, evaluator: Dispatcher, quarantine: Quarantine) -> None:
        """Search, take the final stage, certify, and write the report, also after an error."""
        final = FinalTrainingsStage(parts, evaluator)
        search = SearchStage(
            parts, evaluator, final, halving=self.halving, inheritance=self.inheritance, state_dict=self.state_dict
        )
        try:
            with run.logger.live():
                self.learner.on_skip = lambda *skipped: search.skipped.add(run, parts.step + 1, *skipped)
                search.run(run)
                final.run(run)
                certificate = certify_run(run, parts, evaluator, learner=self.learner, replay=self.replay)
                if not run.is_stopped:
                    run.logger.view.enter(Phase.REPORT)
        except Exception as error:
            if self.progress.score_means and not run.folder.is_lost:  # report the results so far
                with suppress(UserError, OSError):  # raise the first error only
                    search.record(run)
                    final.write(run)
                    show_results(run, parts, final.records)
            if isinstance(error, FloatingPointError):
                raise search.skipped.end(run, error, step=parts.step, batch=self.learner.batch) from error
            raise
        report_run(run, parts, quarantine, final, certificate)

    def _start(self, folder: RunFolder) -> None:
        """Restore the state of a resumed run, or write the first checkpoint of a new one."""
        self.run_id = folder.run_id
        checkpoint = None
        if folder.resumed:
            folder.check_unchanged(self.chosen_config)
            status = read_status(folder.path)
            method = self.plan.method if status is None else status.plan.get("method", self.plan.method)
            if method != self.plan.method:
                raise UserError(
                    f"search.method: expected options with which auto is {method}, as the run in {folder.path} was "
                    f"started, got {self.plan.method} ({self.plan.reason})"
                )
            checkpoint = folder.last_checkpoint()
        if checkpoint is not None:
            self.restore(checkpoint)
        # A new run reads the files that its options name, before the first file in its folder.
        state = self.state_dict() if checkpoint is None else None
        if self.default_folder:
            self.chosen_config.log_dir = self.config.log_dir
        folder.write_config(self.chosen_config)
        if self.task.summary:
            folder.write(folder.path / DATA_NAME, "".join(f"{line}\n" for line in self.task.summary))
        if state is not None:
            folder.checkpoints.save(self.progress.step, state)

    def _search_evaluator(self, run: Run, parts: Components) -> Dispatcher:
        """Return the evaluator of the search, with what it has used of its budget."""
        executor = run.open(self.build_executor())
        executor.notify = lambda line: run.logger.print(line)
        run.stop.react = executor.interrupt
        if not run.folder.resumed:  # a resumed run may have nothing left to evaluate
            executor.start()
        num_evaluated = run.store.num_evaluations(run=self.run_id)
        if self.halving is not None:
            self.halving.restore(run.store)
            num_evaluated -= self.halving.num_promoted[self.run_id]  # each has a later row, or none yet
        elif self.inheritance is not None:
            num_evaluated -= sum(map(is_other_training, run.store.of_run(self.run_id)))
        evaluator = self.build_evaluator(
            run.store, executor, stopped=lambda: run.is_stopped, num_evaluated=num_evaluated
        )
        evaluator.weights = kept_weights(parts, run)
        return run.open(closing(evaluator))

    def _open_store(self, run: Run) -> EvaluationStore:
        """Open the store of the run; the claims of its earlier process are free."""
        config, folder = self.config, run.folder
        is_own = self.progress.step > 0 and not config.evaluation.store_url
        rows = folder.lost_rows(self.env.terminal_type.from_dict) if is_own else []
        location = config.evaluation.store_url or folder.store
        store = run.open(EvaluationStore(location, context=context_of(self.task), patience=_STORE_PATIENCE))
        store.add(rows)
        report_earlier_versions(store)
        if not folder.resumed:
            return store
        store.requeue(run=self.run_id)
        if self.progress.step and store.num_evaluations(run=self.run_id) and not store.count(run=self.run_id):
            # All scores are of an earlier version of the task.
            self.replay.load_state_dict({"keys": [], "states": None, "scores": None, "sequences": None})
            self.learner.memory.load_state_dict({"batches": []})
            self.progress.best_score, self.progress.front, self.progress.hypervolume = -math.inf, [], 0.0
        return store

    @property
    def _num_steps(self) -> int:
        """The expected number of steps: rounds of the search method and training steps of the policy."""
        steps_after = self.plan.num_steps + bool(self.plan.num_verified) if self.sampler.is_used else 0
        return self.search.num_rounds + steps_after

    def _open_logger(self, run: Run) -> None:
        """Open the logs of the run, with plan, work and phases of the search for the view."""
        plan, config, trains_policy = self.plan, self.config, self.search.method.trains_policy
        phases = [Phase.TRAINING if trains_policy else Phase.SEARCH, *[Phase.SAMPLER] * self.sampler.is_used]
        phases += [Phase.FINAL] * bool(plan.num_final) + [Phase.CERTIFICATE] * config.certify + [Phase.REPORT]
        planned = PlannedWork(
            self._num_steps if trains_policy else 0,
            plan.num_search if config.budget.evaluations or not trains_policy else 0,
            config.budget.seconds - plan.final_seconds,
            plan.num_after,
            plan.num_steps * self.sampler.is_used,
            tuple(phases),
        )
        run.open_logs(
            resume_step=self.progress.step if run.folder.resumed else None,
            tensorboard=config.tensorboard,
            planned=planned,
        )


def build_trainer(config: Config) -> GFNTrainer:
    """Return the trainer of a config, of the class that it names.

    Raises:
        ValueError: as `GFNTrainer`; a class that cannot be imported.
    """
    if not config.trainer:
        return GFNTrainer(config)
    if not is_importable(config.trainer):
        raise UserError(
            f"trainer: expected a class in a module that can be imported, got {config.trainer}; resume the run "
            "from the program that defines it"
        )
    return load_class("trainer", config.trainer, {}, contract=GFNTrainer)(config)
