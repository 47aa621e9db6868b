"""Tables of all states of a small environment, encoded once, with every transition.

Letters: S states, A slots of a distribution, B trajectories, M steps of all trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.layout import Batch
from gflownet.mdp.states import GraphStates

_AFTER_STOP = -1


@dataclass(frozen=True)
class StateTable:
    """All states of an environment and its transitions."""

    env: Environment
    states: GraphStates  # S, the initial one first
    batch: Batch
    codes: Tensor  # [S] int64, ascending
    order: Tensor  # [S] int64, the state of each code
    successor: Tensor  # [S, A] int64, the state after the action at a slot, or _AFTER_STOP
    moves: Tensor  # [S * A, 6] int64, the action at a slot of a state and its inverse
    log_backward: Tensor  # [S + 1] float32, log P_B of the step into a state if it is uniform; the last one of Stop

    def suits(self, conditioning: Tensor, limit: Tensor | None, *, num: int) -> bool:
        """Return whether there are at most `num` states and all trajectories have one conditioning [B, C].

        None with another limit [B, K] than the environment's own: masks and features of the table use that.
        """
        if len(self.codes) > num or (limit is not None and not bool((limit == self.states.limit[:1]).all())):
            return False
        return bool((conditioning == conditioning[:1]).all())

    def locate(self, states: GraphStates) -> Tensor:
        """Return the place of each state in the table, [B] int64."""
        return self.order[torch.searchsorted(self.codes, self.env.identify(states))]

    def walk(self, categorical: GraphActionCategorical, num: int, generator: torch.Generator) -> Walks:
        """Return `num` trajectories from the distributions of all states.

        Raises:
            FloatingPointError: a state has nan or inf logits.
        """
        # NumPy is faster than PyTorch on arrays of few numbers.
        sample, successor = categorical.sampler(generator), self.successor.numpy()
        alive, state, steps = np.arange(num), np.zeros(num, dtype=np.int64), []
        while len(alive):
            slot = sample(state)
            after = successor[state, slot]
            steps.append((state, slot, alive, after))
            goes_on = after != _AFTER_STOP
            alive, state = alive[goes_on], after[goes_on]
        return Walks(*(torch.from_numpy(np.concatenate(part)) for part in zip(*steps, strict=True)))

    def actions(self, walks: Walks) -> tuple[ActionBatch, ActionBatch]:
        """Return the actions of all steps and their inverses."""
        kind, row, column, *inverse = self.moves[walks.state * self.successor.shape[1] + walks.slot].unbind(1)
        return ActionBatch(kind, row, column), ActionBatch(*inverse)


@dataclass(frozen=True)
class Walks:
    """Steps of B trajectories, earlier ones first."""

    state: Tensor  # [M] int64, in the table
    slot: Tensor  # [M] int64
    trajectory: Tensor  # [M] int64
    after: Tensor  # [M] int64, the next state, or _AFTER_STOP


@lru_cache(maxsize=4)
def state_table(context: GraphBuildingEnvContext) -> StateTable | None:
    """Return the table of an environment with few states, see `Environment.every_state`; else None."""
    with torch.inference_mode(False):
        env = context.env
        states = env.every_state()
        if states is None:
            return None
        batch, (codes, order) = context.to_batch(states), env.identify(states).sort()
        graph, actions = env.forward_masks(states).positions()
        before = states[graph]
        after = order[torch.searchsorted(codes, env.identify(env.apply(before, actions)))]
        after = after.masked_fill(actions.kind == int(GraphActionType.Stop), _AFTER_STOP)
        uniform = context.categorical(batch, [torch.zeros(mask.shape) for mask in context.masks(batch)])
        at = graph, uniform.slots_of(context.to_indices(batch, actions, graphs=graph), graphs=graph)
        successor = torch.full(uniform.slots.shape, _AFTER_STOP)
        moves = torch.zeros(*uniform.slots.shape, 6, dtype=torch.int64)
        successor[at], moves[at] = after, torch.stack([*actions.parts, *env.reverse(before, actions).parts], 1)
        log_backward = torch.cat([-env.backward_masks(states).num_actions().log(), torch.zeros(1)])
        return StateTable(env, states, batch, codes, order, successor, moves.flatten(0, 1), log_backward)
