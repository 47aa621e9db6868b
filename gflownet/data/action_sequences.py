"""Compact storage of trajectories as action sequences, which can be replayed from the initial state.

Letters: B trajectories, S steps of all of them, N maximum number of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.data.sampler import assembled, roll_out
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch

_DTYPE = torch.int32  # of kind, row and column of an action


@dataclass(frozen=True)
class ActionSequences:
    """The forward actions of B trajectories, one trajectory after another, each ending with Stop.

    A node index is the node's position in the state built by the preceding actions.
    """

    num_actions: Tensor  # [B] int64
    actions: ActionBatch  # S, int32

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.num_actions)

    def __getitem__(self, index: Tensor | slice) -> ActionSequences:
        """Return the trajectories selected by an index."""
        length, start = self.num_actions[index], self._starts[index]
        within = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
        return ActionSequences(length, self.actions[start.repeat_interleave(length) + within])

    @property
    def _starts(self) -> Tensor:
        return self.num_actions.cumsum(0) - self.num_actions

    @staticmethod
    def cat(batches: Sequence[ActionSequences]) -> ActionSequences:
        """Concatenate trajectories."""
        actions = ActionBatch.cat([batch.actions for batch in batches])
        return ActionSequences(torch.cat([batch.num_actions for batch in batches]), actions)

    def walk(self, env: Environment, *, conditioning: Conditioning, origin: Origin) -> TrajectoryBatch:
        """Replay the actions from the initial state; return the trajectories without rewards."""
        starts, num_taken = self._starts, 0

        def choose(states: GraphStates, alive: Tensor) -> ActionBatch:
            nonlocal num_taken
            actions = self.actions[starts[alive] + num_taken]
            num_taken += 1
            return ActionBatch(*(column.long() for column in actions.parts))

        with torch.inference_mode():
            steps = roll_out(env, env.initial_states(len(self)), choose)
        return assembled(env, steps, conditioning, origin)


def action_sequences(env: Environment, trajectories: TrajectoryBatch) -> ActionSequences:
    """Return the actions of trajectories sampled forward or backward, with nodes numbered in order of creation.

    A trajectory that was sampled backwards renumbers its nodes at each step: an added node takes the position that it
    had when it was removed. The numbers are tracked from the initial state on.
    """
    order = trajectories.trajectory.argsort(stable=True)
    length = torch.bincount(trajectories.trajectory, minlength=len(trajectories))
    start = length.cumsum(0) - length
    kind, row, column = (values[order] for values in trajectories.actions.parts)
    position, num_nodes = trajectories.backward.row[order], trajectories.states.num_nodes[order]
    names = torch.arange(env.vocabulary.max_nodes).repeat(len(trajectories), 1)  # [B, N]
    for step in range(int(length.max())):
        alive = (length > step).nonzero().squeeze(1)
        index = start[alive] + step
        actions = ActionBatch(kind[index], row[index], column[index])
        row[index] = actions.renamed(names[alive], directed=env.vocabulary.directed).row
        adds = (kind[index] == int(GraphActionType.AddNode)).nonzero().squeeze(1)
        names[alive[adds]] = _inserted(names[alive[adds]], position[index[adds]], num_nodes[index[adds]])
    return ActionSequences(length, ActionBatch(kind.to(_DTYPE), row.to(_DTYPE), column.to(_DTYPE)))


def _inserted(names: Tensor, position: Tensor, new: Tensor) -> Tensor:
    """Insert the node number `new` [B] into names [B, N] at a position [B]; later ones move up."""
    place = torch.arange(names.shape[1])
    moved = names.gather(1, torch.where(place > position[:, None], place - 1, place).clamp(min=0))
    return torch.where(place == position[:, None], new[:, None], moved)
