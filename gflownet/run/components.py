"""Builder of a search from its config, and the components that the stages of its run share."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.config import Config, copied, to_mapping, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.budget import Budget, Reserve
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.choice import build_executor
from gflownet.evaluation.halving import build_halving
from gflownet.evaluation.inheritance import build_inheritance
from gflownet.evaluation.store.claims import Store
from gflownet.evaluation.task import GFNTask
from gflownet.learning.auxiliary import AuxiliaryNetworks, Setup
from gflownet.learning.learner import Learner, LearnerOptions, OnSkip
from gflownet.learning.replay import ReplayBuffer, load_offline
from gflownet.learning.rollouts import worker_samples
from gflownet.learning.sampler import Exploration
from gflownet.learning.source import SourceOptions, TrajectorySource
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy, TwoWayPolicy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OptimizerConfig, num_taught
from gflownet.objectives.max_likelihood import MaxLikelihood
from gflownet.options import leaves
from gflownet.plugins import is_module_class
from gflownet.records.marker import read_marker
from gflownet.run.checkpoint import Checkpoint
from gflownet.run.extensions import SAMPLER_OPTIMISER, automatic_method, load_extensions, validate
from gflownet.run.folder import last_checkpoint
from gflownet.run.plan import RunPlan, plan_of, sampler_updates
from gflownet.run.progress import Progress
from gflownet.search.config import AUTO, GFLOWNET
from gflownet.search.history import History
from gflownet.search.loop import LoopOptions, SearchLoop, round_size
from gflownet.search.method import PolicyTraining, SearchSetup
from gflownet.search.prior import Prior, read_prior
from gflownet.search.proposals import check_space
from gflownet.search.sampler import LIKELIHOOD_RATE, OBJECTIVE_RATE, Sampler
from gflownet.search.start import Start, read_start
from gflownet.search.surrogate import Surrogate
from gflownet.training.precision import choose_device
from gflownet.training.random_states import get_random_state, seeded, set_random_state
from gflownet.workers.process import Stream, keep_freed_memory, seed_all, set_main_process_device, stream_seed
from gflownet.workers.transport import make_transport

_NUM_TIMED = 16  # random architectures whose latency is measured at the start
_MOST_NODES = 100  # of a network from which a search starts
_ROUNDING = 1e-9  # of 1 / updates_per_reward


@dataclass(frozen=True)
class Components:
    """What the stages of a search share."""

    config: Config
    plan: RunPlan
    task: GFNTask
    context: GraphBuildingEnvContext
    search: SearchLoop
    sampler: Sampler  # trained after a search of another method than the policy
    progress: Progress
    run_id: str
    build_evaluator: Callable[..., Dispatcher]  # see `Builder.build_evaluator`

    @property
    def env(self) -> Environment:
        """Return the environment."""
        return self.context.env

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        return self.progress.step


class Builder:
    """Builds task, environment, policy, learner, replay buffer, search loop and sampler of a run; saves their state.

    Attributes:
        config: with the search method that search.method=auto stands for; `chosen_config` has `auto`.
        plan: method and trainings of the run.
        search: the loop over the search method, which may train the policy.
        sampler: trains the policy after a search of another method.
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
        self._name_task()
        self.plan = self._resolve_method()
        config = self.config
        self.halving = build_halving(self.task, config)
        self.context = self.build_context()
        self.env = self.context.env
        if config.cond.limit.metric is not None:
            vocabulary = self.env.vocabulary
            self.task.use_limits(vocabulary.limits, smallest=self.env.smallest_sizes, caps=vocabulary.caps)
        seed_all(stream_seed(config.seed, Stream.POLICY))
        self.policy, self.objective = self._networks()
        self.learner = self.build_learner()
        self.auxiliary = self.build_auxiliary()
        self.replay = ReplayBuffer(config.replay)
        self.source = self.build_source()
        self.inheritance = build_inheritance(
            self.task,
            config,
            candidate_type=self.env.terminal_type,
            uses_surrogate=self.extensions.method.uses_surrogate,
        )
        self.search = self.build_search()
        if isinstance(self.task, TensorTask) and self.task.lacks_target:
            states = self.search.method.setup.random_draws(Stream.LATENCY)(_NUM_TIMED, torch.Generator())
            target = self.task.target_latency_of(self.env.terminal(states, index) for index in range(len(states)))
            for each in (self.config, self.chosen_config):  # a resumed run has the same
                each.evaluation.target_latency = target
        self.sampler = self.build_sampler()
        self.run_id = uuid.uuid4().hex  # marks rows of a shared store; `run` sets the id of the run folder
        self.progress = Progress()
        self.start_seconds = time.monotonic() - start  # `train` adds the imports
        self.default_folder = ""  # log_dir where no option names one: a new run takes the next free one

    def _name_task(self) -> None:
        """Name the class of the task in the config where `build_task` has returned another one than the option."""
        config, kind = self.config, type(self.task)
        if kind is self.extensions.task or not is_importable(name_of(kind)):
            return
        config.log_dir, config.task = str(config.log_dir), name_of(kind)
        if kind.Config is not self.extensions.task.Config:
            config.task_options = {}
            config.task_options = with_task_options(config, kind.Config).task_options

    def _resolve_method(self) -> RunPlan:
        """Replace search.method=auto, and return the plan."""
        reason, is_automatic = "", self.config.search.method == AUTO
        if is_automatic:
            config = copied(self.config)
            config.search.method, reason = automatic_method(config, self.task)
            if config.search.method == GFLOWNET:  # a resumed run may have options of a surrogate that it would not use
                config.search.options = config.search.surrogate.options = {}
            self.config, self.extensions = load_extensions(config)
        self.chosen_config = copied(self.config)
        if is_automatic:
            self.chosen_config.search.method = AUTO
        return plan_of(self.config, self.task, self.extensions.method, reason=reason)

    def build_task(self) -> GFNTask:
        """Build the task that scores terminal graphs."""
        return self.extensions.task(self.config)

    def build_context(self) -> GraphBuildingEnvContext:
        """Build the context and the environment of the search space."""
        context = self._context_of(self.config.env)
        check_space(context.env)
        context = context.with_layout(self.extensions.policy.layout)
        if self.config.algo.backward_policy == "uniform":
            return context
        if not issubclass(self.extensions.policy, TwoWayPolicy):
            raise UserError(f"algo.backward_policy: expected uniform with model.name={self.config.model.name}")
        return context.with_backward()

    def _context_of(self, env: Any) -> GraphBuildingEnvContext:
        """Return the context of options of an environment, for the data of the task."""
        task = self.task
        sizes = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
        return self.extensions.context.from_config(env, **sizes, num_cond_dim=task.num_cond_dim)

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
            policy.load_state_dict(last_checkpoint(Path(folder), option=option).state["policy"])
        except RuntimeError as error:
            raise UserError(
                f"{option}: expected a run with this env and model, got {folder}, whose policy has other weights"
            ) from error
        return policy

    def _policy_of_earlier(self, folder: Path) -> Mapping[str, torch.Tensor] | None:
        """Return the trained policy of an earlier run with this space, but for caps, and this model; None without."""
        try:
            marker, state = read_marker(folder), last_checkpoint(folder, option="search.prior").state
            is_trained = state["sampler"]["num_trained_on"] > 0 or state["schedule"]["last_epoch"] > 0
            weights = {name: (value, value.shape) for name, value in state["policy"].items()}
        except (UserError, LookupError, TypeError, AttributeError):
            return None
        is_alike = marker is not None and _shape_options(marker.config) == _shape_options(to_mapping(self.config))
        is_alike &= {name: shape for name, (_, shape) in weights.items()} == {
            name: value.shape for name, value in self.policy.state_dict().items()
        }
        return {name: value for name, (value, _) in weights.items()} if is_trained and is_alike else None

    def build_learner(self) -> Learner:
        """Build the learner: policy and objective with optimiser, schedule and memory."""
        config, algo, replay = self.config, self.config.algo, self.config.replay
        options = LearnerOptions(
            num_steps=config.num_training_steps,
            num_updates=algo.num_updates,
            merge_isomorphic=algo.merge_isomorphic,
            num_remembered=replay.num_batches if replay.use else 0,
            sampling_tau=algo.sampling_tau,
            seed=stream_seed(config.seed, Stream.MEMORY),
        )
        return self._learner(self.policy, self.objective, options)

    def build_learner_of_new_policy(self) -> Learner:
        """Build a learner with new weights, for a search method that trains a policy on predictions."""
        config = self.config
        options = LearnerOptions(num_steps=config.num_training_steps, num_updates=config.algo.num_updates)
        return self._learner(*self._networks(), options, on_skip=lambda *skipped: self.learner.on_skip(*skipped))

    def build_sampler_learners(self) -> Iterator[tuple[Learner, int]]:
        """Yield the learners of the sampler after a search, in order, with their numbers of updates.

        Both train one policy, which begins with the first weights of the run's, or with those of an earlier run.
        """
        config, plan = self.config, self.plan
        num_likelihood, num_updates = sampler_updates(config.search.sampler, plan.num_search + plan.num_verified)
        with seeded(stream_seed(config.seed, Stream.POLICY) % 2**32):  # of numpy, too
            policy, objective = self._networks()
        if (earlier := self.search.method.setup.prior.policy) is not None:
            policy.load_state_dict(earlier)
        for each, num, rate in (
            (MaxLikelihood(self.context, config.algo), num_likelihood, LIKELIHOOD_RATE),
            (objective, num_updates, OBJECTIVE_RATE),
        ):
            fixed = SAMPLER_OPTIMISER | {"learning_rate": rate}
            opt = OptimizerConfig(**{**cast(Mapping[str, Any], config.opt), **fixed})
            options = LearnerOptions(num_steps=max(num, 1), merge_isomorphic=config.algo.merge_isomorphic)
            yield self._learner(policy, each, options, opt=opt, on_skip=self.learner.on_skip), num

    def _networks(self) -> tuple[Policy, Objective]:
        """Return a policy with new weights, and its objective."""
        return self.build_policy().to(self.device), self.build_objective().to(self.device)

    def _learner(
        self,
        policy: Policy,
        objective: Objective,
        options: LearnerOptions,
        *,
        opt: OptimizerConfig | None = None,
        on_skip: OnSkip | None = None,
    ) -> Learner:
        config = self.config.opt if opt is None else opt
        learner = Learner(policy, objective, self.context, config=config, options=options, device=self.device)
        learner.on_skip = on_skip or learner.on_skip
        return learner

    def build_auxiliary(self) -> AuxiliaryNetworks:
        """Build the auxiliary networks trained with the policy."""
        config = self.config
        return AuxiliaryNetworks(
            self.build_policy,
            Setup(self.context, config.opt, num_steps=config.num_training_steps, device=self.device),
            algo=config.algo,
            seed=lambda number: stream_seed(config.seed, Stream.AUXILIARY, number),
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
            scores_states=self.objective.needs_state_rewards,
        )
        offline = load_offline(config.offline, self.context, self.task)
        seed = stream_seed(config.seed, Stream.TRAJECTORIES)
        return TrajectorySource(self.context, options, task=self.task, seed=seed, offline=offline)

    def build_search(self) -> SearchLoop:
        """Build the loop over the search method."""
        config = self.config
        limits = Budget(config.budget)
        if config.search.prior and not self.extensions.method.uses_surrogate:
            got = f"search.method={config.search.method}"
            raise UserError(f"search.prior: expected a search method with a surrogate, got {got}")
        if config.env.start and not self.extensions.method.uses_surrogate:
            expected = "expected a search method with a first design, such as search.method=surrogate"
            raise UserError(f"env.start: {expected}, got search.method={config.search.method}")
        setup = SearchSetup(
            context=self.context,
            task=self.task,
            config=config.search,
            history=History(self.env),
            seed=stream_seed(config.seed, Stream.SEARCH),
            build_learner=self.build_learner_of_new_policy,
            build_surrogate=self.build_surrogate,
            build_training=self.build_training,
            num_evaluations=self.plan.num_search,
            prior=Prior(
                self.env, lambda: read_prior(config.search.prior, self.env, self.task, self._policy_of_earlier)
            ),
            is_refused=lambda candidate: limits.refusal(self.task, candidate) is not None,
            start=Start(self.env, read=lambda: read_start(config.env.start, self.env), widened=self._env_without_caps),
            **({} if self.inheritance is None else {"estimates": self.inheritance.estimates}),
        )
        return SearchLoop(self.extensions.method(setup), self.build_rule())

    def _env_without_caps(self, candidate: Any) -> Environment:
        """Return the environment without caps, with room for the nodes and edges of a candidate."""
        env: Any = copied(self.config).env
        graph = candidate.to_dict()
        num_nodes, num_edges = (min(len(graph.get(name, ())), _MOST_NODES) for name in ("nodes", "edges"))
        for options in (env, getattr(env, env.name, None)):
            for name, num in (("max_hidden_nodes", num_nodes), ("max_vertices", num_nodes), ("max_edges", num_edges)):
                if options is not None and name in options:
                    options[name] = max(options[name], num)
            for name in ("max_parameters", "max_multiply_adds"):
                if options is not None and name in options:
                    options[name] = None
        return self._context_of(env).env

    def build_rule(self) -> LoopOptions:
        """Build the rule of the loop: functions of options and counts."""
        config, options, method = self.config, self.config.search, self.extensions.method
        num_in_flight = config.asynchronous.max_in_flight
        if method.trains_policy:
            batch, rewards = config.algo.num_from_policy, config.asynchronous.updates_per_reward
            if num_in_flight:
                batch = min(batch, num_in_flight) if rewards is None else math.ceil(1 / rewards - _ROUNDING)
            width = num_in_flight or max(options.width, batch)
            return LoopOptions(max(batch, 1), width, in_order=not num_in_flight, num_rounds=config.num_training_steps)
        batch = num_places = self.plan.num_places
        if method.uses_surrogate and not self.task.is_cheap:
            batch = round_size(self.plan.num_search, places=num_places)
        batch = options.batch_size or batch
        width = options.width or (batch if self.task.is_cheap else 2 * batch)
        return LoopOptions(
            1 if num_in_flight else batch,
            num_in_flight or max(width, batch),
            in_order=not num_in_flight,
            num_evaluations=self.plan.num_search,
            patience=options.patience,
        )

    def build_training(self) -> PolicyTraining:
        """Build the training of the policy on scores, of search.method=gflownet."""
        config = self.config
        return PolicyTraining(
            self.learner,
            self.auxiliary,
            self.source,
            self.replay,
            in_order=not config.asynchronous.max_in_flight,
            validate_every=config.validate_every,
            start_workers=self._start_workers if config.num_workers else None,
        )

    def _start_workers(self, first_step: int) -> Generator[TrajectoryBatch]:
        config, teacher = self.config, self.auxiliary.teacher
        return worker_samples(
            self.source,
            policy=self.learner.sampling,
            teacher=None if teacher is None else teacher.policy,
            first_step=first_step,
            num_workers=config.num_workers,
            transport=make_transport(buffer_size=config.mp_buffer_size, pickle_messages=config.pickle_mp_messages),
            config=config.workers,
        )

    def build_sampler(self) -> Sampler:
        """Build the sampler, which is trained after a search."""
        return Sampler(
            self.search.method,
            learner=self.learner,
            build_learners=self.build_sampler_learners,
            seed=self.config.seed,
            num_verified=self.plan.num_verified,
        )

    def build_surrogate(self) -> Surrogate:
        """Build the surrogate of the search method."""
        seed = stream_seed(self.config.seed, Stream.SEARCH)
        return self.extensions.surrogate(self.env, self.config.search.surrogate, seed=seed)

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

        Without `num_evaluated`, the evaluations so far, it is not part of the search, which alone has a budget.
        """
        config, budget = self.config, self.config.budget
        reserve = Reserve(self.plan.num_final if budget.evaluations else 0, self.plan.final_seconds)
        if num_evaluated is None:
            budget, reserve = BudgetConfig(parameters=budget.parameters, flops=budget.flops), None
        return Dispatcher(
            self.task,
            store,
            executor,
            config=config.evaluation,
            seed=config.seed,
            run=self.run_id,
            budget=budget,
            reserve=reserve,
            num_evaluated=num_evaluated or 0,
            seconds=self.progress.seconds,
            stopped=stopped,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a checkpoint: a resumed run continues exactly."""
        return {
            "run_id": self.run_id,
            "step": self.progress.step,
            "progress": self.progress.state_dict(),
            **self.learner.state_dict(),
            "auxiliary": self.auxiliary.state_dict(),
            "replay": self.replay.state_dict(),
            "search": self.search.state_dict(),
            "sampler": self.sampler.state_dict(),
            "random_state": get_random_state(),
            **({} if self.inheritance is None else {"inheritance": self.inheritance.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.run_id = state["run_id"]
        self.progress.load_state_dict(state["progress"] | {"step": state["step"]})
        self.learner.load_state_dict(state)
        self.auxiliary.load_state_dict(state["auxiliary"])
        self.replay.load_state_dict(state["replay"])
        if self.inheritance is not None:  # before the search, which fits its model to estimates
            self.inheritance.load_state_dict(state["inheritance"])
        self.search.load_state_dict(state["search"])
        self.sampler.load_state_dict(state["sampler"])
        set_random_state(state["random_state"])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint. Raises UserError for one of another version."""
        try:
            self.load_state_dict(checkpoint.state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{checkpoint.path}: expected a state of this version, got another ({type(error).__name__}); start a "
                "new run with another log_dir"
            ) from error


def _shape_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a policy and of its space, without caps."""
    named = {key: value for key, value in leaves(config) if key.startswith(("env.", "model."))}
    return {key: value for key, value in named.items() if not key.rpartition(".")[2].startswith(("max_", "start"))}


def name_of(kind: type) -> str:
    """Return module:Class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_importable(name: str) -> bool:
    """Return whether a class is at the top level of a module other than the program that runs."""
    return is_module_class(name) and not name.startswith("__main__:")
