"""GFNTrainer: one search, built from its config, with its run."""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.config import Config
from gflownet.data.asynchronous import AsynchronousRollouts
from gflownet.data.replay import ReplayBuffer, load_offline
from gflownet.data.sampler import Exploration
from gflownet.data.source import Rollout, SourceOptions, TrajectorySource
from gflownet.errors import UserError
from gflownet.evaluation.budget import Budget
from gflownet.evaluation.claims import Store
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.choice import build_executor, places
from gflownet.evaluation.final import check_final
from gflownet.evaluation.fingerprint import context_of, report_earlier_versions
from gflownet.evaluation.halving import build_halving
from gflownet.evaluation.store import EvaluationRecord, EvaluationStore
from gflownet.evaluation.task import GFNTask
from gflownet.learning.auxiliary import AuxiliaryNetworks, Setup
from gflownet.learning.learner import Learner, LearnerOptions, fit
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, TwoWayPolicy
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OptimizerConfig, num_taught
from gflownet.objectives.max_likelihood import MaxLikelihood
from gflownet.records.status import Phase, read_status
from gflownet.run.closing_stages import CertificateStage, ReportStage
from gflownet.run.extensions import automatic_method, load_extensions, unused_line, validate
from gflownet.run.failures import Quarantine, evaluation_line
from gflownet.run.final_set import kept_weights
from gflownet.run.final_stage import FinalTrainingsStage
from gflownet.run.folder import RunFolder, policy_weights
from gflownet.run.parts import AUXILIARY_STREAM, MEMORY_STREAM, POLICY_STREAM, SEARCH_STREAM, TRAJECTORY_STREAM
from gflownet.run.plan import Plan, plan_of
from gflownet.run.progress import Progress
from gflownet.run.run import Run, open_run
from gflownet.run.search_stage import SearchStage
from gflownet.run.startup import start_details
from gflownet.run.view import Limits
from gflownet.search.config import AUTO, GFLOWNET
from gflownet.search.enumeration import check_space
from gflownet.search.history import History
from gflownet.search.loop import SearchLoop, round_size
from gflownet.search.method import SearchSetup
from gflownet.search.sampler import LIKELIHOOD_RATE, OBJECTIVE_RATE
from gflownet.search.surrogate import Surrogate
from gflownet.training.precision import choose_device
from gflownet.training.random_states import get_random_state, seeded, set_random_state
from gflownet.workers.process import keep_freed_memory, seed_all, set_main_process_device, stream_seed


