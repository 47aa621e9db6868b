"""Spaces whose states and rewards are all known, and trajectories through the representatives of their states."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.metrics.exact import BackwardActions, StateGraph, enumerate_backward
from gflownet.objectives.steps import stops

_CHUNK = 20_000  # actions told apart at once


class EnumeratedSpace:
    """A space whose states and rewards are all known."""

    def __init__(self, env: Environment, graph: StateGraph, log_reward: Tensor) -> None:
        self.env, self.graph, self.log_reward = env, graph, log_reward

    def rewards_of(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of states, looked up by identity, [B]."""
        return self.log_reward[self.graph.locate(self.env.identify(states))]

    def renamed(self, batch: TrajectoryBatch) -> TrajectoryBatch:
        """Return isomorphic trajectories through the enumerated representatives of their states.

        Nothing that depends on a graph and not on the numbers of its nodes changes: no probability, no reward. But what
        thousands of trajectories pass through is now each class of states once, so that one update may see them all.
        """
        env, graph = self.env, self.graph
        state = graph.locate(env.identify(batch.states))
        step, successor = batch.successors()
        taken = self._forward.locate(env.identify_actions(batch.states, batch.actions))
        undone = self._backward.locate(env.identify_actions(batch.states[successor], batch.backward[step]))
        undo = self._backward.actions[undone]
        parts = [old.index_put((step,), new) for old, new in zip(batch.backward.parts, undo.parts, strict=True)]
        return replace(
            batch, states=graph.states[state], actions=self._forward.actions[taken], backward=ActionBatch(*parts)
        )

    def drawn_back(
        self, terminal: Tensor, log_backward: Tensor | None, *, generator: torch.Generator
    ) -> TrajectoryBatch:
        """Return a trajectory into each terminal state, drawn from a backward policy, unconditioned.

        The same in distribution as `renamed` of what `sample_backward` draws, by tables of what is enumerated.

        Args:
            terminal: [B], which of the states.
            log_backward: [K] of the actions of `backward`; None is the uniform P_B.
            generator: draws.
        """
        graph, num = self.graph, len(terminal)
        state, trajectory, actions, backward, log_uniform = self._ways_back(terminal, log_backward, generator)
        states = graph.states[state]
        symmetry = graph.num_automorphisms[terminal].log() - math.log(self.env.num_initial_automorphisms)
        return TrajectoryBatch(
            states=states,
            trajectory=trajectory,
            actions=actions,
            backward=backward,
            log_backward=log_uniform,
            terminal=graph.states[terminal],
            origin=torch.full((num,), int(Origin.RESAMPLED), dtype=torch.int8),
            conditioning=torch.zeros(num, 1),
            beta=torch.ones(num),
            log_symmetry=symmetry.float(),
            optional_log_reward=self.log_reward[terminal],
        )

    def _ways_back(
        self, terminal: Tensor, log_backward: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, ActionBatch, ActionBatch, Tensor]:
        """Return of all steps, earlier ones first: state, trajectory, both actions, log of the uniform P_B."""
        first, last = self._backward_rows
        num_actions = last - first
        probability = 1.0 / num_actions[self.backward.child].double() if log_backward is None else log_backward.exp()
        below = torch.nn.functional.pad(probability.cumsum(0), (1, 0))
        here, alive, stop = terminal, torch.arange(len(terminal)), stops(len(terminal))
        steps = [(here, alive, stop, stop, torch.zeros(len(here)))]
        while len(here := here[(goes_on := num_actions[here] > 0)]):
            alive, low, high = alive[goes_on], below[first[here]], below[last[here]]
            drawn = low + (high - low) * torch.rand(len(here), generator=generator, dtype=torch.float64)
            row = torch.searchsorted(below, drawn, right=True) - 1
            row = torch.minimum(torch.maximum(row, first[here]), last[here] - 1)  # whatever rounding did
            log_uniform = -num_actions[here].float().log()
            here, taken = self.backward.parent[row], self._forward.actions[self._undone[row]]
            steps.append((here, alive, taken, self.backward.action[row], log_uniform))
        states, trajectories, forwards, backwards, log_uniforms = zip(*reversed(steps), strict=True)
        actions = ActionBatch.cat(forwards), ActionBatch.cat(backwards)
        return torch.cat(states), torch.cat(trajectories), *actions, torch.cat(log_uniforms)

    @cached_property
    def backward(self) -> BackwardActions:
        """Every backward action of every state."""
        return enumerate_backward(self.env, self.graph)

    @cached_property
    def _backward_rows(self) -> tuple[Tensor, Tensor]:
        """Where the backward actions of each state begin and end, [S] both."""
        last = torch.bincount(self.backward.child, minlength=len(self.graph)).cumsum(0)
        return torch.nn.functional.pad(last, (1, 0))[:-1], last

    @cached_property
    def _undone(self) -> Tensor:
        """Which of the known forward actions each backward action undoes, [K]."""
        parts = torch.arange(len(self.backward.child)).split(_CHUNK)
        return torch.cat([self._undone_by(self.backward.child[part], self.backward.action[part]) for part in parts])

    def _undone_by(self, child: Tensor, action: ActionBatch) -> Tensor:
        after = self.graph.states[child]
        before, undone = self.env.apply(after, action), self.env.reverse(after, action)
        return self._forward.locate(self.env.identify_actions(before, undone))

    @cached_property
    def _forward(self) -> KnownActions:
        return KnownActions.of(self.env, self.graph.states, self.graph.parent, self.graph.action)

    @cached_property
    def _backward(self) -> KnownActions:
        return KnownActions.of(self.env, self.graph.states, self.backward.child, self.backward.action)


@dataclass(frozen=True)
class KnownActions:
    """One action of each class of them, in the representative of its state; K in all."""

    code: Tensor  # [K] ascending
    actions: ActionBatch  # K actions

    @staticmethod
    def of(env: Environment, states: GraphStates, owner: Tensor, actions: ActionBatch) -> KnownActions:
        """Return those of all labelled actions, the owner being the state that each is taken in."""
        parts = torch.arange(len(owner)).split(_CHUNK)
        codes = torch.cat([env.identify_actions(states[owner[part]], actions[part]) for part in parts])
        ordered, position = codes.sort()
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        return KnownActions(ordered[first], actions[position[first]])

    def locate(self, codes: Tensor) -> Tensor:
        """Return which of the K actions each code is of, [A]."""
        found = torch.searchsorted(self.code, codes)
        assert torch.equal(self.code[found.clamp(max=len(self.code) - 1)], codes), "every action was enumerated"
        return found
