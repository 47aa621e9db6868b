"""The adaptive teacher: a second policy that samples where the first one, its student, is wrong (Kim et al. 2025)."""

from __future__ import annotations

from typing import Any

import torch

from gflownet.companions.network import CompanionNetwork
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import AlgoConfig, OptimizerConfig, TrajectoryBalanceConfig
from gflownet.objectives.steps import StepReader
from gflownet.objectives.teacher import imbalance, teacher_log_reward
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.on_device import PolicyOnDevice


class Teacher:
    """Learns, by trajectory balance from the student's own trajectories, to sample what the student gets wrong.

    It counts symmetries as the student does and is conditioned alike; its backward policy is the uniform one.
    """

    def __init__(
        self,
        policy: Policy,
        context: GraphBuildingEnvContext,
        *,
        algo: AlgoConfig,
        opt: OptimizerConfig,
        num_steps: int,
        device: torch.device,
    ) -> None:
        """Make its objective and optimiser, with the options of the student's.

        Args:
            policy: a network like the student's.
            context: the student's.
            algo: options of the student's objective and, under `teacher`, of the teacher's reward.
            opt: options of the optimiser.
            device: where the networks live.
        """
        own = AlgoConfig(
            symmetry=algo.symmetry,
            regression=algo.regression,
            tb=TrajectoryBalanceConfig(Z_learning_rate=algo.tb.Z_learning_rate),
        )
        self.objective = TrajectoryBalance(context, own).to(device)
        self._options = algo.teacher
        self._student_reader = StepReader(context, algo)
        groups = self.objective.parameter_groups()
        self._network = CompanionNetwork(
            "teacher", policy, context, device=device, opt=opt, num_steps=num_steps, groups=groups
        )

    @property
    def policy(self) -> PolicyOnDevice:
        """Return the policy that the teacher samples from."""
        return self._network.function

    def learn(
        self, student: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch, *, is_first: bool
    ) -> dict[str, float]:
        """Learn from a step's trajectories, and return the metrics.

        Args:
            student: the student before it has learned from them.
            objective: the student's.
            trajectories: all of them, whoever has sampled them, with the student's rewards.
            is_first: whether this is the first step, at which log Z is set to start from.
        """
        rewarded = self.rewarded(student, objective, trajectories)
        if is_first:
            self.objective.prepare(self.policy, rewarded)
        return self._network.learn(self.objective.loss(self.policy, rewarded))

    def rewarded(self, student: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return the trajectories with the teacher's rewards in place of the student's."""
        delta = imbalance(self._student_reader, objective, student, trajectories)
        log_reward = teacher_log_reward(delta, trajectories.log_reward, self._options)
        return trajectories.with_rewards(log_reward.to(trajectories.log_reward))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        return {**self._network.state_dict(), "objective": self.objective.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._network.load_state_dict(state)
        self.objective.load_state_dict(state["objective"])
