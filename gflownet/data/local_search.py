"""Back-and-forth local search: part of a terminal state's construction is undone and built anew by the policy.

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

from gflownet.data.action_sequences import action_sequences
from gflownet.data.config import LocalSearchConfig
from gflownet.data.sampler import Exploration, Step, assembled, chosen_by, roll_out, sample_backward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch

Score = Callable[[TrajectoryBatch], TrajectoryBatch]  # puts the log-rewards in


class Refined(NamedTuple):
    """What a search has tried."""

    proposals: Sequence[TrajectoryBatch]  # one batch of B trajectories per iteration, rewards known
    accepted_share: float  # of all of them
    terminal: GraphStates  # B states at which the chains are now


@dataclass(frozen=True)
class LocalSearch:
    """B chains of terminal states, each of which tries one change after another.

    A change undoes K steps and lets the policy go on from there; K is uniform between 1 and `share_back` of the steps
    that the state takes. `better` moves to a state of a higher reward. `metropolis` moves so that states are visited in
    proportion to the reward, whatever the policy.
    """

    context: GraphBuildingEnvContext  # one that shows backward actions if P_B is learned
    config: LocalSearchConfig
    exploration: Exploration
    scales_rewards: bool = True  # whether p(x) ~ R(x) is meant, not R(x) / |Aut(x)|

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
        """Return what was tried from terminal states [B] with log-rewards [B], under one conditioning for each."""
        proposals, num_accepted = [], 0
        for _ in range(self.config.num_iterations):
            here, num_back = self._way_here(terminal, log_reward, conditioning, policy, generator)
            there = score(self._rebuilt(here, num_back, policy, generator))
            accepted = self._accepted(here, there, num_back, policy, generator)
            terminal = _chosen(accepted, there.terminal, terminal)
            log_reward = torch.where(accepted, there.log_reward, log_reward)
            proposals.append(there)
            num_accepted += int(accepted.sum())
        return Refined(proposals, num_accepted / max(len(terminal) * len(proposals), 1), terminal)

    def _way_here(
        self,
        terminal: GraphStates,
        log_reward: Tensor,
        conditioning: Conditioning,
        policy: PolicyFunction,
        generator: torch.Generator,
    ) -> tuple[TrajectoryBatch, Tensor]:
        """Return trajectories into the states, drawn from P_B, and how many steps of each are undone, [B]."""
        env, asked = self.context.env, policy if self.context.backward_types else None
        back = sample_backward(self.context, terminal, conditioning=conditioning, generator=generator, policy=asked)
        named = action_sequences(env, back)  # so that what is built from here on is one trajectory
        way = named.walk(env, conditioning=conditioning, origin=Origin.RESAMPLED).with_rewards(log_reward)
        low, high = self._range_back(_num_steps(way))
        uniform = torch.rand(len(way), generator=generator, dtype=torch.float64)
        return way, low + (uniform * (high - low + 1)).long()

    def _rebuilt(
        self, way: TrajectoryBatch, num_back: Tensor, policy: PolicyFunction, generator: torch.Generator
    ) -> TrajectoryBatch:
        """Return trajectories, without rewards, that share the first steps of these; the policy draws the rest."""
        env, position = self.context.env, _positions(way)
        turn = (_num_steps(way) - num_back)[way.trajectory]
        kept, turns = (position < turn).nonzero().squeeze(1), (position == turn).nonzero().squeeze(1)
        begin = way.states[turns[way.trajectory[turns].argsort()]]
        first = Step(way.states[kept], way.trajectory[kept], way.actions[kept], None, way.log_backward[kept])
        with torch.inference_mode():
            choose = chosen_by(self.context, policy, way.conditioning, generator, self.exploration)
            steps = roll_out(env, begin, choose)
        conditioning = Conditioning(way.conditioning, way.beta)
        return assembled(env, [first, *steps], conditioning, Origin.RESAMPLED)

    def _accepted(
        self,
        here: TrajectoryBatch,
        there: TrajectoryBatch,
        num_back: Tensor,
        policy: PolicyFunction,
        generator: torch.Generator,
    ) -> Tensor:
        """Return which chains move from the ends of `here` to those of `there`, [B] bool."""
        if self.config.accept == "better":
            return there.log_reward > here.log_reward
        uniform = torch.rand(len(here), generator=generator, dtype=torch.float64)
        return uniform.log() < self._log_acceptance(here, there, num_back, policy)

    def _log_acceptance(
        self, here: TrajectoryBatch, there: TrajectoryBatch, num_back: Tensor, policy: PolicyFunction
    ) -> Tensor:
        """Return the log of the Metropolis-Hastings ratio, [B] float64 (after Zhang et al. 2022).

            R(x') P_B(tau' | x') P_F(tau) q(K' | x') / (R(x) P_B(tau | x) P_F(tau') q(K | x))

        P_F is what the policy samples from, exploration and all. The common beginning of tau and tau' cancels. Labelled
        probabilities go with rewards scaled by |Aut(x)| (Symmetry-Aware GFlowNets). The last factor is ours: q is the
        uniform law of the number of steps undone; in trajectories of one length it cancels.
        """
        balance = self._log_balance(TrajectoryBatch.cat([here, there]), policy)
        num_here, num_there = _num_steps(here), _num_steps(there)
        log_back = self._log_prob_back(num_there, num_there - num_here + num_back) - self._log_prob_back(
            num_here, num_back
        )
        return balance[len(here) :] - balance[: len(here)] + log_back

    def _log_balance(self, trajectories: TrajectoryBatch, policy: PolicyFunction) -> Tensor:
        """Return log R(x) + log P_B(tau | x) - log P_F(tau) of trajectories, [B] float64."""
        context, shown = self.context, trajectories.conditioning[trajectories.trajectory]
        with torch.inference_mode():
            if context.backward_types:
                answer = ask_both(context, cast(AnswersBothWays, policy), trajectories.states, shown)
                step, successor = trajectories.successors()
                log_backward = torch.zeros(len(trajectories.actions), dtype=torch.float64)
                undone = answer.backward_log_prob(trajectories.backward[step], states=successor)
                log_backward[step] = undone.double().cpu()
            else:
                answer = ask(context, policy, trajectories.states, shown)
                log_backward = trajectories.log_backward.double()
            indices = context.to_indices(answer.batch, trajectories.actions, graphs=answer.owner)
            log_forward = self.exploration.of(answer.categorical).log_prob(indices).double().cpu()
        log_reward = trajectories.log_reward + (trajectories.log_symmetry if self.scales_rewards else 0)
        return log_reward.double().index_add(0, trajectories.trajectory, log_backward - log_forward)

    def _range_back(self, num_steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fewest and the most steps that may be undone in states that take so many, [B] each."""
        low = num_steps.clamp(max=1)  # nothing can be undone in the initial state
        return low, (num_steps * self.config.share_back).ceil().long().clamp(min=low)

    def _log_prob_back(self, num_steps: Tensor, num_back: Tensor) -> Tensor:
        """Return the log-probability of undoing so many steps, [B] float64."""
        low, high = self._range_back(num_steps)
        inside = (num_back >= low) & (num_back <= high)
        return torch.where(inside, -(high - low + 1).double().log(), -math.inf)


def _num_steps(trajectories: TrajectoryBatch) -> Tensor:
    """Return the number of actions before Stop, [B]."""
    return torch.bincount(trajectories.trajectory, minlength=len(trajectories)) - 1


def _positions(trajectories: TrajectoryBatch) -> Tensor:
    """Return how many steps of its trajectory come before each step, [S]."""
    order = trajectories.trajectory.argsort(stable=True)
    length = _num_steps(trajectories) + 1
    within = torch.arange(len(order)) - (length.cumsum(0) - length).repeat_interleave(length)
    return torch.empty_like(order).scatter_(0, order, within)


def _chosen(first: Tensor, ours: GraphStates, theirs: GraphStates) -> GraphStates:
    """Return ours where `first` [B] says so, theirs elsewhere."""
    index = torch.arange(len(first)) + torch.where(first, 0, len(first))
    return GraphStates.cat([ours, theirs])[index]
