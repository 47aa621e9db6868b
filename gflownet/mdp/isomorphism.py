"""Batched isomorphism codes, canonical node orders and automorphism counts of states.

Node colours, hashed to 64 bits, are refined by the colours of the neighbours (Weisfeiler and Leman 1968). If all
nodes of a graph differ, the colours determine its code. Otherwise nodes of equal colour are individualised in every
way (McKay, Practical graph isomorphism, 1981), all graphs of the batch at once. The few graphs with too large a search
tree are searched one by one by `ColouredGraph.canonical_form`, which prunes the tree.

Letters: B graphs, N maximum number of nodes, L nodes of the search trees of all graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256

import torch
from torch import Tensor

from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.states import GraphStates, GraphVocabulary

UNKNOWN = 0  # automorphism count of a graph whose search tree is too large
_NUM_ROUNDS = 3  # of colour refinement; more separate few further graphs
_MAX_LEAVES = 256  # of a search tree of the batched search
_MAX_ENTRIES = 2**21  # of one array at a time, to bound memory
_CACHE_SIZE = 20_000  # states with a result of the single search
# Increment and odd multipliers of splitmix64 (Steele et al. 2014) as signed numbers: sums and products wrap around.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_CHOSEN = 0x1E3779B97F4A7C15  # added to the colour of an individualised node
_BYTE = 256  # type, attribute values and rank are int8 each
_NUM_BYTES = 8  # of an integer
_MAX_EXACT = 2**53  # integers below it are exact in float64


@dataclass(frozen=True)
class CanonicalForms:
    """Isomorphism codes, automorphism counts and canonical node orders of B states.

    Isomorphic states have the same code; nodes at the same place of their orders correspond.
    """

    code: Tensor  # [B] int64, equal iff isomorphic, but for collisions of 63 bits
    num_automorphisms: Tensor  # [B] int64, UNKNOWN where code and order are not canonical
    order: Tensor  # [B, N] int64, the node at each place; absent nodes keep their places at the end

    @property
    def known(self) -> Tensor:
        """Return which states have a canonical form here, [B] bool: the same for isomorphic states."""
        return self.num_automorphisms != UNKNOWN

    def __getitem__(self, index: Tensor) -> CanonicalForms:
        """Return the forms at an index."""
        return CanonicalForms(self.code[index], self.num_automorphisms[index], self.order[index])

    @staticmethod
    def cat(parts: Sequence[CanonicalForms]) -> CanonicalForms:
        """Return the concatenated forms."""
        return CanonicalForms(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(CanonicalForms)))

    def representatives(self) -> Tensor:
        """Return the first isomorphic state of each state, [B] int64; the state itself if its form is unknown."""
        position = torch.arange(len(self.code))
        _, owner = self.code.unique(return_inverse=True)
        first = torch.full_like(position, len(position))
        first = first.scatter_reduce(0, owner[self.known], position[self.known], "amin")
        return torch.where(self.known, first[owner], position)

    def isomorphism(self, target: Tensor) -> Tensor:
        """Return the node of the isomorphic state `target` [B] that corresponds to each node of each state, [B, N]."""
        return self.order[target].gather(1, self.order.argsort(1))


class StateIdentifier:
    """Codes and automorphism counts of one environment's states, for all of them: batched search, then single ones.

    Args:
        vocabulary: the environment's.
        coloured_graph: maps a batch of states and a position to the state as a coloured graph.
    """

    def __init__(
        self, vocabulary: GraphVocabulary, coloured_graph: Callable[[GraphStates, int], ColouredGraph]
    ) -> None:
        self._vocabulary, self._coloured_graph = vocabulary, coloured_graph
        self._results: dict[bytes, tuple[int, int]] = {}  # code and number of automorphisms of a state

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        """Return the number of automorphisms of each state."""
        _, counts, _ = identify_batch(states)
        return [count or self._search(states, i)[1] for i, count in enumerate(counts.tolist())]

    def identify(self, states: GraphStates, marks: Tensor | None = None) -> Tensor:
        """Return a code of each state, with the nodes' `marks` [B, N] as further colours; [B] int64."""
        codes, counts, _ = identify_batch(states, marks)
        for i in (counts == UNKNOWN).nonzero().squeeze(1).tolist():
            codes[i] = self._search(states, i, () if marks is None else marks[i].tolist())[0]
        return codes

    def identify_actions(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return a code of each state with an action, [B] int64."""
        return combine_codes(self.identify(states, self._marks(states, actions)), actions.kind, actions.column)

    def _marks(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return the nodes of the actions as marks [B, N]: 1, the target of a directed pair 2."""
        marks, n = torch.zeros(states.node_type.shape, dtype=torch.int64), self._vocabulary.max_nodes
        graphs = torch.arange(len(states))
        on_pair = torch.isin(actions.kind, torch.tensor(sorted(PAIR_TYPES)))
        is_stop = actions.kind == int(GraphActionType.Stop)
        marks[graphs, torch.where(on_pair, actions.row // n, actions.row)] = (~is_stop).long()
        marks[graphs[on_pair], actions.row[on_pair] % n] += 2 if self._vocabulary.directed else 1
        return marks

    def _search(self, states: GraphStates, index: int, marks: Sequence[int] = ()) -> tuple[int, int]:
        """Return code (odd; codes of the batched search are even) and automorphism count of a state, cached."""
        state = states[index]
        n = int(state.num_nodes)
        arrays = (state.node_type[:n], state.node_attr[:n], *(x[:n, :n] for x in (state.edge_type, state.edge_attr)))
        name = b"".join(x.numpy().tobytes() for x in (*arrays, state.edge_order[:n, :n])) + bytes(marks)
        if name not in self._results:
            graph = self._coloured_graph(states, index)
            if marks:
                colours = zip(marks, graph.node_colours, strict=False)  # marks of absent nodes are left out
                graph = replace(graph, node_colours=tuple(f"{mark}|{colour}" for mark, colour in colours))
            form = graph.canonical_form()
            code = int.from_bytes(sha256(form.key.encode()).digest()[:8], "little", signed=True) | 1
            if len(self._results) >= _CACHE_SIZE:
                self._results.pop(next(iter(self._results)))  # the oldest
            self._results[name] = code, form.num_automorphisms
        return self._results[name]


def canonical_forms(states: GraphStates) -> CanonicalForms:
    """Return the canonical forms of B states by the batched search."""
    codes, counts, colour = identify_batch(states)
    colour = colour.masked_fill(~states.exists, torch.iinfo(torch.int64).max)
    return CanonicalForms(codes, counts, colour.argsort(dim=1, stable=True))


def identify_batch(states: GraphStates, marks: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [B], automorphism counts [B] and node colours [B, N] by the batched search.

    The colours of a state are distinct. States with count UNKNOWN have no valid code and colours.

    Args:
        states: B graphs.
        marks: [B, N] int64, further colours of the nodes; none by default.
    """
    num, n = states.node_type.shape
    marks = torch.zeros_like(states.node_type, dtype=torch.int64) if marks is None else marks
    size = max(1, _MAX_ENTRIES // max(1, n * n))
    starts = range(0, max(num, 1), size)
    parts = [_identify(states[first : first + size], marks[first : first + size]) for first in starts]
    codes, counts, colours = map(torch.cat, zip(*parts, strict=True))
    return codes, counts, colours


def combine_codes(*codes: Tensor) -> Tensor:
    """Return one code [B] int64 for each row of several codes [B]."""
    combined = _mixed(codes[0])
    for code in codes[1:]:
        combined = _mixed(combined + code)
    return combined


@dataclass(frozen=True)
class _Coloured:
    """Graphs with coloured nodes."""

    pairs: Tensor  # [B, N, N] int64, code of an edge and its reverse, seen from one end
    apart: Tensor  # [B, N, N] bool, no edge in either direction
    absent: Tensor  # [B, N] bool
    colour: Tensor  # [B, N] int64; absent nodes have distinct colours

    def __getitem__(self, index: Tensor) -> _Coloured:
        return _Coloured(self.pairs[index], self.apart[index], self.absent[index], self.colour[index])

    def refined(self, num_rounds: int = _NUM_ROUNDS) -> _Coloured:
        """Return the graphs after some rounds of adding the neighbours' colours to each node's colour."""
        colour = self.colour
        for _ in range(num_rounds):
            received = _mixed(self.pairs + colour[:, None, :]).masked_fill_(self.apart, 0).sum(2)
            colour = torch.where(self.absent, colour, _mixed(colour * 5 + received))
        return _Coloured(self.pairs, self.apart, self.absent, colour)

    def is_discrete(self) -> Tensor:
        """Return which graphs have no two nodes of one colour, [B] bool."""
        ordered = self.colour.sort(1).values
        return (ordered[:, 1:] != ordered[:, :-1]).all(1)

    def codes(self) -> Tensor:
        """Return an even code of each discrete graph, [B] int64, equal iff isomorphic.

        After one more round a node's colour determines its own and its neighbours' earlier colours, which name them.
        """
        total = _mixed(self.refined(1).colour).masked_fill_(self.absent, 0).sum(1)
        return _mixed(total) << 1


def _identify(states: GraphStates, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [B], automorphism counts [B] and colours [B, N], distinct within a known graph."""
    graphs = _coloured(states, marks).refined()
    # An automorphism keeps colours: where all differ, it can only be the identity.
    counts, codes, colour = graphs.is_discrete().long(), graphs.codes(), graphs.colour
    symmetric = (counts == UNKNOWN).nonzero().squeeze(1)
    if len(symmetric):
        codes[symmetric], counts[symmetric], colours = _identify_symmetric(states[symmetric], marks[symmetric])
        colour[symmetric, : colours.shape[1]] = colours
    return codes.masked_fill_(counts == UNKNOWN, 0), counts, colour


def _identify_symmetric(states: GraphStates, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same for graphs with several nodes of one colour.

    These are often twins, nodes with the same neighbours: every order of them is an automorphism, and |Aut| is the
    number of those orders times the number of automorphisms that keep the twins' order.
    """
    n = max(1, states.largest)  # the twins take N^3 time
    states, marks = states.truncated(n), marks[:, :n]
    rank = _are_twins(states, marks).tril(-1).sum(2)  # [B, N] twins before this node
    orders = (rank + 1).double().prod(1)
    graphs = _coloured(states, marks * _BYTE + rank).refined()
    codes, counts, colour = graphs.codes(), graphs.is_discrete().long(), graphs.colour
    symmetric = (counts == UNKNOWN).nonzero().squeeze(1)
    for part in symmetric.split(max(1, _MAX_ENTRIES // (_MAX_LEAVES * n**2))):
        codes[part], counts[part], colour[part] = _search(graphs[part])
    total = counts * orders
    return codes, torch.where(total < _MAX_EXACT, total, UNKNOWN).long(), colour


def _search(graphs: _Coloured) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by a full search tree, automorphism count UNKNOWN if the tree has too many leaves.

    Each leaf is a discrete graph; the least code of all leaves is the code of the graph. Two leaves have the same code
    iff an automorphism maps one onto the other, so there are as many leaves of the least code as automorphisms.
    """
    num, colour = graphs.colour.shape[0], graphs.colour
    owner = torch.arange(num)
    owners, codes, colours = [owner[:0]], [owner[:0]], [colour[:0]]
    num_leaves = torch.zeros(num, dtype=torch.int64)
    while len(owner):
        done = graphs.is_discrete()
        owners.append(owner[done])
        codes.append(graphs[done].codes())
        colours.append(graphs.colour[done])
        num_leaves += owner[done].bincount(minlength=num)
        graphs, owner = graphs[~done], owner[~done]
        row, graphs = _branches(graphs)
        owner = owner[row]
        small = num_leaves + owner.bincount(minlength=num) <= _MAX_LEAVES
        num_leaves = torch.where(small, num_leaves, _MAX_LEAVES + 1)
        graphs, owner = graphs[small[owner]].refined(), owner[small[owner]]
    leaf_owner, leaf_code = torch.cat(owners), torch.cat(codes)
    least = torch.zeros(num, dtype=torch.int64).scatter_reduce(0, leaf_owner, leaf_code, "amin", include_self=False)
    least_leaves = (leaf_code == least[leaf_owner]).nonzero().squeeze(1)
    counts = leaf_owner[least_leaves].bincount(minlength=num)
    first = torch.full((num,), len(leaf_code)).scatter_reduce(0, leaf_owner[least_leaves], least_leaves, "amin")
    complete = first < len(leaf_code)
    colour = colour.clone()
    colour[complete] = torch.cat(colours)[first[complete]]
    return least, torch.where(num_leaves <= _MAX_LEAVES, counts, UNKNOWN), colour


def _branches(graphs: _Coloured) -> tuple[Tensor, _Coloured]:
    """Return each graph (and its row, [L]) once per node of its first repeated colour, with that node recoloured."""
    ordered = graphs.colour.sort(1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).int().argmax(1, keepdim=True)
    row, node = (graphs.colour == ordered.gather(1, repeated)).nonzero(as_tuple=True)
    branches, at = graphs[row], (torch.arange(len(row)), node)
    branches.colour[at] = _mixed(branches.colour[at] + _CHOSEN)
    return row, branches


def _coloured(states: GraphStates, marks: Tensor) -> _Coloured:
    """Return the graphs coloured by type, attributes and mark [B, N] of each node."""
    pairs = _mixed(_edge_codes(states))
    colour = _mixed(_mixed(_node_codes(states)) + marks)
    return _Coloured(
        pairs=pairs * 3 + pairs.transpose(1, 2),
        apart=~(states.has_edge | states.has_edge.transpose(1, 2)),
        absent=~states.exists,
        colour=torch.where(states.exists, colour, torch.arange(colour.shape[1])),
    )


def _are_twins(states: GraphStates, marks: Tensor) -> Tensor:
    """Return which pairs of nodes can be swapped while all other nodes stay, [B, N, N] bool."""
    edges, nodes = _edge_codes(states), _mixed(_node_codes(states)) + marks
    loops = edges.diagonal(dim1=1, dim2=2)
    itself = torch.eye(edges.shape[1], dtype=torch.bool)
    same = (edges[:, :, None, :] == edges[:, None, :, :]) & (edges.mT[:, :, None, :] == edges.mT[:, None, :, :])
    same |= itself[:, None, :] | itself[None, :, :]  # only third nodes count
    alike = (nodes[:, :, None] == nodes[:, None, :]) & (loops[:, :, None] == loops[:, None, :])
    return same.all(3) & alike & (edges == edges.mT) & states.exists[:, :, None]


def _node_codes(states: GraphStates) -> Tensor:
    return _packed([states.node_type, *states.node_attr.unbind(-1)])


def _edge_codes(states: GraphStates) -> Tensor:
    return _packed([states.edge_type, *states.edge_attr.unbind(-1), states.edge_order])


def _packed(parts: list[Tensor]) -> Tensor:
    """Return one integer for up to eight int8 values, a hash of more."""
    codes = []
    for place, part in enumerate(parts):
        if place % _NUM_BYTES:
            codes[-1] = codes[-1] * _BYTE + part
        else:
            codes.append(part.long())
    return codes[0] if len(codes) == 1 else combine_codes(*codes)


def _mixed(values: Tensor) -> Tensor:
    """Return the values hashed, int64."""
    values = values + _STEP  # so that zero is not special
    values.bitwise_xor_(values >> 30).mul_(_FIRST)
    return values.bitwise_xor_(values >> 27).mul_(_SECOND)
