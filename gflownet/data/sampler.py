"""Trajectories: forwards by asking the policy, backwards from terminal states through the backward policy.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, ActionMasks, GraphActionType
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch

_CROWDED = 0.9  # share of distinct states up to which it is worth while to look for twins at the next step


@dataclass(frozen=True)
class Exploration:
    """How a policy is changed to sample from it: made softer or sharper, then mixed with uniform actions."""

    random_action_prob: float = 0.0  # epsilon
    temperature: float = 1.0

    def of(self, categorical: GraphActionCategorical) -> GraphActionCategorical:
        """Return (1 - epsilon) softmax(logits / temperature) + epsilon / number of legal actions."""
        tempered = categorical if self.temperature == 1 else categorical.tempered(self.temperature)
        return tempered.mixed(self.random_action_prob)


class Step(NamedTuple):
    """One step of the trajectories that are still on their way."""

    states: GraphStates
    trajectory: Tensor
    actions: ActionBatch  # forward
    backward: ActionBatch | None  # what undoes them; None: whatever does in the very state that they lead to
    log_backward: Tensor  # of the uniform P_B


# Given the states of the trajectories that are still on their way, and which those are: one action each.
Choose = Callable[[GraphStates, Tensor], ActionBatch]


def sample_forward(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
    random_action_prob: float = 0.0,
    temperature: float = 1.0,
) -> TrajectoryBatch:
    """Return one trajectory per conditioning, drawn from the policy with exploration, without rewards.

    Trajectories that have stopped leave the batch, so that the policy reads unfinished graphs only.
    """
    exploration = Exploration(random_action_prob, temperature)
    with torch.inference_mode():  # a tenth faster than no_grad; what leaves it is copied into ordinary tensors below
        choose = chosen_by(context, policy, conditioning.encoding, generator, exploration)
        steps = roll_out(context.env, context.env.initial_states(len(conditioning.encoding)), choose)
    return assembled(context.env, steps, conditioning, Origin.SAMPLED)


def sample_backward(
    context: GraphBuildingEnvContext,
    terminal: GraphStates,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
    policy: PolicyFunction | None = None,
) -> TrajectoryBatch:
    """Return one trajectory into each terminal state, drawn from the backward policy, without rewards.

    Args:
        context: of the environment; one that shows backward actions where a policy is asked about them.
        terminal: B states.
        conditioning: of B trajectories.
        generator: draws.
        policy: a two-way policy whose P_B is asked; None is the uniform one.
    """
    with torch.inference_mode():
        stop = torch.zeros(len(terminal), dtype=torch.int64)
        stops = ActionBatch(stop + int(GraphActionType.Stop), stop, stop)
        steps = [Step(terminal, torch.arange(len(terminal)), stops, stops, torch.zeros(len(stop)))]
        steps += _roll_back(context, terminal, conditioning.encoding, generator, policy)
    return assembled(context.env, steps[::-1], conditioning, Origin.RESAMPLED)


def chosen_by(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    encoding: Tensor,
    generator: torch.Generator,
    exploration: Exploration,
) -> Choose:
    """Return what draws the actions of B trajectories, conditioned on [B, C], from the policy, step by step."""
    is_crowded = True

    def choose(states: GraphStates, alive: Tensor) -> ActionBatch:
        nonlocal is_crowded
        shown = encoding if len(alive) == len(encoding) else encoding[alive]
        answer = ask(context, policy, states, shown, look_for_twins=is_crowded)
        is_crowded = answer.num_distinct < _CROWDED * len(alive)
        indices = exploration.of(answer.categorical).sample(generator)
        return context.from_indices(answer.batch, indices, graphs=answer.owner)

    return choose


def roll_out(env: Environment, states: GraphStates, choose: Choose) -> list[Step]:
    """Return the steps from B states, not only initial ones, until each trajectory has stopped."""
    alive, steps = torch.arange(len(states)), []
    while len(alive):
        actions = choose(states, alive)
        log_backward = torch.zeros(len(alive))
        steps.append(Step(states, alive, actions, None, log_backward))
        goes_on = (actions.kind != int(GraphActionType.Stop)).nonzero().squeeze(1)
        if len(goes_on) < len(alive):
            states, actions, alive = states[goes_on], actions[goes_on], alive[goes_on]
        states = env.apply(states, actions)
        log_backward[goes_on] = -env.backward_masks(states).num_actions().log()
    return steps


def _roll_back(
    context: GraphBuildingEnvContext,
    states: GraphStates,
    encoding: Tensor,
    generator: torch.Generator,
    policy: PolicyFunction | None,
) -> list[Step]:
    """Return the steps from B states back to the initial one, the last first; nodes are named afresh at each."""
    env, alive, steps = context.env, torch.arange(len(states)), []
    while True:
        masks = env.backward_masks(states)
        num_actions = masks.num_actions()
        goes_on = num_actions > 0  # only the initial state has nothing to undo
        states, alive = states[goes_on], alive[goes_on]
        if not len(alive):
            return steps
        if policy is None:
            backward = ActionMasks({kind: mask[goes_on] for kind, mask in masks.masks.items()}).sample_uniform(
                generator
            )
        else:
            answer = ask_both(context, cast(AnswersBothWays, policy), states, encoding[alive])
            backward = answer.sample_backward(generator)
        before, forward = env.apply(states, backward), env.reverse(states, backward)
        steps.append(Step(before, alive, forward, backward, -num_actions[goes_on].log()))
        states = before


def assembled(env: Environment, steps: Sequence[Step], conditioning: Conditioning, origin: Origin) -> TrajectoryBatch:
    """Return the trajectories whose steps these are, earlier ones first, without rewards."""
    states, actions = GraphStates.cat([s.states for s in steps]), ActionBatch.cat([s.actions for s in steps])
    trajectory = torch.cat([s.trajectory for s in steps])
    undone = [s.backward for s in steps if s.backward is not None]
    stops = (actions.kind == int(GraphActionType.Stop)).nonzero().squeeze(1)
    terminal = states[stops[trajectory[stops].argsort()]]
    counts = torch.tensor(env.num_automorphisms(terminal), dtype=torch.float64)
    return TrajectoryBatch(
        states=states,
        trajectory=trajectory,
        actions=actions,
        backward=ActionBatch.cat(undone) if len(undone) == len(steps) else env.reverse(states, actions),
        log_backward=torch.cat([s.log_backward for s in steps]),
        terminal=terminal,
        origin=torch.full((len(terminal),), int(origin), dtype=torch.int8),
        conditioning=conditioning.encoding,
        beta=conditioning.beta,
        log_symmetry=(counts.log() - math.log(env.num_initial_automorphisms)).float(),
    )
