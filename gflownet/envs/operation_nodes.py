"""Nodes of operation graphs: the ports that edges feed, modules that nodes share, and numbers for a surrogate.

An edge into an operation with several inputs has the set of ports that it feeds as its attribute, which is set right
after the edge is added. A node with a port that no edge feeds is open: its edges are added before anything else, then
its settings are set. In an open port the first edge decides the shape, as the first edge of any other node does.

The last value of a node whose module has weights is its module: its own, or that of another node with an equal
operation, settings and input shapes, by an edge `shares` from the new node to the other one. All nodes of one module
are joined in both directions, except where an edge of the network takes the place of one direction: modules have no
names, by which states would differ.

Letters: R graphs with an open node or an edge without ports, X cases, P ports, C sets of ports or columns of
SetNodeAttr, G assignments of a source to every port, N^P; M nodes that may share their module with a new one, N; K
completions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.operation_choices import OperationChoices, Prefix
from gflownet.envs.operation_tables import NEVER, OperationTables, rows_at, with_others
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.states import ABSENT, UNSET, Attribute, GraphStates, Group, Numbers, summaries

SHARES = 1  # position of the edge type
MODULE = Attribute("module", ("own",))


def with_shared(before: GraphStates, actions: ActionBatch, after: GraphStates) -> GraphStates:
    """Return the states `after` actions with all nodes of a module joined, and the module of the acting node."""
    if not {int(Kind.AddEdge), int(Kind.RemoveEdge)} & actions.kinds():
        return after
    n, graph = before.node_type.shape[1], torch.arange(len(actions), device=actions.row.device)
    source, target = actions.row // n % n, actions.row % n
    joins = (actions.kind == int(Kind.AddEdge)) & (actions.column == SHARES)
    leaves = (actions.kind == int(Kind.RemoveEdge)) & (before.edge_type[graph, source, target] == SHARES)
    shares = after.edge_type == SHARES
    shares = shares | shares.mT  # also where an edge of the network was removed
    is_source = torch.arange(n, device=source.device) == source[:, None]
    new = is_source[:, :, None] & (shares[graph, target] & ~is_source)[:, None] & joins[:, None, None]
    old = (is_source[:, :, None] | is_source[:, None]) & leaves[:, None, None]
    shares = (shares | new | new.mT) & ~old
    edge_type = after.edge_type.masked_fill(after.edge_type == SHARES, ABSENT)
    edge_type = edge_type.masked_fill(shares & (edge_type == ABSENT), SHARES)
    module = after.node_attr[..., -1].masked_fill(is_source & joins[:, None], 0)
    module = module.masked_fill(is_source & leaves[:, None], UNSET)
    return replace(after, edge_type=edge_type, node_attr=torch.cat([after.node_attr[..., :-1], module[..., None]], -1))


class Sharing:
    """The modules of a batch."""

    def __init__(self, env: Any, facts: Any, states: GraphStates) -> None:
        self._env, self._facts, self._values = env, facts, states.node_attr
        shares = states.edge_type == SHARES
        self.joined = shares | shares.mT  # [B, N, N] nodes of one module
        has_weights = env.tables.has_weights[facts.prefix, facts.input]
        is_set = states.node_attr[..., -1] != UNSET  # only of nodes with weights
        self.undecided, self.decided = has_weights & ~is_set, is_set  # [B, N]
        # [B, N] nodes whose weights count: of a module the first node
        self.counts = ~self.undecided & ~(self.joined.tril(-1)).any(2)

    @cached_property
    def candidates(self) -> Tensor:
        """Return the nodes with the same operation, settings and inputs, [B, N, M] bool."""
        module, shape = self._env.tables.module[self._facts.prefix], self._facts.input
        same = (module[:, :, None] == module[:, None]) & (shape[:, :, None] == shape[:, None])
        return same & self.undecided[:, :, None] & self.decided[:, None]

    @cached_property
    def of_new(self) -> Tensor:
        """Return completions of new nodes by the module of another one, of each input, [B, I, types, 1, 2 D]."""
        env, facts = self._env, self._facts
        num_columns, num_types = env.inference.num_columns, len(env.vocabulary.node_types)
        cost = env.tables.cost[facts.prefix, facts.input, 1].where(self.decided, NEVER)
        place = (facts.input + 1) * num_types + facts.node_type.clamp(min=0)
        least = cost.new_full((len(cost), num_columns * num_types), NEVER).scatter_reduce(1, place, cost, "amin")
        return self._completions(least.view(len(cost), num_columns, num_types, 1))

    def of_values(self, node: Tensor) -> Tensor:
        """Return completions of `node` [B, 1] after each value by the module of another node, [B, 1, C, 1, 2 D]."""
        env, facts, values = self._env, self._facts, self._values.long()
        own = values.gather(1, node[..., None].expand(-1, -1, values.shape[2]))  # [B, 1, A]
        type_, shape = facts.node_type.gather(1, node), facts.input.gather(1, node)
        is_free = (own == UNSET) | env.is_outside_module  # activations and merges of a module may differ
        agrees = ((values == own) | is_free).all(2) & (facts.node_type == type_) & (facts.input == shape) & self.decided
        attribute, value = env.attribute_of_column[:-1], env.value_of_column[:-1]  # [C], without the module
        fits = (values[:, :, attribute] == value) | env.is_outside_module[attribute]  # [B, M, C]
        cost = env.tables.cost[facts.prefix, facts.input, 1][..., None]
        cost = cost.where(agrees[:, :, None] & fits, NEVER).amin(1, keepdim=True)
        return self._completions(cost[..., None])

    def may_own(self, facts: Any) -> Tensor:
        """Return whether a module of its own is within the limits, [B, N, 1] bool."""
        parameters = self._env.tables.cost[facts.prefix, facts.input, 0]
        total = parameters + (facts.cost + facts.head)[:, None, 0]
        return (total <= facts.caps[:, None, 0])[..., None]

    def _completions(self, multiply_adds: Tensor) -> Tensor:
        """Return completions without weights and with an output of a known shape; NEVER for none."""
        nothing, dims = multiply_adds.masked_fill(multiply_adds < NEVER, 0), self._env.tables.dims
        return torch.stack([*(multiply_adds if dim else nothing for dim in dims), *[nothing] * len(dims)], -1)


class ShapeNumbers:
    """Numbers of operation graphs: sizes, channels, positions at which operations act, and the receptive field."""

    def __init__(self, tables: OperationTables, choices: OperationChoices) -> None:
        self._tables, self._choices = tables, choices
        self._costs = torch.full((*tables.cost.shape,), torch.nan, dtype=torch.float64)  # [P, I, 2]; NaN: not computed
        self._shape = torch.tensor(tables.sizes, dtype=torch.float64).log2()  # [I, 2] channels, positions
        extents = [_extent(choices, prefix) for prefix in choices.prefixes]
        self._extent = torch.tensor([*extents, 0.0], dtype=torch.float64)
        self._positions = self._shape[tables.inputs][:, 1].amax()

    def __call__(self, facts: Any, output: int) -> Numbers:
        """Return the numbers of a batch, from its OperationFacts and the place of the output node."""
        edge, is_hidden = facts.edge, facts.is_hidden
        is_last = edge[:, :, output] & is_hidden  # read by the output
        received, channels = self._shape[facts.input], self._shape[facts.output][..., 0]
        extent = self._extent[facts.prefix]
        step = (self._positions - received[..., 1]).clamp(min=0) * is_hidden  # logarithm of the strides before
        field, cost = torch.zeros_like(extent), self._cost(facts).log1p()
        for _ in range(edge.shape[1] - output):
            field = (field[:, :, None] * edge).amax(1) + extent * step.exp2()
        columns: Numbers = [
            ("log parameters", Group.SIZES, cost[:, 0]),
            ("log multiply-adds", Group.SIZES, cost[:, 1]),
            ("receptive field", Group.SHAPES, field.amax(1).log1p()),
            ("least receptive field", Group.SHAPES, field.masked_fill(~is_last, torch.inf).amin(1).log1p()),
            ("sum of kernels", Group.SHAPES, (extent * is_hidden).sum(1)),
        ]
        for name, values, mask in (
            ("positions", received[..., 1], is_hidden),
            ("channels", channels, is_hidden),
            ("channels at the output", channels, is_last),
        ):
            columns += [(f"{kind} of log {name}", Group.SHAPES, x) for kind, x in summaries(values, mask).items()]
        return columns

    def _cost(self, facts: Any) -> Tensor:
        """Return parameters and multiply-adds [B, 2] float64, without learned projections of inputs."""
        prefix, shape = facts.prefix[facts.is_hidden], facts.input[facts.is_hidden]
        is_missing = self._costs[prefix, shape, 0].isnan()
        for pair in dict.fromkeys(zip(prefix[is_missing].tolist(), shape[is_missing].tolist(), strict=True)):
            applied = self._choices.applied(self._choices.prefixes[pair[0]])
            inputs = dict(zip(applied.required_ports, self._tables.operands[pair[1]], strict=True))
            self._costs[pair] = torch.tensor(applied.at(inputs).cost, dtype=torch.float64)
        total = torch.zeros(*facts.prefix.shape, 2, dtype=torch.float64)
        total[facts.is_hidden] = self._costs[prefix, shape]
        return total.sum(1) + facts.head.double()


def _extent(choices: OperationChoices, prefix: Prefix) -> float:
    """Return the positions that an operation reads beyond one, 0 of an incomplete prefix."""
    if choices.next_attribute(prefix) is not None:
        return 0.0
    settings = choices.applied(prefix).settings
    kernel, dilation = (settings.get(name, 1) for name in ("kernel_size", "dilation"))
    kernel, dilation = (value if isinstance(value, int | float) else 1 for value in (kernel, dilation))
    return float((kernel - 1) * dilation)


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
