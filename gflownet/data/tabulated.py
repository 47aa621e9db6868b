"""Sampling in small environments: one evaluation of the policy on all states, then steps by table.

Letters: S states, A slots of a distribution, B trajectories, M steps of all trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.states import GraphStates

_MAX_PER_TRAJECTORY = 4  # states of a table per trajectory; a larger table costs more than it saves
_AFTER_STOP = -1


@dataclass(frozen=True)
class Walks:
    """Steps of B trajectories, earlier ones first."""

    state: Tensor  # [M] int64, in the table
    slot: Tensor  # [M] int64
    trajectory: Tensor  # [M] int64
    log_backward: Tensor  # [M] float32, of the uniform P_B


@dataclass(frozen=True)
class StateTable:
    """All states of an environment and its transitions."""

    states: GraphStates  # S, the initial one first
    batch: Batch
    successor: Tensor  # [S, A] int64, the state after the action at a slot, or _AFTER_STOP
    log_backward: Tensor  # [S + 1] float32, of the step into a state; the last one of Stop

    def suits(self, conditioning: Tensor) -> bool:
        """Return whether trajectories with conditioning [B, C] are cheap to sample by this table."""
        is_small = len(self.states) <= _MAX_PER_TRAJECTORY * len(conditioning)
        return is_small and bool((conditioning == conditioning[:1]).all())

    def walk(self, categorical: GraphActionCategorical, num: int, generator: torch.Generator) -> Walks:
        """Return `num` trajectories from the distributions of all states.

        Raises:
            FloatingPointError: a state has nan or inf logits.
        """
        sample = categorical.sampler(generator)
        alive, state, steps = torch.arange(num), torch.zeros(num, dtype=torch.int64), []
        while len(alive):
            slot = sample(state)
            after = self.successor[state, slot]
            steps.append((state, slot, alive, after))
            goes_on = (after != _AFTER_STOP).nonzero().squeeze(1)
            alive, state = (alive, after) if len(goes_on) == len(alive) else (alive[goes_on], after[goes_on])
        visited, slot, trajectory, after = (torch.cat(part) for part in zip(*steps, strict=True))
        return Walks(visited, slot, trajectory, self.log_backward[after])


@lru_cache(maxsize=4)
def state_table(context: GraphBuildingEnvContext) -> StateTable | None:
    """Return the table of an environment with few states, see `Environment.every_state`; else None."""
    with torch.inference_mode(False):
        env = context.env
        states = env.every_state()
        if states is None:
            return None
        batch = context.to_batch(states)
        graph, actions = env.forward_masks(states).without_stop().positions()
        codes, order = env.identify(states).sort()
        after = order[torch.searchsorted(codes, env.identify(env.apply(states[graph], actions)))]
        masks = context.masks(batch)
        uniform = context.categorical(batch, [torch.zeros(mask.shape) for mask in masks])
        slot = uniform.slots_of(context.to_indices(batch, actions, graphs=graph), graphs=graph)
        successor = torch.full(uniform.slots.shape, _AFTER_STOP)
        successor[graph, slot] = after
        log_backward = torch.cat([-env.backward_masks(states).num_actions().log(), torch.zeros(1)])
        return StateTable(states, batch, successor, log_backward)
