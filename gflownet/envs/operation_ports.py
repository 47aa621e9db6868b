"""Operations with several inputs: which edges feed which ports, and which edges may complete a node.

An edge into such an operation has the set of ports that it feeds as its attribute, which is set right after the edge is
added. A node with a port that no edge feeds is open: its edges are added before anything else, then its settings are
set. In an open port the first edge decides the shape, as the first edge of any other node does.

Letters: R graphs with an open node or an edge without ports, X cases, P ports, C sets of ports, G assignments of a
source to every port, N^P.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.operation_tables import rows_at, with_others
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
        self.feeds = [in_set[sets] for in_set in env.port_of_set]  # P of [B, N, N]
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
    """X cases of each of R graphs: a node of several ports gets one of some sources at each free port."""

    rows: Tensor  # [R] int64, the graphs
    operation: Tensor  # [R] int64
    received: Tensor  # [R, P] int64, shapes from 1 on, 0: the port is free, or not there
    is_free: Tensor  # [R, P] bool
    option: Tensor  # [R, X or 1, P or 1, N] int64, shape from each source from 1 on, 0: not this one
    price: Tensor  # [R, N] int64, edges of the budget that joining each source takes
    left: Tensor  # [R, X] int64, edges of the budget
    cost: Tensor | None = None  # [R, X, 2] int64, besides that of the node


def possible(env: Any, facts: Any, cases: _Cases) -> Tensor:
    """Return whether a node fits its sources within all limits, [R, X, N, ..., N] bool with an axis for each port.

    A port that is fed has its shape at source 0.
    """
    (num, num_ports), n = cases.is_free.shape, cases.option.shape[-1]
    option = cases.option.expand(-1, -1, num_ports, -1).masked_fill(~cases.is_free[:, None, :, None], 0)
    option[..., 0] += cases.received[:, None]

    def along(values: Tensor, port: int) -> Tensor:  # [R, X, N]
        return values.view(*values.shape[:2], *(n if axis == port else 1 for axis in range(num_ports)))

    shapes = [along(each, port) for port, each in enumerate(option.unbind(2))]
    column = env.inference.column(list(torch.broadcast_tensors(*shapes))).flatten(2)  # [R, X, G]
    completions = rows_at(env.tables.completions, cases.operation[:, None, None], column)
    if facts.sharing is not None:
        type_ = cases.operation[:, None, None] + env.num_ends
        others = rows_at(facts.sharing.of_new, cases.rows[:, None, None], column, type_)
        completions = with_others(completions, others)
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
    return fits.unflatten(2, (n,) * num_ports) & (num_edges <= cases.left[(..., *(None,) * num_ports)])


def _uses(assignments: Tensor, is_free: Tensor) -> Tensor:
    """Return whether a possible assignment [R, X, N, ..., N] has a source at a free port [R, P], [R, X, N] bool."""
    num_ports = assignments.dim() - 2
    each = [assignments.movedim(2 + port, 2).flatten(3).any(3) for port in range(num_ports)]
    return torch.stack([used & is_free[:, None, port, None] for port, used in enumerate(each)]).any(0)


def _entries(mask: Tensor) -> tuple[Tensor, ...]:
    """Return where a mask [B, ...] holds, at most once in a graph; on a device of every graph, without a wait."""
    if mask.device.type == "cpu":
        return mask.nonzero(as_tuple=True)
    place = mask.flatten(1).view(torch.uint8).argmax(1)
    return torch.arange(len(mask), device=mask.device), *torch.unravel_index(place, mask.shape[1:])


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
            is_free = (torch.arange(env.num_ports, device=mask.device) < len(names)).expand(num, -1)
            cases = _Cases(
                rows=rows,
                operation=torch.full_like(rows, operation),
                received=is_free.new_zeros(is_free.shape, dtype=torch.int64),
                is_free=is_free,
                option=self._shape[:, None, None],
                price=self._price,
                left=self._left[:, None] - 1,  # the new node needs an edge
            )
            mask[:, :, env.num_ends + operation] = _uses(possible(env, self._facts, cases), is_free)[:, 0]
        return mask

    def new_edges(self) -> Tensor:
        """Return the edges that may be added into open nodes, [B, N, N] bool; of other nodes it has no meaning."""
        facts, mask = self._facts, torch.zeros_like(self._ports.pending)
        rows, node = _entries(self._ports.is_open)
        shape = self._shape[rows].masked_fill(facts.edge[rows, :, node], 0)  # [R, N] of sources that are not joined
        cases = self._cases(rows, node, shape[:, None, None], price=self._price[rows], left=self._left[rows, None])
        legal = _uses(possible(self._env, facts, cases), cases.is_free)[:, 0]
        cases = replace(cases, left=cases.left - cases.price)
        for received in cases.received.split(1, 1):  # one more edge into a fed port: other nodes complete this one
            fits, cost = self._joins(shape - 1, received - 1)
            legal |= fits & possible(self._env, facts, replace(cases, cost=cost)).flatten(2).any(2)
        mask[rows, :, node] = legal
        return mask

    def sets(self) -> Tensor:
        """Return the sets of ports that edges without ports may feed, [B, N, N, C] bool."""
        env, facts, pending = self._env, self._facts, self._ports.pending
        in_set = env.port_of_set[:, :-1].T  # [C, P]
        mask = torch.zeros(*pending.shape, len(in_set), dtype=torch.bool, device=in_set.device)
        rows, source, node = _entries(pending)
        shape = self._shape[rows].masked_fill(facts.edge[rows, :, node], 0)
        itself = torch.zeros_like(shape).scatter_(1, source[:, None], self._shape[rows, source][:, None])
        cases = self._cases(
            rows,
            node,
            torch.where(in_set[:, :, None], itself[:, None, None], shape[:, None, None]),
            price=self._price[rows].scatter(1, source[:, None], 0),  # its edge is there
            left=self._left[rows, None].expand(-1, len(in_set)),
        )
        fits, cost = self._joins(self._shape[rows, source][:, None] - 1, cases.received - 1)  # [R, P]
        legal = (~in_set | (cases.is_free | fits)[:, None]).all(2)  # [R, C]
        if cost is not None:
            cost = (cost[:, None] * in_set[..., None]).sum(2)
            legal &= (cost <= (facts.caps - facts.cost - facts.head)[rows, None]).all(2)
        is_complete = possible(env, facts, replace(cases, cost=cost)).flatten(2).any(2)
        legal &= is_complete | ~cases.is_free.any(1, keepdim=True)  # of an open node
        mask[rows, source, node] = legal & pending[rows, source, node][:, None]
        return mask

    def _cases(self, rows: Tensor, node: Tensor, option: Tensor, **budget: Tensor) -> _Cases:
        """Return cases of a node of each of some graphs."""
        operation = (self._facts.node_type[rows, node] - self._env.num_ends).clamp(min=0)  # on a device of any node
        received = torch.stack(self._facts.received, -1)[rows, node] + 1
        return _Cases(rows, operation, received, self._ports.free[rows, node], option, **budget)

    def _joins(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return whether shapes fit others, and the cost of their projections, None where nodes pad."""
        tables = self._env.tables
        return tables.fits[source, target], tables.adapter[source, target] if self._env.align == "auto" else None
