"""Trajectories from the initial state to a terminal state.

Letters: B trajectories, S steps of all of them, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.states import GraphStates


class Origin(IntEnum):
    """The source of a trajectory."""

    SAMPLED = 0  # forwards from the current policy, with exploration
    REMEMBERED = 1  # sampled at an earlier step and stored, or by another policy (a teacher)
    RESAMPLED = 2  # sampled backwards from a terminal state


@dataclass(frozen=True)
class Trajectory:
    """One trajectory: the states before each action, the actions (the last is Stop), and the terminal state."""

    states: GraphStates  # T states
    actions: ActionBatch  # T actions
    log_backward: Tensor  # [T] log P_B(states[t] | state after action t)
    terminal: GraphStates  # 1 state
    log_symmetry: float  # log |Aut(x)| - log |Aut(s0)|
    log_reward: float | None  # None: not evaluated yet


@dataclass(frozen=True)
class TrajectoryBatch:
    """B trajectories, their steps flattened.

    The optional fields are None until they are computed; the properties `log_reward`, `state_log_reward` and
    `log_forward` return them and raise where they are missing.
    """

    states: GraphStates  # S states, each before its action; the steps of one trajectory in order
    trajectory: Tensor  # [S] int64, the trajectory of each step
    actions: ActionBatch  # S forward actions
    backward: ActionBatch  # S actions that undo them in the next state; Stop for Stop
    log_backward: Tensor  # [S] log of the uniform P_B of undoing the action
    terminal: GraphStates  # B states
    origin: Tensor  # [B] int8, an Origin
    conditioning: Tensor  # [B, C] float32
    beta: Tensor  # [B] float32, inverse temperature of the reward
    log_symmetry: Tensor  # [B] log |Aut(x)| - log |Aut(s0)|
    optional_log_reward: Tensor | None = None  # [B]
    optional_state_log_reward: Tensor | None = None  # [S] log-reward of states in which Stop is legal, else 0
    optional_log_forward: Tensor | None = None  # [S] log P_F of the action when the objective first read the batch

    @property
    def log_reward(self) -> Tensor:
        """Return the log-reward of each trajectory, [B]; ValueError before `with_rewards`."""
        return self._present(self.optional_log_reward, "log_reward", "with_rewards")

    @property
    def state_log_reward(self) -> Tensor:
        """Return the log-reward of the state before each step, [S]; ValueError before `with_state_rewards`."""
        return self._present(self.optional_state_log_reward, "state_log_reward", "with_state_rewards")

    @property
    def log_forward(self) -> Tensor:
        """Return the log P_F of each step at sampling time, [S]; ValueError before `with_log_forward`."""
        return self._present(self.optional_log_forward, "log_forward", "with_log_forward")

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.terminal)

    def __getitem__(self, index: int) -> Trajectory:
        """Return one trajectory."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"trajectory {index}: expected one of {len(self)}")
        steps = (self.trajectory == index % len(self)).nonzero().squeeze(1)
        return Trajectory(
            states=self.states[steps],
            actions=self.actions[steps],
            log_backward=self.log_backward[steps],
            terminal=self.terminal[torch.tensor([index])],
            log_symmetry=float(self.log_symmetry[index]),
            log_reward=None if self.optional_log_reward is None else float(self.optional_log_reward[index]),
        )

    def successors(self) -> tuple[Tensor, Tensor]:
        """Return all steps but the last of each trajectory and their successors, [S - B] each."""
        order = self.trajectory.argsort(stable=True)
        follows = self.trajectory[order[1:]] == self.trajectory[order[:-1]]
        return order[:-1][follows], order[1:][follows]

    def split(self, num_parts: int) -> list[TrajectoryBatch]:
        """Return the trajectories in at most `num_parts` batches of similar size, in order."""
        size = math.ceil(len(self) / num_parts)
        return [self.part(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def part(self, start: int, stop: int) -> TrajectoryBatch:
        """Return trajectories `start` to `stop` - 1."""
        return self.rows(torch.arange(start, min(stop, len(self))))

    def rows(self, index: Tensor) -> TrajectoryBatch:
        """Return the trajectories with these different indices, in this order."""
        position = torch.full((len(self),), -1).index_copy(0, index, torch.arange(len(index)))
        steps = (position[self.trajectory] >= 0).nonzero().squeeze(1)
        selected = {f.name: steps if f.name in _PER_STEP else index for f in fields(TrajectoryBatch)}
        present = {name: value for name in selected if (value := getattr(self, name)) is not None}
        part = TrajectoryBatch(**{name: value[selected[name]] for name, value in present.items()})
        return replace(part, trajectory=position[part.trajectory])

    def with_rewards(self, log_reward: Tensor) -> TrajectoryBatch:
        """Return the same trajectories with their log-rewards, [B]."""
        return replace(self, optional_log_reward=log_reward)

    def with_state_rewards(self, log_reward: Tensor) -> TrajectoryBatch:
        """Return the same trajectories with the log-rewards of the states before their steps, [S]."""
        return replace(self, optional_state_log_reward=log_reward)

    def with_log_forward(self, log_forward: Tensor) -> TrajectoryBatch:
        """Return the same trajectories with the log P_F of their steps, [S]."""
        return replace(self, optional_log_forward=log_forward)

    @staticmethod
    def cat(batches: Sequence[TrajectoryBatch]) -> TrajectoryBatch:
        """Return the concatenated batches.

        Raises:
            ValueError: some of the batches have an optional field that others lack.
        """
        starts = torch.tensor([0, *(len(b) for b in batches)]).cumsum(0)
        parts = {}
        for field in fields(TrajectoryBatch):
            values = [getattr(b, field.name) for b in batches]
            num_missing = sum(value is None for value in values)
            if num_missing == len(batches):
                continue
            if num_missing:
                name = field.name.removeprefix("optional_")
                raise ValueError(
                    f"{name}: expected it in all {len(batches)} batches or in none, {num_missing} are without"
                )
            if field.name == "trajectory":
                parts[field.name] = torch.cat([v + s for v, s in zip(values, starts, strict=False)])
            elif isinstance(values[0], Tensor):
                parts[field.name] = torch.cat(values)
            else:
                parts[field.name] = type(values[0]).cat(values)
        return TrajectoryBatch(**parts)

    def _present(self, value: Tensor | None, name: str, setter: str) -> Tensor:
        if value is None:
            raise ValueError(f"{name}: expected a batch with it (`{setter}`), got {len(self)} trajectories without")
        return value


_PER_STEP = frozenset(
    {
        *("states", "trajectory", "actions", "backward", "log_backward"),
        *("optional_state_log_reward", "optional_log_forward"),
    }
)
