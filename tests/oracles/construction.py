"""Constructions repeated state by state: the slow twin of `gflownet.mdp.construction.built`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gflownet.mdp.action import PAIR_TYPES, SETTING_TYPES, ActionBatch
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.construction import NONE, Construction
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

Masks = Mapping[Kind, Tensor]  # each [1, R, C]


class Builder:
    """One state with the rest of its plan."""

    def __init__(self, env: Environment, plan: Construction) -> None:
        self.env, self.state, self.num_repairs = env, env.initial_states(1), 0
        parts = (plan.kind, plan.source, plan.target, plan.column)
        self.steps = [step for step in zip(*(part[0].tolist() for part in parts), strict=True) if step[0] != NONE]
        self.place, self.new = plan.position[0].tolist(), plan.position.shape[1] - 1

    def row(self, kind: int, source: int, target: int) -> int:
        """Return the row of an action, NONE if a node is missing."""
        first = 0 if source == NONE else self.place[source]
        if kind not in PAIR_TYPES:
            return first
        pair = first, self.place[target]
        if not self.env.vocabulary.directed:
            pair = min(pair), max(pair)
        return NONE if NONE in pair else pair[0] * self.env.vocabulary.max_nodes + pair[1]

    def planned(self, masks: Masks) -> int | None:
        """Return the first step that is legal."""
        for index, (kind, source, target, column) in enumerate(self.steps):
            row = self.row(kind, source, target)
            if row != NONE and bool(masks[Kind(kind)][0, row, column]):
                return index
        return None

    def follow(self, index: int) -> None:
        """Take a step of the plan."""
        kind, source, target, column = self.steps.pop(index)
        row = self.row(kind, source, target)
        if kind == Kind.AddNode:
            self.place[target] = int(self.state.num_nodes)
        self.apply(kind, row, column)

    def complete(self, masks: Masks, prefers_edge: bool, noise: Mapping[Kind, Tensor]) -> None:
        """Take the random action of the highest rank; `noise` has the shapes of the masks [R, C]."""
        best = (-1.0, Kind.Stop, 0, 0)
        for kind, values in noise.items():
            rank = values.clone()
            if kind in SETTING_TYPES:
                rank += 3.0
            if kind == Kind.AddEdge:
                num_nodes = self.env.vocabulary.max_nodes
                for row in range(len(rank)):
                    concerns_new = self.place[self.new] != NONE and self.place[self.new] in divmod(row, num_nodes)
                    rank[row] += 2.0 if concerns_new else float(prefers_edge)
            for row, column in masks[kind][0].nonzero().tolist():
                best = max(best, (float(rank[row, column]), kind, row, column), key=lambda each: each[0])
        self.num_repairs += best[0] < 2.0
        self.apply(*best[1:])

    def apply(self, kind: int, row: int, column: int) -> None:
        """Apply an action."""
        self.state = self.env.apply(self.state, ActionBatch(*(torch.tensor([x]) for x in (kind, row, column))))

    def total_repairs(self) -> int:
        """Return the repairs with the nodes and edges of the plan that are not there."""
        num_left = 0
        for kind, source, target, _ in self.steps:
            places = self.place[source], self.place[target]
            has_edge = NONE not in places and bool(self.state.has_edge[0, places[0], places[1]])
            num_left += kind == Kind.AddNode or (kind == Kind.AddEdge and not has_edge)
        return self.num_repairs + num_left


def built_one_by_one(env: Environment, plan: Construction, generator: torch.Generator) -> tuple[GraphStates, list[int]]:
    """Return the states and the numbers of repairs, see `built`."""
    builders = [Builder(env, plan[i : i + 1]) for i in range(len(plan))]
    unfinished = builders
    while unfinished:
        masks = {builder: env.forward_masks(builder.state).masks for builder in unfinished}
        planned = {builder: builder.planned(masks[builder]) for builder in unfinished}
        unfinished = [b for b in unfinished if planned[b] is not None or not bool(masks[b][Kind.Stop].any())]
        noise: dict[Kind, Tensor] = {}
        if None in (planned[builder] for builder in unfinished):
            prefers_edge = (torch.rand(len(unfinished), generator=generator) < 0.75).tolist()
            for kind in env.forward_types:
                if kind != Kind.Stop:
                    shape = env.vocabulary.num_rows(kind), env.vocabulary.num_columns(kind)
                    noise[kind] = torch.rand(len(unfinished), *shape, generator=generator)
        for index, builder in enumerate(unfinished):
            step = planned[builder]
            if step is not None:
                builder.follow(step)
            else:
                builder.complete(masks[builder], prefers_edge[index], {kind: x[index] for kind, x in noise.items()})
    return GraphStates.cat([b.state for b in builders]), [b.total_repairs() for b in builders]
