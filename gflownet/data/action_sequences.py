"""Trajectories as nothing but their actions: small enough to be kept, and enough to walk them again.

Letters: B trajectories, S steps of all of them, N the most nodes.
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

_DTYPE = torch.int32  # of a part of an action, wide enough for any row and column


@dataclass(frozen=True)
class ActionSequences:
    """The forward actions of B trajectories, one trajectory after another, the last one of each a Stop.

    A node is named by its position in the state that the actions themselves have led to.
    """

    num_actions: Tensor  # [B] int64
    actions: ActionBatch  # S, int32

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.num_actions)

    def __getitem__(self, index: Tensor | slice) -> ActionSequences:
        """Return the trajectories chosen by an index."""
        length, start = self.num_actions[index], self._starts[index]
        within = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
        return ActionSequences(length, self.actions[start.repeat_interleave(length) + within])

    @property
    def _starts(self) -> Tensor:
        return self.num_actions.cumsum(0) - self.num_actions

    @staticmethod
    def cat(parts: Sequence[ActionSequences]) -> ActionSequences:
        """Return the trajectories of all parts one after another."""
        actions = ActionBatch.cat([part.actions for part in parts])
        return ActionSequences(torch.cat([part.num_actions for part in parts]), actions)

    def walk(self, env: Environment, *, conditioning: Conditioning, origin: Origin) -> TrajectoryBatch:
        """Return the trajectories from the initial state, without rewards."""
        starts, num_taken = self._starts, 0

        def choose(states: GraphStates, alive: Tensor) -> ActionBatch:
            nonlocal num_taken
            taken = self.actions[starts[alive] + num_taken]
            num_taken += 1
            return ActionBatch(*(part.long() for part in taken.parts))

        with torch.inference_mode():
            steps = roll_out(env, env.initial_states(len(self)), choose)
        return assembled(env, steps, conditioning, origin)


def action_sequences(env: Environment, trajectories: TrajectoryBatch) -> ActionSequences:
    """Return the actions of trajectories, forward or backward ones, with nodes named as they come.

    A trajectory that was sampled backwards names its nodes afresh at each step: a node that is added takes the
    position that it had when it was removed. Names are followed from the initial state on.
    """
    order = trajectories.trajectory.argsort(stable=True)
    length = torch.bincount(trajectories.trajectory, minlength=len(trajectories))
    start = length.cumsum(0) - length
    kind, row, column = (part[order] for part in trajectories.actions.parts)
    position, num_nodes = trajectories.backward.row[order], trajectories.states.num_nodes[order]
    names = torch.arange(env.vocabulary.max_nodes).repeat(len(trajectories), 1)  # [B, N]
    for step in range(int(length.max())):
        alive = (length > step).nonzero().squeeze(1)
        at = start[alive] + step
        taken = ActionBatch(kind[at], row[at], column[at])
        row[at] = taken.renamed(names[alive], directed=env.vocabulary.directed).row
        adds = (kind[at] == int(GraphActionType.AddNode)).nonzero().squeeze(1)
        names[alive[adds]] = _inserted(names[alive[adds]], position[at[adds]], num_nodes[at[adds]])
    return ActionSequences(length, ActionBatch(kind.to(_DTYPE), row.to(_DTYPE), column.to(_DTYPE)))


def _inserted(names: Tensor, position: Tensor, new: Tensor) -> Tensor:
    """Return names [B, N] after a node called `new` [B] was put in at a position [B]; those from there on move up."""
    place = torch.arange(names.shape[1])
    moved = names.gather(1, torch.where(place > position[:, None], place - 1, place).clamp(min=0))
    return torch.where(place == position[:, None], new[:, None], moved)
