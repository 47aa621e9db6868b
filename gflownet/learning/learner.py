"""The training step of a policy: its optimiser, schedule, and memory of earlier batches."""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.replay import ActionSequences, action_sequences
from gflownet.learning.source import Rollout
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import CanonicalForms
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import OptimizerConfig
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.training.optimisers import OptimiserOptions, Schedule, build_optimiser
from gflownet.training.steps import Steps, update_average
from gflownet.workers.process import stream_seed

_CONSTANT_SHARE = 1 / 3  # of the steps, before the rates of linear and cosine fall
# Called with the error of a loss or gradient, and the batch.
OnSkip = Callable[[FloatingPointError, TrajectoryBatch], None]
# Takes optimiser steps of other networks on trajectories, and returns their metrics.
LearnAuxiliary = Callable[..., dict[str, float]]


def make_optimizer(groups: list[dict], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of parameter groups; settings of a group take precedence."""
    options = OptimiserOptions(config.opt, config.learning_rate, companion="adam")
    return build_optimiser(groups, options)


def make_schedule(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of all learning rates over a run of `num_steps`, after a linear warm-up."""
    schedule = Schedule.named(config.schedule, constant=_CONSTANT_SHARE)

    def factor(step: int) -> float:
        warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        halving = config.schedule == "halving"
        return warmup * (2 ** (-step / config.lr_decay) if halving else schedule.factor(step / num_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def advance(schedule: torch.optim.lr_scheduler.LambdaLR) -> None:
    """Set the learning rates of the next step, also after a skipped first step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of")
        schedule.step()


def restore_schedule(schedule: torch.optim.lr_scheduler.LambdaLR, state: dict[str, Any]) -> None:
    """Restore a schedule after its optimiser; a resumed run may have other learning rates than the checkpoint."""
    rates = schedule.base_lrs
    schedule.load_state_dict(state)
    schedule.base_lrs = rates
    for group, rate, factor in zip(schedule.optimizer.param_groups, rates, schedule.lr_lambdas, strict=True):
        group["lr"] = rate * factor(schedule.last_epoch)


def differentiate(loss: Loss) -> dict[str, float]:
    """Accumulate the gradient of a loss in its parameters and return its metrics.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    value = float(loss.value.detach())
    if not math.isfinite(value):
        raise FloatingPointError(f"expected a finite loss, got {value}")
    loss.value.backward()
    return dict(loss.metrics)


@dataclass(frozen=True)
class FormedBatch:
    """Trajectories and, where isomorphic states are merged, the canonical forms of their states."""

    trajectories: TrajectoryBatch
    forms: CanonicalForms | None

    def first(self, num: int) -> FormedBatch:
        """Return the first `num` trajectories."""
        if num == len(self.trajectories):
            return self
        forms = None if self.forms is None else self.forms[self.trajectories.trajectory < num]
        return FormedBatch(self.trajectories.part(0, num), forms)


class TrajectoryMemory:
    """The last `capacity` batches of sampled trajectories."""

    def __init__(self, env: Environment, *, capacity: int, merges: bool) -> None:
        self._env, self._merges = env, merges
        self._batches: deque[FormedBatch] = deque(maxlen=capacity)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def add(self, batch: FormedBatch) -> None:
        """Add a batch; a full memory drops the oldest."""
        trajectories = batch.trajectories
        origin = torch.full_like(trajectories.origin, int(Origin.REMEMBERED))
        self._batches.append(replace(batch, trajectories=replace(trajectories, origin=origin)))

    def sample(self, num: int, *, generator: torch.Generator) -> list[FormedBatch]:
        """Return `num` batches drawn uniformly with replacement, none from an empty memory."""
        indices = torch.randint(max(len(self), 1), (num,), generator=generator).tolist()
        return [self._batches[i] for i in indices if self._batches]

    def state_dict(self) -> dict[str, Any]:
        """Return the batches as action sequences, safe to load with `weights_only=True`."""
        return {"batches": [_packed(self._env, batch.trajectories) for batch in self._batches]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._batches.clear()
        for packed in state["batches"]:
            trajectories = _unpacked(self._env, packed)
            self._batches.append(formed(self._env, trajectories, merges=self._merges))


def formed(env: Environment, trajectories: TrajectoryBatch, *, merges: bool) -> FormedBatch:
    """Return the trajectories with the canonical forms of their states if `merges`."""
    return FormedBatch(trajectories, env.canonical_forms(trajectories.states) if merges else None)


def merge_isomorphic(env: Environment, batch: TrajectoryBatch, forms: CanonicalForms) -> TrajectoryBatch:
    """Return isomorphic trajectories in which isomorphic states of the batch are equal arrays.

    Each step's state becomes the first isomorphic state of the batch, and its actions are translated to it, so that a
    policy reads each isomorphism class once. The log-probabilities of a policy that is invariant under isomorphism
    stay the same.

    Args:
        env: the environment of the trajectories.
        batch: trajectories with S steps.
        forms: canonical forms of the S states.
    """
    directed = env.vocabulary.directed
    representative = forms.representatives()
    names = forms.isomorphism(representative)  # [S, N]
    step, successor = batch.successors()
    names_after = names.clone()  # of the state after each action, in which the backward action is taken
    names_after[step] = names[successor]
    return replace(
        batch,
        states=batch.states[representative].with_limit(batch.states.limit),
        actions=batch.actions.renamed(names, directed=directed),
        backward=batch.backward.renamed(names_after, directed=directed),
    )


def _packed(env: Environment, batch: TrajectoryBatch) -> dict[str, Any]:
    sequences = action_sequences(env, batch)
    return {
        "num_actions": sequences.num_actions,
        "actions": list(sequences.actions.parts),
        "conditioning": batch.conditioning,
        "beta": batch.beta,
        "limit": batch.terminal.limit,
        "log_reward": batch.log_reward,
        "state_log_reward": batch.optional_state_log_reward,
    }


def _unpacked(env: Environment, packed: dict[str, Any]) -> TrajectoryBatch:
    sequences = ActionSequences(packed["num_actions"], ActionBatch(*packed["actions"]))
    conditioning = Conditioning(packed["conditioning"], packed["beta"], packed["limit"])
    batch = sequences.walk(env, conditioning=conditioning, origin=Origin.REMEMBERED)
    batch = batch.with_rewards(packed["log_reward"])
    return batch if packed["state_log_reward"] is None else batch.with_state_rewards(packed["state_log_reward"])


@dataclass(frozen=True)
class LearnerOptions:
    """Number and batches of the optimiser steps of a training step."""

    num_steps: int  # training steps of the run, over which schedules run
    num_updates: int = 1  # optimiser steps per training step
    merge_isomorphic: bool = False
    num_remembered: int = 0  # earlier batches added to an update of the last step; none of the first, then ever more
    memory_capacity: int = 1_000  # batches
    sampling_tau: float = 0.0  # decay of the moving average that samples; 0: the trained policy samples
    seed: int = 0  # of the draws from memory


class Learner:
    """Policy and objective with their optimiser, schedule, and memory of earlier batches.

    Attributes:
        on_skip: called for an optimiser step without finite loss or gradient, which is skipped if it returns; default:
            it raises the error.
        batch: the last trajectories of `learn`.
    """

    batch: TrajectoryBatch | None = None

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        context: GraphBuildingEnvContext,
        *,
        config: OptimizerConfig,
        options: LearnerOptions,
        device: torch.device | None = None,
    ) -> None:
        self.policy, self.objective, self.config, self.options = policy, objective, config, options
        self.device = device or torch.device("cpu")
        self._env = context.env
        self.sampling_policy = copy.deepcopy(policy) if options.sampling_tau else policy
        groups = [{"params": list(policy.parameters())}, *objective.parameter_groups()]
        self.optimizer = make_optimizer(groups, config)
        self._steps = Steps([self.optimizer], list(policy.parameters()), max_norm=config.clip_grad_param)
        self.schedule = make_schedule(self.optimizer, config, num_steps=options.num_steps)
        self._num_updates = 0
        self.on_skip: OnSkip = _raise
        self.memory = TrajectoryMemory(context.env, capacity=options.memory_capacity, merges=options.merge_isomorphic)

    @property
    def trained(self) -> PolicyOnDevice:
        """Return the trained policy, callable on batches in main memory."""
        return self._computed(self.policy)

    @property
    def sampling(self) -> PolicyOnDevice:
        """Return the sampling policy, callable on batches in main memory."""
        return self._computed(self.sampling_policy)

    @property
    def num_steps_done(self) -> int:
        """Return the number of completed training steps."""
        return self.schedule.last_epoch

    def learn(self, rollout: Rollout, learn_auxiliary: LearnAuxiliary | None = None) -> dict[str, float]:
        """Take the optimiser steps of one training step, and return the metrics of the last one on the rollout.

        If all are skipped, weights, optimiser, moving average and memory stay as they are.

        Args:
            rollout: of the step; the objective is prepared with that of the first step.
            learn_auxiliary: `AuxiliaryNetworks.learn`: called before the policy learns, on the same trajectories.

        Raises:
            FloatingPointError: a loss or gradient is not finite, see `on_skip`.
        """
        num_updates, is_first, self.batch = self._num_updates, self.num_steps_done == 0, rollout.trajectories
        if is_first:
            self.objective.prepare(self.trained, rollout.trajectories)
        of_auxiliary: dict[str, float] = {}
        if learn_auxiliary is not None:
            try:
                of_auxiliary = learn_auxiliary(self.trained, self.objective, rollout.trajectories, is_first=is_first)
            except FloatingPointError as error:
                self.on_skip(error, rollout.trajectories)
        trajectories = self.objective.annotated(self.trained, rollout.trajectories)
        batch = formed(self._env, trajectories, merges=self.options.merge_isomorphic)
        metrics: dict[str, float] = {}
        for update in range(self.options.num_updates * self.objective.num_epochs):
            metrics = self._update(self._with_remembered(batch, update))
        for replayed in rollout.replays:
            self._update(self.objective.annotated(self.trained, replayed))
        advance(self.schedule)
        metrics |= of_auxiliary
        if self._num_updates == num_updates:
            return metrics
        if self.options.num_remembered:
            self.memory.add(batch.first(rollout.num_fresh))
        if self.options.sampling_tau:  # the sampling policy is a moving average of the trained one
            averages, current = (list(each.parameters()) for each in (self.sampling_policy, self.policy))
            update_average(averages, current, decay=self.options.sampling_tau)
        return metrics

    def accumulate_gradients(self, batch: TrajectoryBatch) -> dict[str, float]:
        """Compute the gradients of the loss of the trajectories, clip them, and return its metrics.

        Raises:
            FloatingPointError: the loss or its gradient is not finite.
        """
        metrics, norm = self._steps.compute_gradients(lambda: differentiate(self.objective.loss(self.trained, batch)))
        self._steps.check_gradients(norm)
        return metrics

    def take_weights(self, other: Learner) -> None:
        """Copy the weights of another learner's policy, which samples from now on, and of its objective."""
        for policy in (self.policy, self.sampling_policy):
            policy.load_state_dict(other.policy.state_dict())
        self.objective.load_state_dict(other.objective.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: component.state_dict() for name, component in self._components().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, component in self._components().items():
            if component is not self.schedule:
                component.load_state_dict(state[name])
        restore_schedule(self.schedule, state["schedule"])

    def _components(self) -> dict[str, Any]:
        names = ("policy", "sampling_policy", "objective", "optimizer", "schedule", "memory")
        return {name: getattr(self, name) for name in names}

    def _with_remembered(self, batch: FormedBatch, update: int) -> TrajectoryBatch:
        """Return the batch with remembered batches; isomorphic states are merged if the options say so."""
        options, step = self.options, self.num_steps_done
        num = math.ceil(options.num_remembered * min(step / options.num_steps, 1.0))
        batches = [batch]
        if num:
            generator = torch.Generator().manual_seed(stream_seed(options.seed, step, update))
            batches += self.memory.sample(num, generator=generator)
        trajectories = batch.trajectories
        if len(batches) > 1:
            trajectories = TrajectoryBatch.cat([each.trajectories for each in batches])
        if not options.merge_isomorphic:
            return trajectories
        forms = CanonicalForms.cat([each.forms for each in batches if each.forms is not None])
        return merge_isomorphic(self._env, trajectories, forms)

    def _update(self, batch: TrajectoryBatch) -> dict[str, float]:
        """Take one optimiser step, and return the metrics of the loss before it."""
        try:
            metrics = self.accumulate_gradients(batch)
        except FloatingPointError as error:
            self.on_skip(error, batch)
            return {"skipped": 1.0}
        self._steps.update()
        self._num_updates += 1
        return metrics

    def _computed(self, policy: Policy) -> PolicyOnDevice:
        return PolicyOnDevice(policy, device=self.device, precision=self.config.precision)


def _raise(error: FloatingPointError, _: TrajectoryBatch) -> None:
    raise error
