"""Objectives with a learned flow through every state: the network's scalar output, or the logsumexp of its logits.

Letters: B states or trajectories, S steps, C conditioning.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import Answer, ask
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.log_partition import LogPartition
from gflownet.objectives.steps import Steps


class FlowObjective(Objective):
    """The log-flow through a state is an output of the network plus one learned offset for all states.

    The offset has its own learning rate and starts at the scale of the rewards, from which a new network is far away.
    """

    uses_regression = True

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__(context, config)
        self.offset = LogPartition(context.num_cond_dim, learning_rate=config.tb.Z_learning_rate)

    @abstractmethod
    def read_flow(self, outputs: Answer) -> Tensor:
        """Return the log-flow through each state of a policy evaluation, [B], without the offset."""

    def log_flow(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return the log-flow through the state before each step, [S]."""
        return self.read_flow(steps.outputs) + self.offset(trajectories.conditioning)[steps.trajectory]

    @torch.no_grad()
    def prepare(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> None:
        """Set the offset so that the mean log-flow through the last states of a first batch is their mean log-reward.

        Most states are closer to terminal states than to the initial state, whose flow is Z.
        """
        steps = self.reader.read(policy, trajectories)
        last = self.log_flow(steps, trajectories)[steps.is_stop]
        self.offset.base.add_(steps.log_reward.mean() - last.mean())

    def parameter_groups(self) -> list[dict]:
        """Return the parameters of the offset, with their own learning rate."""
        return self.offset.parameter_groups()

    def log_partition(self, policy: PolicyFunction, conditioning: Tensor, limit: Tensor | None = None) -> Tensor | None:
        """Return the log-flow through the initial state, [B]."""
        initial = self.context.env.initial_states(len(conditioning))
        initial = initial if limit is None else initial.with_limit(limit)
        return self.read_flow(ask(self.context, policy, initial, conditioning)) + self.offset(conditioning)


class StateFlowObjective(FlowObjective):
    """The log-flow through a state is the scalar output of the policy network."""

    supports_teacher = True

    looks_forward = False  # the network learns log F(s) - log R(s)

    def read_flow(self, outputs: Answer) -> Tensor:
        """Return the scalar outputs of the policy network."""
        return outputs.numbers

    def log_flow(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return the log-flow through the state before each step, [S].

        With `symmetry=flows` the network learns the flow F(s) through the isomorphism class of a state; the balanced
        flow is F(s) |Aut(s)| / |Aut(s0)|, through its labelled forms (Symmetry-Aware GFlowNets, ICML 2025).
        """
        log_flow = super().log_flow(steps, trajectories)
        if self.reader.scales_flows:
            log_flow = log_flow + self.reader.log_symmetries(steps.outputs, trajectories).to(log_flow)
        if self.looks_forward:
            log_flow = log_flow + trajectories.state_log_reward.to(log_flow)
        return log_flow

    def log_partition(self, policy: PolicyFunction, conditioning: Tensor, limit: Tensor | None = None) -> Tensor | None:
        """Return the log-flow through the initial state, [B]; None if it includes the reward of that state."""
        if self.looks_forward and _may_stop(self.context):
            return None
        return super().log_partition(policy, conditioning, limit)


def _may_stop(context: GraphBuildingEnvContext) -> Tensor:
    """Return whether Stop is legal in the initial state."""
    return context.env.forward_masks(context.env.initial_states(1)).masks[GraphActionType.Stop].any()
