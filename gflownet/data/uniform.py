"""Architectures from uniformly random actions, the baseline of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gflownet.data.sampler import roll_out, terminal_states
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

if TYPE_CHECKING:
    from gflownet.graphs.canonical import Candidate

_BATCH_SIZE = 64
# In a small space most samples are known: the number of samples per wanted architecture is bounded.
_MAX_SAMPLES = 10


def uniform_states(env: Environment, num: int, *, generator: torch.Generator) -> GraphStates:
    """Return `num` terminal states, sampled with a uniformly random legal action in each step."""

    def choose(states: GraphStates, _: torch.Tensor) -> ActionBatch:
        return env.forward_masks(states).sample_uniform(generator)

    return terminal_states(roll_out(env, env.initial_states(num), choose))


def uniform_candidates(env: Environment, num: int, *, generator: torch.Generator) -> list[Candidate]:
    """Return up to `num` different terminal objects, sampled with a uniformly random legal action in each step."""
    candidates: dict[str, Candidate] = {}
    for _ in range(0, _MAX_SAMPLES * num, _BATCH_SIZE):
        states = uniform_states(env, _BATCH_SIZE, generator=generator)
        for index in range(_BATCH_SIZE):
            candidate = env.terminal(states, index)
            candidates.setdefault(candidate.canonical_key(), candidate)
        if len(candidates) >= num:
            break
    return list(candidates.values())[:num]
