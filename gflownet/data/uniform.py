"""Architectures from uniformly random actions, the baseline of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gflownet.data.sampler import roll_out
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

if TYPE_CHECKING:
    from gflownet.graphs.canonical import Candidate

_BATCH_SIZE = 64
# In a small space most samples are known: the number of samples per wanted architecture is bounded.
_MAX_SAMPLES = 10


def uniform_candidates(env: Environment, num: int, *, generator: torch.Generator) -> list[Candidate]:
    """Return up to `num` different terminal objects, sampled with a uniformly random legal action in each step."""

    def choose(states: GraphStates, _: torch.Tensor) -> ActionBatch:
        return env.forward_masks(states).sample_uniform(generator)

    candidates: dict[str, Candidate] = {}
    for _ in range(0, _MAX_SAMPLES * num, _BATCH_SIZE):
        terminal: dict[int, Candidate] = {}
        for step in roll_out(env, env.initial_states(_BATCH_SIZE), choose):
            stops = (step.actions.kind == int(GraphActionType.Stop)).nonzero().squeeze(1)
            states = step.states[stops]
            terminal |= {
                trajectory: env.terminal(states, i) for i, trajectory in enumerate(step.trajectory[stops].tolist())
            }
        for trajectory in range(_BATCH_SIZE):  # in this order, because short trajectories stop first
            candidates.setdefault(terminal[trajectory].canonical_key(), terminal[trajectory])
        if len(candidates) >= num:
            break
    return list(candidates.values())[:num]
