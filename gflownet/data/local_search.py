"""Back-and-forth local search: undo some construction steps of a terminal state, and rebuild with the policy.

Local search GFlowNets (Kim et al. 2024, section 4, with the deterministic filter). Letters: B chains, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gflownet.data.config import LocalSearchConfig
from gflownet.data.replay import action_sequences
from gflownet.data.sampler import Exploration, Step, assembled, chosen_by, conditions_of, roll_out, sample_backward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch

_SHARE_BACK = 0.5  # largest share of the construction steps that a change undoes
Score = Callable[[TrajectoryBatch], TrajectoryBatch]  # sets the log-rewards


class Refined(NamedTuple):
    """Result of a search."""

    proposals: Sequence[TrajectoryBatch]  # one batch of B trajectories with rewards per iteration
    accepted_share: float  # of all proposals
    terminal: GraphStates  # current B states of the chains


@dataclass(frozen=True)
class LocalSearch:
    """B chains of terminal states.

    A proposal undoes K steps and continues with the policy; K is uniform between 1 and half of the state's
    construction steps. A chain moves to proposals with a higher reward.
    """

    context: GraphBuildingEnvContext  # with backward actions if P_B is learned
    config: LocalSearchConfig
    exploration: Exploration

    def refine(
        self,
        terminal: GraphStates,
        log_reward: Tensor,
        conditioning: Conditioning,
        *,
        policy: PolicyFunction,
        score: Score,
        generator: torch.Generator,
    ) -> Refined:
        """Run the chains from terminal states [B] with log-rewards [B], each with its own conditioning."""
        proposals, num_accepted = [], 0
        for _ in range(self.config.num_iterations):
            proposal = score(self._proposed(terminal, conditioning, policy, generator))
            accepted = proposal.log_reward > log_reward
            terminal = _where(accepted, proposal.terminal, terminal)
            log_reward = torch.where(accepted, proposal.log_reward, log_reward)
            proposals.append(proposal)
            num_accepted += int(accepted.sum())
        return Refined(proposals, num_accepted / max(len(terminal) * len(proposals), 1), terminal)

    def _proposed(
        self, terminal: GraphStates, conditioning: Conditioning, policy: PolicyFunction, generator: torch.Generator
    ) -> TrajectoryBatch:
        """Undo steps of trajectories into the states from P_B, and sample the continuation; without rewards."""
        env, backward_policy = self.context.env, policy if self.context.backward_types else None
        backward = sample_backward(
            self.context, terminal, conditioning=conditioning, generator=generator, policy=backward_policy
        )
        sequences = action_sequences(env, backward)  # consistent node numbers for the continuation
        current = sequences.walk(env, conditioning=conditioning, origin=Origin.RESAMPLED)
        position, owner, num_steps = _positions(current), current.trajectory, _num_steps(current)
        low = num_steps.clamp(max=1)  # the initial state has no step to undo
        high = (num_steps * _SHARE_BACK).ceil().long().clamp(min=low)
        uniform = torch.rand(len(current), generator=generator, dtype=torch.float64)
        num_shared = (num_steps - low - (uniform * (high - low + 1)).long())[owner]
        shared = (position < num_shared).nonzero().squeeze(1)
        branches = (position == num_shared).nonzero().squeeze(1)
        start = current.states[branches[owner[branches].argsort()]]
        shared_step = Step(
            current.states[shared], owner[shared], current.actions[shared], None, current.log_backward[shared]
        )
        with torch.inference_mode():
            choose = chosen_by(self.context, policy, current.conditioning, generator, self.exploration)
            steps = roll_out(env, start, choose)
        return assembled(env, [shared_step, *steps], conditions_of(current), Origin.RESAMPLED)


def _num_steps(trajectories: TrajectoryBatch) -> Tensor:
    """Return the number of actions before Stop, [B]."""
    return torch.bincount(trajectories.trajectory, minlength=len(trajectories)) - 1


def _positions(trajectories: TrajectoryBatch) -> Tensor:
    """Return the position of each step in its trajectory, [S]."""
    order = trajectories.trajectory.argsort(stable=True)
    length = _num_steps(trajectories) + 1
    within = torch.arange(len(order)) - (length.cumsum(0) - length).repeat_interleave(length)
    return torch.empty_like(order).scatter_(0, order, within)


def _where(condition: Tensor, states: GraphStates, other: GraphStates) -> GraphStates:
    """Return `states` where the condition [B] is true, `other` elsewhere."""
    index = torch.arange(len(condition)) + torch.where(condition, 0, len(condition))
    return GraphStates.cat([states, other])[index]
