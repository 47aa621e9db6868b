"""Back-and-forth local search: undo some construction steps of a terminal state, and rebuild with the policy.

Local search GFlowNets (Kim et al. 2024, section 4); the filter is the back-and-forth proposal of Zhang et al. 2022
(Generative flow networks for discrete probabilistic modeling, section 4.2). Letters: B chains, S steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gflownet.data.config import LocalSearchConfig
from gflownet.data.replay import action_sequences
from gflownet.data.sampler import Exploration, Step, assembled, chosen_by, conditions_of, roll_out, sample_backward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch

Score = Callable[[TrajectoryBatch], TrajectoryBatch]  # sets the log-rewards


class Refined(NamedTuple):
    """Result of a search."""

    proposals: Sequence[TrajectoryBatch]  # one batch of B trajectories with rewards per iteration
    accepted_share: float  # of all proposals
    terminal: GraphStates  # current B states of the chains


@dataclass(frozen=True)
class LocalSearch:
    """B Markov chains of terminal states.

    A proposal undoes K steps and continues with the policy; K is uniform between 1 and `share_back` of the state's
    construction steps. `better` accepts higher rewards. `metropolis` accepts with the Metropolis-Hastings probability:
    the stationary distribution is proportional to the reward for any policy.
    """

    context: GraphBuildingEnvContext  # with backward actions if P_B is learned
    config: LocalSearchConfig
    exploration: Exploration
    scales_rewards: bool = True  # target p(x) ~ R(x); False: R(x) / |Aut(x)|

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
            current, num_back = self._current(terminal, log_reward, conditioning, policy, generator)
            proposal = score(self._rebuilt(current, num_back, policy, generator))
            accepted = self._accepted(current, proposal, num_back, policy, generator)
            terminal = _where(accepted, proposal.terminal, terminal)
            log_reward = torch.where(accepted, proposal.log_reward, log_reward)
            proposals.append(proposal)
            num_accepted += int(accepted.sum())
        return Refined(proposals, num_accepted / max(len(terminal) * len(proposals), 1), terminal)

    def _current(
        self,
        terminal: GraphStates,
        log_reward: Tensor,
        conditioning: Conditioning,
        policy: PolicyFunction,
        generator: torch.Generator,
    ) -> tuple[TrajectoryBatch, Tensor]:
        """Sample trajectories into the states from P_B, and the number of steps to undo, [B]."""
        env, backward_policy = self.context.env, policy if self.context.backward_types else None
        backward = sample_backward(
            self.context, terminal, conditioning=conditioning, generator=generator, policy=backward_policy
        )
        sequences = action_sequences(env, backward)  # consistent node numbers for the continuation
        current = sequences.walk(env, conditioning=conditioning, origin=Origin.RESAMPLED).with_rewards(log_reward)
        low, high = self._range_back(_num_steps(current))
        uniform = torch.rand(len(current), generator=generator, dtype=torch.float64)
        return current, low + (uniform * (high - low + 1)).long()

    def _rebuilt(
        self, current: TrajectoryBatch, num_back: Tensor, policy: PolicyFunction, generator: torch.Generator
    ) -> TrajectoryBatch:
        """Undo `num_back` steps and sample the continuation from the policy; return trajectories without rewards."""
        env, position, owner = self.context.env, _positions(current), current.trajectory
        num_shared = (_num_steps(current) - num_back)[owner]
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

    def _accepted(
        self,
        current: TrajectoryBatch,
        proposal: TrajectoryBatch,
        num_back: Tensor,
        policy: PolicyFunction,
        generator: torch.Generator,
    ) -> Tensor:
        """Return whether each chain accepts its proposal, [B] bool."""
        if self.config.accept == "better":
            return proposal.log_reward > current.log_reward
        uniform = torch.rand(len(current), generator=generator, dtype=torch.float64)
        return uniform.log() < self._log_acceptance(current, proposal, num_back, policy)

    def _log_acceptance(
        self, current: TrajectoryBatch, proposal: TrajectoryBatch, num_back: Tensor, policy: PolicyFunction
    ) -> Tensor:
        """Return the log of the Metropolis-Hastings ratio, [B] float64 (after Zhang et al. 2022).

            R(x') P_B(tau' | x') P_F(tau) q(K' | x') / (R(x) P_B(tau | x) P_F(tau') q(K | x))

        P_F includes exploration. The common first steps of tau and tau' cancel. Labelled probabilities require rewards
        scaled by |Aut(x)| (Symmetry-Aware GFlowNets). The factor q(K | x), not in the paper, is the uniform
        distribution of the number of undone steps; it cancels for trajectories of equal length.
        """
        balance = self._log_balance(TrajectoryBatch.cat([current, proposal]), policy)
        num_steps, num_proposal_steps = _num_steps(current), _num_steps(proposal)
        log_reverse = self._log_prob_back(num_proposal_steps, num_proposal_steps - num_steps + num_back)
        log_back = log_reverse - self._log_prob_back(num_steps, num_back)
        return balance[len(current) :] - balance[: len(current)] + log_back

    def _log_balance(self, trajectories: TrajectoryBatch, policy: PolicyFunction) -> Tensor:
        """Return log R(x) + log P_B(tau | x) - log P_F(tau) of trajectories, [B] float64."""
        context, conditioning = self.context, trajectories.conditioning[trajectories.trajectory]
        with torch.inference_mode():
            if context.backward_types:
                output = ask_both(context, cast(AnswersBothWays, policy), trajectories.states, conditioning)
                step, successor = trajectories.successors()
                log_backward = torch.zeros(len(trajectories.actions), dtype=torch.float64)
                log_prob = output.backward_log_prob(trajectories.backward[step], states=successor)
                log_backward[step] = log_prob.double().cpu()
            else:
                output = ask(context, policy, trajectories.states, conditioning)
                log_backward = trajectories.log_backward.double()
            indices = context.to_indices(output.batch, trajectories.actions, graphs=output.owner)
            log_forward = self.exploration.of(output.categorical).log_prob(indices).double().cpu()
        log_reward = trajectories.log_reward + (trajectories.log_symmetry if self.scales_rewards else 0)
        return log_reward.double().index_add(0, trajectories.trajectory, log_backward - log_forward)

    def _range_back(self, num_steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the minimum and maximum number of steps to undo of `num_steps`, [B] each."""
        low = num_steps.clamp(max=1)  # the initial state has no step to undo
        return low, (num_steps * self.config.share_back).ceil().long().clamp(min=low)

    def _log_prob_back(self, num_steps: Tensor, num_back: Tensor) -> Tensor:
        """Return the log-probability of undoing `num_back` of `num_steps` steps, [B] float64."""
        low, high = self._range_back(num_steps)
        inside = (num_back >= low) & (num_back <= high)
        return torch.where(inside, -(high - low + 1).double().log(), -math.inf)


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
