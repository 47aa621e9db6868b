"""Trajectories: forwards from the initial state by asking the policy, backwards from terminal states uniformly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch


@torch.no_grad()
def sample_forward(
    context: GraphBuildingEnvContext,
    policy: Policy,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
    random_action_prob: float = 0.0,
) -> TrajectoryBatch:
    """Return one trajectory per conditioning, drawn from the policy mixed with uniform actions; rewards are NaN.

    Trajectories that have stopped leave the batch, so that the policy reads unfinished graphs only.
    """
    env, steps = context.env, _Steps()
    alive = torch.arange(len(conditioning.beta))
    states = env.initial_states(len(alive))
    terminal: list[tuple[Tensor, GraphStates]] = []
    while len(alive):
        batch = context.to_batch(states)
        categorical, _ = policy(batch, conditioning.encoding[alive])
        actions = context.from_indices(batch, categorical.mixed(random_action_prob).sample(generator))
        goes_on = actions.kind != GraphActionType.Stop
        after = env.apply(states, actions)[goes_on]
        log_backward = torch.zeros(len(alive))
        log_backward[goes_on] = -env.backward_masks(after).num_actions().log()
        steps.add(states, alive, actions, log_backward)
        terminal.append((alive[~goes_on], states[~goes_on]))
        states, alive = after, alive[goes_on]
    order = torch.cat([index for index, _ in terminal]).argsort()
    return steps.finish(env, GraphStates.cat([s for _, s in terminal])[order], conditioning)


def sample_backward(
    env: Environment, terminal: GraphStates, *, conditioning: Conditioning, generator: torch.Generator
) -> TrajectoryBatch:
    """Return one trajectory into each terminal state, drawn from the uniform backward policy; rewards are NaN."""
    num = len(terminal)
    steps, states, alive = _Steps(), terminal, torch.arange(num)
    stop = torch.zeros(num, dtype=torch.int64)
    steps.add(terminal, alive, ActionBatch(stop + int(GraphActionType.Stop), stop, stop), torch.zeros(num))
    while len(alive):
        masks = env.backward_masks(states)
        num_actions = masks.num_actions()
        goes_on = num_actions > 0  # only the initial state has nothing to undo
        states, alive = states[goes_on], alive[goes_on]
        if not len(alive):
            break
        masks = type(masks)({kind: mask[goes_on] for kind, mask in masks.masks.items()})
        backward = masks.sample_uniform(generator)
        before, forward = env.apply(states, backward), env.reverse(states, backward)
        steps.add(before, alive, forward, -num_actions[goes_on].log())
        states = before
    return steps.finish(env, terminal, conditioning, backwards=True)


class _Steps:
    """Collects steps until the trajectories are whole."""

    def __init__(self) -> None:
        self.states: list[GraphStates] = []
        self.trajectory: list[Tensor] = []
        self.actions: list[ActionBatch] = []
        self.log_backward: list[Tensor] = []

    def add(self, states: GraphStates, trajectory: Tensor, actions: ActionBatch, log_backward: Tensor) -> None:
        self.states.append(states)
        self.trajectory.append(trajectory)
        self.actions.append(actions)
        self.log_backward.append(log_backward)

    def finish(
        self, env: Environment, terminal: GraphStates, conditioning: Conditioning, *, backwards: bool = False
    ) -> TrajectoryBatch:
        """Return the trajectories into `terminal`; `backwards` says that the steps were collected last to first."""
        turn = slice(None, None, -1 if backwards else 1)
        return TrajectoryBatch(
            states=GraphStates.cat(self.states[turn]),
            trajectory=torch.cat(self.trajectory[turn]),
            actions=ActionBatch.cat(self.actions[turn]),
            log_backward=torch.cat(self.log_backward[turn]),
            terminal=terminal,
            conditioning=conditioning.encoding,
            beta=conditioning.beta,
            log_symmetry=_log_counts(env.num_automorphisms(terminal))
            - _log_counts(env.num_automorphisms(env.initial_states(1))),
            log_reward=torch.full((len(terminal),), torch.nan),
        )


def _log_counts(counts: Sequence[int]) -> Tensor:
    return torch.tensor([math.log(count) for count in counts])
