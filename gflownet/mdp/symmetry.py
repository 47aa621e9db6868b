"""Who is isomorphic to whom, and how many automorphisms each has: many states at once, where a short search is enough.

Nodes get colours from what they are and what they are joined to (Weisfeiler and Leman 1968), all hashed to 64 bits.
Where all nodes differ, the colours themselves say which graph it is. Otherwise one node after another is told apart
from its like, in every way there is (McKay, Practical graph isomorphism, 1981), all graphs side by side.

Letters: B graphs, N the most nodes, L nodes of the search trees of all graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gflownet.mdp.states import GraphStates

UNKNOWN = 0
_NUM_ROUNDS = 3  # of colour refinement; more tell few further graphs apart
_MOST_LEAVES = 256  # of a search tree; what needs more is left to a search that prunes it
_ENTRIES = 2**21  # entries of one array at a time, to bound memory
# Increment and odd multipliers of splitmix64 (Steele et al. 2014) as signed numbers: sums and products wrap around.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_CHOSEN = 0x1E3779B97F4A7C15  # added to the colour of a node that is told apart from its like
_BYTE = 256  # type, attribute values and rank are int8 each
_MOST_ATTRIBUTES = 6  # that fit into one number of eight bytes beside type and rank
_EXACT = 2**53  # whole numbers below it are exact in float64


@dataclass(frozen=True)
class Identities:
    """What isomorphic graphs share."""

    code: Tensor  # [B] int64, even; equal iff isomorphic (but for collisions of 63 bits) where it is known
    num_automorphisms: Tensor  # [B] int64, UNKNOWN where a short search does not tell it, nor the code
    colour: Tensor  # [B, N] int64, distinct within a known graph; equal colours correspond under an isomorphism

    @property
    def known(self) -> Tensor:
        """Return which codes and counts mean something, [B] bool: the same for isomorphic graphs."""
        return self.num_automorphisms != UNKNOWN


_FIELDS = tuple(field.name for field in fields(Identities))


@dataclass(frozen=True)
class _Coloured:
    """Graphs in the colours of their nodes."""

    pairs: Tensor  # [B, N, N] int64, an edge and its reverse, seen from one end
    apart: Tensor  # [B, N, N] bool, no edge either way
    absent: Tensor  # [B, N] bool
    colour: Tensor  # [B, N] int64; what is not there has colours of its own

    def __getitem__(self, index: Tensor) -> _Coloured:
        return _Coloured(self.pairs[index], self.apart[index], self.absent[index], self.colour[index])

    def refined(self, num_rounds: int) -> _Coloured:
        """Return the graphs after some rounds in which every node hears the colours around it."""
        colour = self.colour
        for _ in range(num_rounds):
            heard = _mixed(self.pairs + colour[:, None, :]).masked_fill_(self.apart, 0).sum(2)
            colour = torch.where(self.absent, colour, _mixed(colour * 5 + heard))
        return _Coloured(self.pairs, self.apart, self.absent, colour)

    def is_discrete(self) -> Tensor:
        """Return in which graphs no two nodes look alike, [B] bool."""
        ordered = self.colour.sort(1).values
        return (ordered[:, 1:] != ordered[:, :-1]).all(1)

    def codes(self) -> Tensor:
        """Return a number for each graph without like nodes, [B] int64, that isomorphic ones alone share.

        After one more round a node's colour tells its own and its neighbours' former colours, which name them.
        """
        told = self.refined(1)
        total = _mixed(told.colour).masked_fill_(self.absent, 0).sum(1)
        return _mixed(total) << 1


def identify_states(states: GraphStates, marks: Tensor | None = None) -> Identities:
    """Return the identity and the number of automorphisms of each graph.

    Args:
        states: B graphs.
        marks: [B, N] int64, further colours of the nodes; none if not given.
    """
    num, n = states.node_type.shape
    marks = torch.zeros_like(states.node_type, dtype=torch.int64) if marks is None else marks
    size = max(1, _ENTRIES // max(1, n * n))
    if max(states.node_attr.shape[-1], states.edge_attr.shape[-1]) > _MOST_ATTRIBUTES:
        return Identities(torch.zeros_like(states.num_nodes), torch.full_like(states.num_nodes, UNKNOWN), marks)
    starts = range(0, max(num, 1), size)
    parts = [_identify(states[first : first + size], marks[first : first + size]) for first in starts]
    return Identities(*(torch.cat([getattr(p, name) for p in parts]) for name in _FIELDS))


def combine_codes(*codes: Tensor) -> Tensor:
    """Return one code for several numbers each, [B] int64."""
    combined = _mixed(codes[0])
    for code in codes[1:]:
        combined = _mixed(combined + code)
    return combined


def _identify(states: GraphStates, marks: Tensor) -> Identities:
    graphs = _coloured(states, marks).refined(_NUM_ROUNDS)
    # An automorphism keeps colours: where all differ, it can only be the identity.
    counts, codes, colour = graphs.is_discrete().long(), graphs.codes(), graphs.colour
    left = (counts == UNKNOWN).nonzero().squeeze(1)
    if len(left):
        found = _identify_symmetric(states[left], marks[left])
        codes[left], counts[left] = found.code, found.num_automorphisms
        colour[left, : found.colour.shape[1]] = found.colour
    return Identities(codes.masked_fill_(counts == UNKNOWN, 0), counts, colour)


def _identify_symmetric(states: GraphStates, marks: Tensor) -> Identities:
    """Return the identities of graphs with nodes that look alike.

    Often these are twins, which look alike from everywhere: every order of them is an automorphism, and |Aut| is the
    number of those orders times the number of automorphisms that keep the twins' order.
    """
    n = max(1, int(states.num_nodes.max()))  # twins take the cube of this
    states, marks = states.truncated(n), marks[:, :n]
    rank = _twins(states, marks).tril(-1).sum(2)  # [B, N] twins before this node
    orders = (rank + 1).double().prod(1)
    graphs = _coloured(states, marks * _BYTE + rank).refined(_NUM_ROUNDS)
    codes, counts, colour = graphs.codes(), graphs.is_discrete().long(), graphs.colour
    left = (counts == UNKNOWN).nonzero().squeeze(1)
    for part in left.split(max(1, _ENTRIES // (_MOST_LEAVES * states.node_type.shape[1] ** 2))):
        codes[part], counts[part], colour[part] = _search(graphs[part])
    total = counts * orders
    return Identities(codes, torch.where(total < _EXACT, total, UNKNOWN).long(), colour)


def _search(graphs: _Coloured) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [B] and numbers of automorphisms [B] by telling like nodes apart in all ways; UNKNOWN if too many.

    The third result are the colours [B, N] of the first way that ends in that code.

    Each way ends in a graph without like nodes. The least code of these stands for the graph. Two ways end in one code
    iff an automorphism leads from one to the other, so that the ways to the least code are as many as these.
    """
    num, colour = graphs.colour.shape[0], graphs.colour
    owner = torch.arange(num)
    owners, codes, num_leaves = [owner[:0]], [owner[:0]], torch.zeros(num, dtype=torch.int64)
    colours = [colour[:0]]
    while len(owner):
        done = graphs.is_discrete()
        owners.append(owner[done])
        codes.append(graphs[done].codes())
        colours.append(graphs.colour[done])
        num_leaves += owner[done].bincount(minlength=num)
        graphs, owner = graphs[~done], owner[~done]
        row, graphs = _branches(graphs)
        owner = owner[row]
        small = num_leaves + owner.bincount(minlength=num) <= _MOST_LEAVES
        num_leaves = torch.where(small, num_leaves, _MOST_LEAVES + 1)
        graphs, owner = graphs[small[owner]].refined(_NUM_ROUNDS), owner[small[owner]]
    leaf_owner, leaf_code = torch.cat(owners), torch.cat(codes)
    least = torch.zeros(num, dtype=torch.int64).scatter_reduce(0, leaf_owner, leaf_code, "amin", include_self=False)
    chosen = (leaf_code == least[leaf_owner]).nonzero().squeeze(1)
    counts = leaf_owner[chosen].bincount(minlength=num)
    first = torch.full((num,), len(leaf_code)).scatter_reduce(0, leaf_owner[chosen], chosen, "amin")
    complete = first < len(leaf_code)
    colour = colour.clone()
    colour[complete] = torch.cat(colours)[first[complete]]
    return least, torch.where(num_leaves <= _MOST_LEAVES, counts, UNKNOWN), colour