class GFNTrainer:
    """One search: task, environment, policy, objective, learner, replay buffer and rollout source, and their run.

    A subclass may override any of the `build_...` methods.

    Attributes:
        config: with the search method that search.method=auto stands for; `chosen_config` has `auto`.
        plan: method and trainings of the run.
        scoring_context: what scores depend on, beside the graph.
    """

    def __init__(self, config: Config) -> None:
        """Build all components. Raises ValueError (mostly UserError) with the name of an invalid option."""
        start = time.monotonic()
        validate(config)
        self.config, self.extensions = load_extensions(config)
        config = self.config
        keep_freed_memory()
        torch.set_num_threads(config.num_threads)
        self.device = choose_device(config.device)
        set_main_process_device(self.device)
        self.task = self.build_task()
        self.plan = self._resolve_method()
        config = self.config
        self.halving = build_halving(self.task, config)
        self.context = self.build_context()
        self.env = self.context.env
        if config.cond.limit.metric is not None:
            vocabulary = self.env.vocabulary
            self.task.use_limits(vocabulary.limits, smallest=self.env.smallest_sizes, caps=vocabulary.caps)
        seed_all(stream_seed(config.seed, POLICY_STREAM))
        self.policy = self.build_policy().to(self.device)
        self.objective = self.build_objective().to(self.device)
        self.learner = self.build_learner()
        self.auxiliary = self.build_auxiliary()
        self.replay = ReplayBuffer(config.replay)
        self.source = self.build_source()
        self.asynchronous = self.build_asynchronous()
        self.search = self.build_search()
        self.run_id = uuid.uuid4().hex  # marks rows of a shared store; `run` sets the id of the run folder
        self.step = 0
        self.progress = Progress()
        self.start_seconds = time.monotonic() - start  # `train` adds the imports
        self.default_folder = ""  # log_dir where no option names one: a new run takes the next free one

    def _resolve_method(self) -> Plan:
        """Replace search.method=auto, and return the plan."""
        reason, is_automatic = "", self.config.search.method == AUTO
        if is_automatic:
            config = copy.deepcopy(self.config)
            config.search.method, reason = automatic_method(config, self.task)
            if config.search.method == GFLOWNET:  # a resumed run may have options of a surrogate that it would not use
                config.search.options = config.search.surrogate.options = config.search.acquisition.options = {}
            self.config, self.extensions = load_extensions(config)
        self.chosen_config = copy.deepcopy(self.config)
        if is_automatic:
            self.chosen_config.search.method = AUTO
        return plan_of(self.config, self.task, self.extensions.method, reason=reason)

    @property
    def num_steps(self) -> int:
        """Return the expected number of steps: rounds of the search method and training steps of the policy."""
        if self.search is None:
            return self.config.num_training_steps
        return self.search.num_rounds + self.plan.num_steps + bool(self.plan.num_verified)

    @property
    def trains_sampler(self) -> bool:
        """Return whether a sampler is trained after the search, on predicted scores."""
        return self.search is not None and self.config.search.train_sampler

    def build_task(self) -> GFNTask:
        """Build the task that scores terminal graphs."""
        return self.extensions.task(self.config)

    def build_context(self) -> GraphBuildingEnvContext:
        """Build the context and the environment of the search space."""
        context = self.extensions.context.from_config(
            self.config.env,
            input_sizes=self.task.input_sizes,
            output_sizes=self.task.output_sizes,
            num_cond_dim=self.task.num_cond_dim,
        )
        check_space(context.env)
        context = context.with_layout(self.extensions.policy.layout)
        if self.config.algo.backward_policy == "uniform":
            return context
        if not issubclass(self.extensions.policy, TwoWayPolicy):
            raise UserError(f"algo.backward_policy: expected uniform with model.name={self.config.model.name}")
        return context.with_backward()

    def build_policy(self) -> Policy:
        """Build the policy network."""
        return self.extensions.policy(self.context, self.config.model)

    def build_objective(self) -> Objective:
        """Build the objective."""
        return self.extensions.objective.build(self.context, self.config.algo, load_policy=self._policy_of)

    def _policy_of(self, folder: str, option: str) -> Policy:
        """Load the policy of the finished run in a folder; `option` is named in errors."""
        policy = self.build_policy()
        try:
            policy.load_state_dict(policy_weights(Path(folder), option=option))
        except RuntimeError as error:
            raise UserError(
                f"{option}: expected a run with this env and model, got {folder}, whose policy has other weights"
            ) from error
        return policy

    def build_learner(self) -> Learner:
        """Build the learner: policy and objective with optimiser, schedule and memory."""
        config, algo, replay = self.config, self.config.algo, self.config.replay
        options = LearnerOptions(
            num_steps=config.num_training_steps,
            num_updates=algo.num_updates,
            merge_isomorphic=algo.merge_isomorphic,
            num_remembered=replay.num_batches if replay.use else 0,
            remembered_growth=replay.batch_growth,
            sampling_tau=algo.sampling_tau,
            seed=stream_seed(config.seed, MEMORY_STREAM),
        )
        return Learner(
            self.policy, self.objective, self.context, config=config.opt, options=options, device=self.device
        )

    def build_sampler_learners(self) -> list[tuple[Learner, int]]:
        """Build the learners of the sampler after a search, in order, with their numbers of updates.

        Both train the policy, which gets its first weights again.
        """
        config, options = self.config, self.config.search.sampler
        with seeded(stream_seed(config.seed, POLICY_STREAM) % 2**32):  # of numpy, too
            self.policy, self.objective = self.build_policy().to(self.device), self.build_objective().to(self.device)
        learners = []
        for objective, num, rate in (
            (MaxLikelihood(self.context, config.algo), options.num_likelihood_updates, LIKELIHOOD_RATE),
            (self.objective, options.num_updates, OBJECTIVE_RATE),
        ):
            opt = OptimizerConfig(
                **{**cast(Mapping[str, Any], config.opt), "learning_rate": rate, "schedule": "linear", "warmup": 0}
            )
            updates = LearnerOptions(num_steps=max(num, 1), merge_isomorphic=config.algo.merge_isomorphic)
            learner = Learner(self.policy, objective, self.context, config=opt, options=updates, device=self.device)
            learners.append((learner, num))
        return learners

    def build_auxiliary(self) -> AuxiliaryNetworks:
        """Build the auxiliary networks trained with the policy."""
        config = self.config
        return AuxiliaryNetworks(
            self.build_policy,
            Setup(self.context, config.opt, num_steps=config.num_training_steps, device=self.device),
            algo=config.algo,
            seed=lambda number: stream_seed(config.seed, AUXILIARY_STREAM, number),
        )

    def build_source(self) -> TrajectorySource:
        """Build the source of rollouts."""
        config, algo = self.config, self.config.algo
        options = SourceOptions(
            num_trajectories=algo.num_from_policy,
            num_taught=num_taught(algo),
            exploration=Exploration(algo.train_random_action_prob, algo.sampling_temperature),
            replay=config.replay,
            local_search=config.local_search,
            offline=config.offline,
            scales_rewards=algo.symmetry != "none",
            scores_states=self.objective.needs_state_rewards,
        )
        offline = load_offline(config.offline, self.context, self.task)
        seed = stream_seed(config.seed, TRAJECTORY_STREAM)
        return TrajectorySource(self.context, options, task=self.task, seed=seed, offline=offline)

    def build_asynchronous(self) -> AsynchronousRollouts | None:
        """Build the rollouts of asynchronous training, None for synchronous training."""
        options = self.config.asynchronous
        if not options.max_in_flight or self.extensions.method is not None:
            return None
        return AsynchronousRollouts(
            self.source, max_in_flight=options.max_in_flight, updates_per_reward=options.updates_per_reward
        )

    def build_search(self) -> SearchLoop | None:
        """Build the loop of the search method, None where the policy is trained on the scores."""
        config, options = self.config, self.config.search
        if self.extensions.method is None:
            return None
        num_evaluations = self.plan.num_search
        history, limits = History(self.env), Budget(config.budget)
        size = num_places = places(self.task, config.evaluation)
        if self.extensions.method.uses_surrogate and not self.task.is_cheap:
            size = round_size(num_evaluations, places=num_places)
        setup = SearchSetup(
            context=self.context,
            task=self.task,
            config=options,
            history=history,
            seed=stream_seed(config.seed, SEARCH_STREAM),
            build_learner=self.build_learner_of_new_policy,
            build_surrogate=self.build_surrogate,
            num_evaluations=num_evaluations,
            is_refused=lambda candidate: limits.refusal(self.task, candidate) is not None,
        )
        return SearchLoop(
            self.extensions.method(setup),
            history,
            batch_size=options.batch_size or size,
            max_in_flight=config.asynchronous.max_in_flight,
            num_evaluations=num_evaluations,
            patience=options.patience,
        )

    def build_surrogate(self) -> Surrogate:
        """Build the surrogate of the search method."""
        assert self.extensions.surrogate is not None
        seed = stream_seed(self.config.seed, SEARCH_STREAM)
        return self.extensions.surrogate(self.env, self.config.search.surrogate, seed=seed)

    def build_learner_of_new_policy(self) -> Learner:
        """Build a learner with new weights, for a search method that trains a policy on predictions."""
        policy, objective = self.build_policy().to(self.device), self.build_objective().to(self.device)
        options = LearnerOptions(num_steps=self.config.num_training_steps, num_updates=self.config.algo.num_updates)
        learner = Learner(policy, objective, self.context, config=self.config.opt, options=options, device=self.device)
        learner.on_skip = lambda error, batch: self.learner.on_skip(error, batch)  # steps are skipped by one rule
        return learner

    def build_executor(self) -> Executor:
        """Build the executor of candidate evaluations."""
        return build_executor(self.task, self.config.evaluation)

    def build_evaluator(
        self,
        store: Store,
        executor: Executor,
        *,
        stopped: Callable[[], bool] = lambda: False,
        num_evaluated: int | None = None,
    ) -> Dispatcher:
        """Build the evaluator of sampled graphs.

        Args:
            store: of the results.
            executor: runs the evaluations.
            stopped: returns whether the run should stop.
            num_evaluated: evaluations of the search so far; None: not part of the search, which alone has a budget.
        """
        config, budget = self.config, self.config.budget
        if num_evaluated is None:
            budget = BudgetConfig(parameters=budget.parameters, flops=budget.flops)
        return Dispatcher(
            self.task,
            store,
            executor,
            config=config.evaluation,
            seed=config.seed,
            run=self.run_id,
            budget=budget,
            reserve=None if num_evaluated is None else self.plan.reserve(budget.evaluations),
            num_evaluated=num_evaluated or 0,
            seconds=self.progress.seconds,
            stopped=stopped,
        )

    def run(self) -> int | None:
        """Search, write the report, and return the number of the signal that stopped the run, None without one.

        Raises:
            UserError: the run folder is in use, holds another run or no checkpoint to resume from, or a file cannot
                be written, for example on a full disk.
        """
        config = self.config
        check_final(config.final, self.task)
        self.scoring_context = context_of(self.task)  # once: the files of the task may change during the run
        with open_run(config, default_folder=self.default_folder) as run:
            self._start(run.folder)
            run.store = self._open_store(run)
            evaluator = self._search_evaluator(run)
            quarantine = Quarantine(run.folder)
            # Closed after the final report.html, which wandb gets too.
            self._open_logger(run)

            def on_result(row: EvaluationRecord) -> None:
                quarantine.add(row)
                run.logger.detail(evaluation_line(row))

            evaluator.on_result = on_result
            for line in start_details(self):
                run.logger.detail(line)
            plan_lines = self.plan.objectives_line(), self.plan.line(), unused_line(config)
            for line in filter(None, (*self.task.remarks(), *self.env.remarks(), *plan_lines)):
                run.logger.print(line)
            if self.plan.warning:
                run.logger.warn(self.plan.warning)
            about = (type(self.task).__doc__ or "").strip().partition("\n")[0]
            plan = asdict(self.plan) | {"about": about}
            with run.recorded(config.report, plan=plan, start_seconds=self.start_seconds):
                self._take_stages(run, SearchStage(self, evaluator), evaluator, quarantine)
        return run.stop.signal

    def _take_stages(self, run: Run, search: SearchStage, evaluator: Dispatcher, quarantine: Quarantine) -> None:
        """Search, take the final stage, certify, and write the report, also after an error."""
        final, certificate = FinalTrainingsStage(self, evaluator), CertificateStage(self, evaluator)
        report = ReportStage(self, evaluator, quarantine, final=final, certificate=certificate)
        try:
            with run.logger.live():
                for stage in (search, final, certificate):
                    stage.run(run)
                if not run.is_stopped:
                    run.logger.view.enter(Phase.REPORT)
        except Exception as error:
            if self.progress.score_means and not run.folder.is_lost:  # report the results so far
                with suppress(UserError, OSError):  # raise the first error only
                    report.write(run)
            if isinstance(error, FloatingPointError):
                raise search.skipped.end(run, error, step=self.step) from error
            raise
        report.run(run)

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
        self.replay.load_state_dict(state["replay"])
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
        if checkpoint is not None:
            try:
                self.load_state_dict(checkpoint.state)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{checkpoint.path}: expected a state of this version, got another "
                    f"({type(error).__name__}); start a new run with another log_dir"
                ) from error
        if self.default_folder:
            self.chosen_config.log_dir = self.config.log_dir
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

    def _search_evaluator(self, run: Run) -> Dispatcher:
        """Return the evaluator of the search, with what it has used of its budget."""
        executor = run.open(self.build_executor())
        executor.notify = lambda line: run.logger.print(line)
        run.stop.react = executor.interrupt
        num_evaluated = run.store.num_evaluations(run=self.run_id)
        if self.halving is not None:
            self.halving.restore(run.store)
            num_evaluated -= self.halving.num_promoted[self.run_id]  # each has a later row, or none yet
        evaluator = self.build_evaluator(
            run.store, executor, stopped=lambda: run.is_stopped, num_evaluated=num_evaluated
        )
        evaluator.weights = kept_weights(self, run)
        return run.open(closing(evaluator))

    def _open_store(self, run: Run) -> EvaluationStore:
        """Open the store of the run; the claims of its earlier process are free."""
        config, folder = self.config, run.folder
        if self.step and not config.evaluation.store_url:
            folder.check_store()
        location = config.evaluation.store_url or folder.store
        patience = config.evaluation.store_patience
        store = run.open(EvaluationStore(location, context=self.scoring_context, patience=patience))
        report_earlier_versions(store)
        if not folder.resumed:
            return store
        store.requeue(run=self.run_id)
        if self.step and store.num_evaluations(run=self.run_id) and not store.count(run=self.run_id):
            self._forget_scores()
        return store

    def _forget_scores(self) -> None:
        """Empty replay and memory, and reset the best score: all scores are of an earlier version of the task."""
        self.replay.load_state_dict({"keys": [], "states": None, "scores": None, "sequences": None})
        self.learner.memory.load_state_dict({"batches": []})
        self.progress.best_score, self.progress.front, self.progress.hypervolume = -math.inf, [], 0.0

    def _open_logger(self, run: Run) -> None:
        """Open the logs of the run, with limits, plan and phases of the search for the view."""
        plan, config = self.plan, self.config
        phases = [Phase.TRAINING] if self.search is None else [Phase.SEARCH, *[Phase.SAMPLER] * self.trains_sampler]
        phases += [Phase.FINAL] * bool(plan.num_final) + [Phase.CERTIFICATE] * config.certify + [Phase.REPORT]
        limits = Limits(
            0 if self.search is not None else self.num_steps,
            plan.num_search if config.budget.evaluations or self.search is not None else 0,
            config.budget.seconds - plan.final_seconds,
            plan.num_after,
            plan.num_steps * self.trains_sampler,
            tuple(phases),
        )
        run.open_logs(
            resume_step=self.step if run.folder.resumed else None, tensorboard=config.tensorboard, limits=limits
        )
