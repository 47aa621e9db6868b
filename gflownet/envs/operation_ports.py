"""Operations with several inputs: which edges feed which ports, and which edges may complete a node.

An edge into such an operation has the set of ports that it feeds as its attribute, which is set right after the edge is
added. A node with a port that no edge feeds is open: its edges are added before anything else, then its settings are
set. In an open port the first edge decides the shape, as the first edge of any other node does.

Letters: R graphs with an open node or an edge without ports, X cases, P ports, C sets of ports, G assignments of a
source to every port, N^P.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.states import UNSET, Attribute, GraphStates


def port_sets(num_ports: int) -> Attribute:
    """Return the attribute of edges: sets of ports by position, such as 0+2."""
    sets = [c for size in range(1, num_ports + 1) for c in combinations(range(num_ports), size)]
    return Attribute("ports", tuple("+".join(map(str, each)) for each in sets))


class EdgePorts:
    """The ports that the edges of a batch feed."""

    def __init__(self, env: Any, states: GraphStates, edge: Tensor) -> None:
        self.num = env.num_ports_of_type[states.node_type.long()]  # [B, N] ports of each node
        several = edge & (self.num > 1)[:, None, :]
        sets = states.edge_attr[..., 0].long()
        self.pending = several & (sets == UNSET)  # [B, N, N] edges without ports
        self.feeds = [several & in_set[sets] for in_set in env.port_of_set]  # P of [B, N, N]
        self.feeds[0] |= edge & ~several

    @cached_property
    def count(self) -> Tensor:
        """Return the number of edges into each port, [B, N, P]."""
        return torch.stack([each.sum(1) for each in self.feeds], -1)

    @cached_property
    def free(self) -> Tensor:
        """Return the ports that no edge feeds, [B, N, P] bool."""
        return (self.count == 0) & (torch.arange(len(self.feeds), device=self.num.device) < self.num[..., None])

    @cached_property
    def is_open(self) -> Tensor:
        """Return the nodes of several ports with free ports, [B, N] bool."""
        return self.free.any(-1) & (self.num > 1)

    @cached_property
    def is_pending(self) -> Tensor:
        """Return the nodes with an edge without ports, [B, N] bool."""
        return self.pending.any(1)

    def removable(self, facts: Any) -> tuple[Tensor, Tensor]:
        """Return the edges whose removal keeps the shapes at fed ports, and those that alone feed a port, [B, N, N]."""
        keeps, is_only = torch.ones_like(self.pending), torch.zeros_like(self.pending)
        for port, (feeds, shape) in enumerate(zip(self.feeds, facts.received, strict=True)):
            decides = feeds & (facts.output[:, :, None] == shape[:, None, :])
            alone = feeds & (self.count[..., port] == 1)[:, None, :]
            keeps &= ~decides | alone | (decides.sum(1) >= 2)[:, None, :]
            is_only |= alone
        return keeps, is_only


@dataclass(frozen=True)
class _Cases:
    """X cases of each of R graphs, in which every port has a shape or may have one of several sources."""

    rows: Tensor  # [R] int64, the graphs
    operation: Tensor  # [R] int64
    option: Tensor  # [R, X, P, N] int64, shape from each source from 1 on, 0: not this one; a fed port has option 0
    is_free: Tensor  # [R, P] bool
    price: Tensor  # [R, N] int64, edges of the budget that joining each source takes
    left: Tensor  # [R, X] int64, edges of the budget
    cost: Tensor | None = None  # [R, X, 2] int64, besides that of the node


def possible(env: Any, facts: Any, cases: _Cases) -> Tensor:
    """Return whether a node fits its sources within all limits, [R, X, N, ..., N] bool with an axis for each port."""
    num, num_cases, num_ports, n = cases.option.shape

    def along(values: Tensor, port: int) -> Tensor:  # [R, X, N]
        return values.view(*values.shape[:2], *(n if axis == port else 1 for axis in range(num_ports)))

    shapes = [along(option, port) for port, option in enumerate(cases.option.unbind(2))]
    column = env.inference.column(list(torch.broadcast_tensors(*shapes))).flatten(2) - 1  # [R, X, G]
    completions = env.tables.completions[cases.operation[:, None, None], column]
    if facts.sharing is not None:
        type_ = cases.operation + env.num_ends
        of_new = facts.sharing.of_new
        completions = completions.cat(of_new[cases.rows[:, None, None], type_[:, None, None], column])
    fits = env.within(facts, completions, rows=cases.rows, cost=cases.cost)
    itself = torch.eye(n, dtype=torch.int64, device=column.device)
    num_edges = torch.zeros_like(shapes[0][:, :1])
    for port in range(num_ports):  # each source counts once
        price = along(cases.price[:, None] * cases.is_free[:, None, port, None], port)
        for other in range(port):
            same = itself.view(1, 1, *(n if axis in (other, port) else 1 for axis in range(num_ports)))
            both = cases.is_free[:, other].view(num, *[1] * (num_ports + 1))
            price = price * (1 - same * both)
        num_edges = num_edges + price
    left = cases.left.view(num, num_cases, *[1] * num_ports)
    return fits.view(num, num_cases, *[n] * num_ports) & (num_edges <= left)


def _uses(assignments: Tensor, is_free: Tensor) -> Tensor:
    """Return whether a possible assignment [R, X, N, ..., N] has a source at a free port [R, P], [R, X, N] bool."""
    num_ports = assignments.dim() - 2
    each = [assignments.movedim(2 + port, 2).flatten(3).any(3) for port in range(num_ports)]
    return torch.stack([used & is_free[:, None, port, None] for port, used in enumerate(each)]).any(0)


class PortMasks:
    """Masks of the actions on operations with several ports.

    A node can be completed iff some sources at its free ports fit: no edge into a port that is fed has to be added.
    """

    def __init__(self, env: Any, facts: Any) -> None:
        self._env, self._facts, self._ports = env, facts, facts.ports
        self._shape = facts.output + 1  # [B, N], 0: unknown
        self._left = env.max_edges - facts.num_edges - facts.sink.sum(1)  # [B]
        self._price = (~facts.sink).long()  # [B, N]

    def new_nodes(self) -> Tensor:
        """Return which operations of several ports may be added behind which source, [B, N, types] bool."""
        env, num, n = self._env, *self._shape.shape
        mask = torch.zeros(num, n, len(env.vocabulary.node_types), dtype=torch.bool, device=self._shape.device)
        rows = torch.arange(num, device=mask.device)
        for operation, names in enumerate(env.choices.ports):
            if len(names) == 1:
                continue
            is_free = torch.arange(env.num_ports, device=mask.device) < len(names)
            option = self._shape[:, None, None] * is_free[:, None]
            cases = _Cases(
                rows=rows,
                operation=torch.full_like(rows, operation),
                option=self._with_fed(option, ~is_free.expand(num, -1), torch.zeros(num, env.num_ports).long()),
                is_free=is_free.expand(num, -1),
                price=self._price,
                left=self._left[:, None] - 1,  # the new node needs an edge
            )
            mask[:, :, env.num_ends + operation] = _uses(possible(env, self._facts, cases), cases.is_free)[:, 0]
        return mask

    def new_edges(self) -> Tensor:
        """Return the edges that may be added into open nodes, [B, N, N] bool."""
        facts, ports = self._facts, self._ports
        mask = torch.zeros_like(ports.pending)
        rows, node = (ports.is_open & ~ports.is_pending.any(1, keepdim=True)).nonzero(as_tuple=True)
        joined, is_free = facts.edge[rows, :, node], ports.free[rows, node]
        received = torch.stack(facts.received, -1)[rows, node] + 1  # [R, P]
        shape, price, left = self._shape[rows].masked_fill(joined, 0), self._price[rows], self._left[rows, None]
        option = self._with_fed(shape[:, None, None].expand(-1, -1, is_free.shape[1], -1), ~is_free, received)
        cases = _Cases(rows, self._operation(rows, node), option, is_free, price, left)
        legal = _uses(possible(self._env, facts, cases), is_free)[:, 0]
        remaining = ~torch.eye(shape.shape[1], dtype=torch.bool, device=shape.device)  # [X, N]
        option = (shape[:, None] * remaining)[:, :, None].expand(-1, -1, is_free.shape[1], -1)
        option = self._with_fed(option, ~is_free, received)
        for port in range(is_free.shape[1]):  # one more edge into a fed port: the other nodes complete this one
            fits, cost = self._joins(shape - 1, received[:, port, None] - 1)
            cases = _Cases(rows, cases.operation, option, is_free, price, left - price, cost)
            legal |= fits & ~is_free[:, port, None] & possible(self._env, facts, cases).flatten(2).any(2)
        mask[rows, :, node] = legal & ~joined
        return mask

    def sets(self) -> Tensor:
        """Return the sets of ports that edges without ports may feed, [B, N, N, C] bool."""
        env, facts, ports = self._env, self._facts, self._ports
        in_set = env.port_of_set[:, :-1].T  # [C, P]
        mask = torch.zeros(*ports.pending.shape, len(in_set), dtype=torch.bool, device=in_set.device)
        rows, source, node = ports.pending.nonzero(as_tuple=True)
        is_free, shape = ports.free[rows, node], self._shape[rows, source]
        received = torch.stack(facts.received, -1)[rows, node]  # [R, P]
        fits, cost = self._joins(shape[:, None] - 1, received)
        exists = torch.arange(in_set.shape[1], device=in_set.device) < ports.num[rows, node, None]
        legal = (~in_set | (exists & (is_free | fits))[:, None]).all(2)  # [R, C]
        if cost is not None:
            cost = (cost[:, None] * (in_set & ~is_free[:, None])[..., None]).sum(2)
            left = (facts.caps - facts.cost - facts.head)[rows, None]
            legal &= (cost <= left).all(2) | is_free.any(1, keepdim=True)
        first = is_free.any(1).nonzero().squeeze(1)  # of open nodes
        remaining = self._shape[rows].masked_fill(facts.edge[rows, :, node], 0)
        itself = torch.zeros_like(remaining).scatter_(1, source[:, None], shape[:, None])
        option = torch.where(in_set[:, :, None], itself[:, None, None], remaining[:, None, None])
        option = self._with_fed(option, ~is_free, received + 1)
        price = self._price[rows].scatter(1, source[:, None], 0)  # its edge is there
        cases = _Cases(
            rows=rows[first],
            operation=self._operation(rows, node)[first],
            option=option[first],
            is_free=is_free[first],
            price=price[first],
            left=self._left[rows[first], None].expand(-1, len(in_set)),
            cost=None if cost is None else cost[first],
        )
        legal[first] &= possible(env, facts, cases).flatten(2).any(2)
        mask[rows, source, node] = legal
        return mask

    def _operation(self, rows: Tensor, node: Tensor) -> Tensor:
        return self._facts.node_type[rows, node] - self._env.num_ends

    def _joins(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return whether shapes fit others, and the cost of their projections, None where nodes pad."""
        tables = self._env.tables
        return tables.fits[source, target], tables.adapter[source, target] if self._env.align == "auto" else None

    def _with_fed(self, option: Tensor, is_fed: Tensor, shape: Tensor) -> Tensor:
        """Return options with one shape, of no source, for fed ports: [R, X, P, N], [R, P] bool and [R, P]."""
        option = option.masked_fill(is_fed[:, None, :, None], 0)
        option[..., 0] += (shape * is_fed)[:, None]
        return option
