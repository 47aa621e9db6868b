"""The automorphisms of many states counted at once, where a glance is enough; the search is for the few others.

Letters: B graphs, N the most nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.states import GraphStates

UNKNOWN = 0
_NUM_ROUNDS = 3  # of colour refinement; more tell few further graphs apart
# Odd multipliers of splitmix64 (Steele et al. 2014) as signed numbers: products wrap around.
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_BYTE = 256  # type, attribute values and rank are int8 each
_MOST_ATTRIBUTES = 6  # that fit into one number of eight bytes beside type and mark or rank
_EXACT = 2**53  # whole numbers below it are exact in float64


def count_automorphisms(states: GraphStates) -> Tensor:
    """Return the number of automorphisms of each graph, [B] int64, UNKNOWN where it takes a search.

    Nodes get colours from what they are and what they are joined to (Weisfeiler and Leman 1968). An automorphism keeps
    colours, and so does hashing them: where all hashes differ, it can only be the identity. What is left are often
    twins, nodes that look alike from everywhere: every order of them is an automorphism, and |Aut| is the number of
    those orders times the number of automorphisms that keep the twins' order.
    """
    if max(states.node_attr.shape[-1], states.edge_attr.shape[-1]) > _MOST_ATTRIBUTES:
        return torch.full_like(states.num_nodes, UNKNOWN)
    counts = _is_rigid(states, torch.zeros_like(states.node_type)).long()
    left = (counts == UNKNOWN).nonzero().squeeze(1)
    if len(left):
        rest = states[left]
        rest = rest.truncated(max(1, int(rest.num_nodes.max())))  # twins take the cube of this
        rank = _twins(rest).tril(-1).sum(2)  # [b, N] twins before this node
        orders = (rank + 1).double().prod(1)
        counts[left] = torch.where(_is_rigid(rest, rank) & (orders < _EXACT), orders, UNKNOWN).long()
    return counts


def _is_rigid(states: GraphStates, mark: Tensor) -> Tensor:
    """Return which graphs certainly have no automorphism but the identity that keeps the marks [B, N], [B] bool."""
    pairs = _mixed(_edge_codes(states))
    pairs = pairs * 3 + pairs.transpose(1, 2)  # an edge and its reverse, seen from one end
    # What is not there gets colours of its own, and no edge.
    absent = ~states.exists
    colour = _mixed(_packed([mark, states.node_type, *states.node_attr.unbind(-1)]))
    colour = torch.where(absent, torch.arange(colour.shape[1]), colour)
    apart = ~(states.has_edge | states.has_edge.transpose(1, 2))
    for _ in range(_NUM_ROUNDS):
        heard = _mixed(pairs + colour[:, None, :]).masked_fill_(apart, 0).sum(2)
        colour = torch.where(absent, colour, _mixed(colour * 5 + heard))
    ordered = colour.sort(1).values
    return (ordered[:, 1:] != ordered[:, :-1]).all(1)


def _twins(states: GraphStates) -> Tensor:
    """Return which pairs of nodes can be swapped, all others staying where they are, [B, N, N] bool."""
    codes = _edge_codes(states)
    kind = _packed([states.node_type, *states.node_attr.unbind(-1)])
    loops = codes.diagonal(dim1=1, dim2=2)
    itself = torch.eye(codes.shape[1], dtype=torch.bool)
    same = (codes[:, :, None, :] == codes[:, None, :, :]) & (codes.mT[:, :, None, :] == codes.mT[:, None, :, :])
    same |= itself[:, None, :] | itself[None, :, :]  # a third node is neither of the two
    alike = (kind[:, :, None] == kind[:, None, :]) & (loops[:, :, None] == loops[:, None, :])
    return same.all(3) & alike & (codes == codes.mT) & states.exists[:, :, None]


def _edge_codes(states: GraphStates) -> Tensor:
    return _packed([states.edge_type, *states.edge_attr.unbind(-1), states.edge_order])


def _packed(parts: list[Tensor]) -> Tensor:
    """Return one number for up to eight int8 values."""
    code = parts[0].long()
    for part in parts[1:]:
        code = code * _BYTE + part
    return code


def _mixed(values: Tensor) -> Tensor:
    """Return the values hashed, int64."""
    values = (values ^ (values >> 30)) * _FIRST
    return (values ^ (values >> 27)) * _SECOND
