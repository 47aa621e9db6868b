"""Which states certainly have no symmetry, for a whole batch at once; the exact count is for the few others.

Letters: B graphs, N the most nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.states import GraphStates

_NUM_ROUNDS = 3  # of colour refinement; more tell few further graphs apart
# Odd multipliers of splitmix64 (Steele et al. 2014) as signed numbers: products wrap around.
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_BYTE = 256  # type, attribute values and rank are int8 each


def certainly_rigid(states: GraphStates) -> Tensor:
    """Return which graphs have no automorphism but the identity, [B] bool; False says that it is not known.

    Nodes get colours from what they are and what they are joined to (Weisfeiler and Leman 1968). An automorphism keeps
    colours, and so does hashing them: where all hashes differ, it can only be the identity.
    """
    n = states.node_type.shape[1]
    pairs = _mixed(_packed([states.edge_type, *states.edge_attr.unbind(-1), states.edge_order]))
    pairs = pairs * 3 + pairs.transpose(1, 2)  # an edge and its reverse, seen from one end
    colour = _mixed(_packed([states.node_type, *states.node_attr.unbind(-1)]))
    # What is not there is no node; each gets a colour of its own, and no edge.
    absent = ~states.exists
    colour = torch.where(absent, torch.arange(n), colour)
    edge = states.has_edge | states.has_edge.transpose(1, 2)
    for _ in range(_NUM_ROUNDS):
        heard = _mixed(pairs + colour[:, None, :]).masked_fill_(~edge, 0).sum(2)
        colour = torch.where(absent, colour, _mixed(colour * 5 + heard))
    ordered = colour.sort(1).values
    return (ordered[:, 1:] != ordered[:, :-1]).all(1)


def _packed(parts: list[Tensor]) -> Tensor:
    """Return one number for several int8 values; with more than eight of them the product wraps, which only blurs."""
    code = parts[0].long()
    for part in parts[1:]:
        code = code * _BYTE + part
    return code


def _mixed(values: Tensor) -> Tensor:
    """Return the values hashed, int64."""
    values = (values ^ (values >> 30)) * _FIRST
    return (values ^ (values >> 27)) * _SECOND
