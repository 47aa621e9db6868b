"""Nodes that share one module: equal operations with weights, settings and input shapes.

The last value of a node whose module has weights is its module: its own, or that of another node, by an edge `shares`
from the new node to the other one. All nodes of one module are joined in both directions, except where an edge of the
network takes the place of one direction: modules have no names, by which states would differ.

Letters: M nodes that may share their module with a new one, N; C columns of SetNodeAttr, K completions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.operation_tables import NEVER
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.states import ABSENT, UNSET, Attribute, GraphStates

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
