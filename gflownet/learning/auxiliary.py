"""Auxiliary networks trained with the policy on the same trajectories: adaptive teacher and Q-values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.learning.learner import advance, differentiate, make_optimizer, make_schedule, restore_schedule
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.action_values import action_value_loss
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig, OptimizerConfig, TrajectoryBalanceConfig
from gflownet.objectives.steps import StepReader
from gflownet.objectives.trajectory_balance import TrajectoryBalance, vargrad_log_partition
from gflownet.policy.wrappers import GreedyPolicy, PolicyOnDevice
from gflownet.training.steps import Steps, update_average


@dataclass(frozen=True)
class Setup:
    """Settings shared by the auxiliary networks of a run."""

    context: GraphBuildingEnvContext  # of the policy
    opt: OptimizerConfig  # of the policy
    num_steps: int  # training steps of the run, over which the learning rate is scheduled
    device: torch.device


class AuxiliaryNetwork:
    """A network with its optimiser and schedule."""

    def __init__(
        self,
        name: str,
        network: Policy,
        setup: Setup,
        *,
        learning_rate: float | None = None,
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Build the optimiser with the options of the policy's.

        Args:
            name: prefix of its metrics.
            network: a network with the policy's inputs.
            setup: settings of the run.
            learning_rate: of the network; None: the policy's.
            groups: optimiser groups of other parameters, such as log Z.
        """
        device, opt = setup.device, setup.opt
        self.name, self.network = name, network.to(device)
        rate = {} if learning_rate is None else {"lr": learning_rate}
        parameters = list(network.parameters())
        self._optimizer = make_optimizer([{"params": parameters, **rate}, *groups], opt)
        self._steps = Steps([self._optimizer], parameters, max_norm=opt.clip_grad_param)
        self._schedule = make_schedule(self._optimizer, opt, num_steps=setup.num_steps)
        self.function = PolicyOnDevice(network, device=device, precision=opt.precision)

    def learn(self, loss: Loss) -> dict[str, float]:
        """Take one optimiser step on a loss, and return its metrics.

        Raises:
            FloatingPointError: the loss or its gradient is not finite; the weights are unchanged.
        """
        try:
            metrics, norm = self._steps.compute_gradients(lambda: differentiate(loss))
            self._steps.check_gradients(norm)
            self._steps.update()
        except FloatingPointError as error:
            raise FloatingPointError(f"{self.name}: {error}") from error
        finally:
            advance(self._schedule)
        return {f"{self.name}_{metric}": value for metric, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        restore_schedule(self._schedule, state["schedule"])


class Teacher:
    """Adaptive teacher: a second policy that samples trajectories with a large student loss (Kim et al. 2025).

    The student is the policy of the run. The teacher learns by trajectory balance on the student's trajectories. It
    has the student's symmetry correction and conditioning, and the uniform backward policy.
    """

    def __init__(self, policy: Policy, setup: Setup, *, algo: AlgoConfig) -> None:
        """Build objective and optimiser with the options of the student's.

        Args:
            policy: a network with the student's architecture.
            setup: settings of the run.
            algo: options of the student's objective and, under `teacher`, of the teacher's reward.
        """
        objective_options = AlgoConfig(
            symmetry=algo.symmetry,
            regression=algo.regression,
            tb=TrajectoryBalanceConfig(Z_learning_rate=algo.tb.Z_learning_rate),
        )
        self.objective = TrajectoryBalance(setup.context, objective_options).to(setup.device)
        self._mixing = algo.teacher.mixing
        self._student_reader = StepReader(setup.context, algo)
        self._network = AuxiliaryNetwork("teacher", policy, setup, groups=self.objective.parameter_groups())

    @property
    def policy(self) -> PolicyOnDevice:
        """Return the sampling policy of the teacher."""
        return self._network.function

    def learn(
        self, student: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch, *, is_first: bool
    ) -> dict[str, float]:
        """Take one optimiser step on a step's trajectories, and return the metrics.

        Args:
            student: the student before its own optimiser step.
            objective: the student's.
            trajectories: of student and teacher, with the student's rewards.
            is_first: whether this is the first training step, in which log Z is initialised.
        """
        rewarded = self.rewarded(student, objective, trajectories)
        if is_first:
            self.objective.prepare(self.policy, rewarded)
        return self._network.learn(self.objective.loss(self.policy, rewarded))

    def rewarded(self, student: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return the trajectories with the teacher's rewards in place of the student's."""
        delta = imbalance(self._student_reader, objective, student, trajectories)
        log_reward = teacher_log_reward(delta, trajectories.log_reward, mixing=self._mixing)
        return trajectories.with_rewards(log_reward.to(trajectories.log_reward))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {**self._network.state_dict(), "objective": self.objective.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._network.load_state_dict(state)
        self.objective.load_state_dict(state["objective"])


# Of the action values: learning rate, n of the n-step targets (the final rewards of shorter trajectories), decay of the
# average that values the states n steps later.
_LEARNING_RATE, NUM_STEPS, DECAY = 1e-3, 25, 0.95
GREEDINESS = 0.9  # of the metric greedy_score_mean


class ActionValues:
    """Q-network and the moving average of its weights that computes targets (QGFN, Lau et al. 2024)."""

    def __init__(self, network: Policy, setup: Setup) -> None:
        """Build the optimiser and the moving average.

        Args:
            network: a network with the policy's architecture, whose logits are Q-values.
            setup: settings of the run, but for the learning rate.
        """
        self._context = setup.context
        self._network = AuxiliaryNetwork("action_value", network, setup, learning_rate=_LEARNING_RATE)
        self._average = copy.deepcopy(network).requires_grad_(False)
        self._target = PolicyOnDevice(self._average, device=setup.device, precision=setup.opt.precision)

    def learn(self, trajectories: TrajectoryBatch) -> dict[str, float]:
        """Take one optimiser step on a step's trajectories, and return the metrics."""
        networks = self._network.function, self._target
        loss = action_value_loss(self._context, *networks, trajectories, num_steps=NUM_STEPS)
        metrics = self._network.learn(loss)
        averages, current = (list(each.parameters()) for each in (self._average, self._network.network))
        update_average(averages, current, decay=DECAY)
        return metrics

    def greedier(self, policy: PolicyFunction, *, variant: str = "p_of_max", p: float = GREEDINESS) -> GreedyPolicy:
        """Return a greedier policy, see `GreedyPolicy`."""
        return GreedyPolicy(policy, self._network.function, variant=variant, p=p)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {**self._network.state_dict(), "average": self._average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._network.load_state_dict(state)
        self._average.load_state_dict(state["average"])


class AuxiliaryNetworks:
    """Teacher and action values of a run; None where the options turn them off."""

    def __init__(
        self, build_policy: Callable[[], Policy], setup: Setup, *, algo: AlgoConfig, seed: Callable[[int], int]
    ) -> None:
        """Build the networks that the options select.

        Args:
            build_policy: builds a network with the policy's architecture.
            setup: settings of the run.
            algo: options of teacher and action values, and of the policy's objective.
            seed: seed of the initial weights of the i-th network.
        """
        self.teacher: Teacher | None = None
        self.action_values: ActionValues | None = None
        if algo.teacher.share:
            with _initial_weights(seed(0)):
                self.teacher = Teacher(build_policy(), setup, algo=algo)
        if algo.qgfn.use:
            with _initial_weights(seed(1)):
                self.action_values = ActionValues(build_policy(), setup)

    def learn(
        self, policy: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch, *, is_first: bool
    ) -> dict[str, float]:
        """Take their optimiser steps before the policy's, see `Teacher.learn`, and return the metrics."""
        metrics: dict[str, float] = {}
        if self.teacher is not None:
            metrics |= self.teacher.learn(policy, objective, trajectories, is_first=is_first)
        if self.action_values is not None:
            metrics |= self.action_values.learn(trajectories)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: network.state_dict() for name, network in self._networks().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, network in self._networks().items():
            network.load_state_dict(state[name])

    def _networks(self) -> dict[str, Teacher | ActionValues]:
        networks = {"teacher": self.teacher, "action_values": self.action_values}
        return {name: network for name, network in networks.items() if network is not None}


@contextmanager
def _initial_weights(seed: int) -> Iterator[None]:
    """Draw initial weights from a separate seed, without a shift of other random draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


WEIGHT = 19.0  # C: factor 1 + C in the reward of trajectories that the student samples too rarely
SMOOTHING = 1e-3  # epsilon of the reward: keeps the log-reward of balanced trajectories finite


@torch.no_grad()
def imbalance(
    reader: StepReader, objective: Objective, student: PolicyFunction, trajectories: TrajectoryBatch
) -> Tensor:
    """Return delta = log R(x) + log P_B(tau | x) - log Z - log P_F(tau) of the student, [B]; > 0 if sampled too rarely.

    log Z is the learned one of the student's objective, the flow through the initial state, or VarGrad's estimate if
    the objective learns neither. Symmetries are counted as in the student's objective.
    """
    ratio = reader.read(student, trajectories).log_ratio()
    limit = trajectories.terminal.limit
    log_z = objective.log_partition(student, trajectories.conditioning.to(ratio.device), limit)
    if log_z is None:
        log_z = vargrad_log_partition(ratio, trajectories.conditioning)
    return -(ratio + log_z)


def teacher_log_reward(delta: Tensor, log_reward: Tensor, *, mixing: float, weight: float = WEIGHT) -> Tensor:
    """Return log(epsilon + (1 + C [delta > 0]) delta^2) + alpha log R(x), [B] (Kim et al. 2025, Adaptive teachers).

    The published code, alstn12088/adaptive-teacher, takes one more logarithm:
    log(1.001 + (1 + C [delta > 0]) delta^2) R^alpha.
    """
    factor = torch.where(delta > 0, 1 + weight, 1.0)
    return (SMOOTHING + factor * delta.square()).log() + mixing * log_reward.to(delta)
