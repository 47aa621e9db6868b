"""Samples within the hard caps of a run: refused candidates are replaced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gflownet.mdp.states import GraphStates
from gflownet.search.history import first_mask
from gflownet.search.method import SearchSetup

# Rounds of samples per call: where all of them are refused or known, the space has hardly any other candidate.
_MAX_ROUNDS = 50

Sample = Callable[[int], GraphStates]  # number -> that many terminal states


def allowed_states(setup: SearchSetup, num: int, sample: Sample, *, only_new: bool = False) -> GraphStates:
    """Return up to `num` sampled terminal states that no hard cap refuses.

    Args:
        setup: has the caps and the history.
        num: at least 1.
        sample: returns terminal states; called until there are enough.
        only_new: leave out architectures that are evaluated, in flight or sampled twice.
    """
    env, parts, num_missing = setup.context.env, [], num
    codes: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        states = sample(num_missing)
        mask = is_allowed(setup, states)
        if only_new:
            mask &= setup.history.is_unknown(env.identify(states)) & first_mask(env.identify(states), codes)
        parts.append(states[mask.nonzero().squeeze(1)])
        num_missing -= len(parts[-1])
        if not num_missing:
            break
    return GraphStates.cat(parts)


def is_allowed(setup: SearchSetup, states: GraphStates) -> torch.Tensor:
    """Return which terminal states [B] no hard cap refuses, [B] bool."""
    env = setup.context.env
    refused = [setup.is_refused(env.terminal(states, index)) for index in range(len(states))]
    return ~torch.tensor(refused, dtype=torch.bool)