def _branches(graphs: _Coloured) -> tuple[Tensor, _Coloured]:
    """Return each graph [L] (and its row) once per node of its first set of like nodes, with that node recoloured."""
    ordered = graphs.colour.sort(1).values
    again = (ordered[:, 1:] == ordered[:, :-1]).int().argmax(1, keepdim=True)
    row, node = (graphs.colour == ordered.gather(1, again)).nonzero(as_tuple=True)
    branches = graphs[row]
    here = torch.arange(len(row)), node
    branches.colour[here] = _mixed(branches.colour[here] + _CHOSEN)
    return row, branches


def _coloured(states: GraphStates, marks: Tensor) -> _Coloured:
    """Return the graphs in colours that say what nodes are and how they are marked [B, N]."""
    pairs = _mixed(_edge_codes(states))
    kind = _mixed(_mixed(_packed([states.node_type, *states.node_attr.unbind(-1)])) + marks)
    return _Coloured(
        pairs=pairs * 3 + pairs.transpose(1, 2),
        apart=~(states.has_edge | states.has_edge.transpose(1, 2)),
        absent=~states.exists,
        colour=torch.where(states.exists, kind, torch.arange(kind.shape[1])),
    )


def _twins(states: GraphStates, marks: Tensor) -> Tensor:
    """Return which pairs of nodes can be swapped, all others staying where they are, [B, N, N] bool."""
    codes = _edge_codes(states)
    kind = _mixed(_packed([states.node_type, *states.node_attr.unbind(-1)])) + marks
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
    values = values + _STEP  # so that zero is nothing special
    values = (values ^ (values >> 30)) * _FIRST
    return (values ^ (values >> 27)) * _SECOND
