"""Numbers that describe architectures of any environment: sizes, paths, settings with an order, counts, shapes.

They are computed for a whole batch from the graphs and the vocabulary. Isomorphic states have equal numbers.

Letters: B states, N nodes, P parts of a label, V values, S places, D numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gflownet.data.sampler import uniform_states
from gflownet.envs.choice_places import text_of
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.operation_choices import Prefix
from gflownet.envs.operation_graph import OperationFacts, OperationGraphEnv
from gflownet.envs.slots import SlotEnv
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs
from gflownet.workers.process import stream_seed

Columns = list[tuple[str, "Group", Tensor]]  # name, group and values [B] of each number
_NUM_REFERENCES = 256  # random architectures: they determine means, deviations and the labels that are counted
_CHUNK = 2_048  # architectures at a time, to bound memory
_BOUND = 4.0  # of a standardised number
_DECIMALS = 9  # sums over nodes in another order are equal
_CONSTANT = 1e-9  # deviation below which a number is left out
_REFERENCES = 3  # random stream


class Group(IntEnum):
    """Numbers with one distance in a kernel."""

    SIZES = 0
    PATHS = 1
    SETTINGS = 2
    COUNTS = 3
    SHAPES = 4
    PLACES = 5
    ENDS = 6


class _Scale(NamedTuple):
    """Random architectures in numbers, and the D numbers that vary over them."""

    mean: Tensor
    deviation: Tensor
    columns: Tensor  # [D]
    names: tuple[str, ...]  # D
    groups: Tensor  # [D]


class Descriptors:
    """Standardised numbers of terminal states; those that are equal for all random architectures are left out."""

    def __init__(self, env: Environment, *, seed: int) -> None:
        """Take the seed of the random architectures; they are measured on first use."""
        self.env, self._seed = env, seed
        self._shapes = ShapeNumbers(env) if isinstance(env, OperationGraphEnv) else None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names [D]."""
        return self._scale.names

    @property
    def groups(self) -> Tensor:
        """Return the groups [D]."""
        return self._scale.groups

    @cached_property
    def _references(self) -> GraphStates:
        generator = torch.Generator().manual_seed(stream_seed(self._seed, _REFERENCES))
        return uniform_states(self.env, _NUM_REFERENCES, generator=generator)

    @cached_property
    def _types(self) -> list[int]:
        types = self.env.labelled_graphs(self._references).labels[:, :, 0].unique()
        return types[types != UNSET].tolist()

    @cached_property
    def _scale(self) -> _Scale:
        names, groups, values = self._numbers(self._references)
        mean, deviation = mean_and_deviation(values)
        varying = (values - mean).nan_to_num(0.0).abs().amax(0) > _CONSTANT * (1 + mean.abs())
        columns = varying.nonzero().squeeze(1)
        names = tuple(names[column] for column in columns.tolist())
        return _Scale(mean, deviation, columns, names, torch.tensor(groups)[columns])

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the numbers [B, D] float64 of terminal states, 0 for an unknown one."""
        starts = range(0, max(len(states), 1), _CHUNK)
        values = torch.cat([self._numbers(states[first : first + _CHUNK])[2] for first in starts])
        values = ((values - self._scale.mean) / self._scale.deviation)[:, self._scale.columns]
        return values.nan_to_num(0.0).clamp(-_BOUND, _BOUND).round(decimals=_DECIMALS)

    def _numbers(self, states: GraphStates) -> tuple[tuple[str, ...], tuple[Group, ...], Tensor]:
        """Return the names [D], the groups [D] and the values [B, D] float64 of all numbers."""
        graphs = self.env.labelled_graphs(states)
        columns = [*path_numbers(graphs), *type_counts(graphs, self._types)]
        if isinstance(self.env, SlotEnv):
            columns += place_numbers(self.env, states)
        else:
            columns += setting_numbers(self.env, states)
        if self._shapes is not None:
            columns += self._shapes(states)
        names, groups, values = zip(*columns, strict=True)
        return names, groups, torch.stack([value.double() for value in values], 1)


def mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [D] of the finite values of each column of [n, D]; 1 for a constant one."""
    mean = values.nanmean(0)
    deviation = (values - mean).square().nanmean(0).sqrt()
    return mean, torch.where(deviation > _CONSTANT * (1 + mean.abs()), deviation, 1.0)


def path_numbers(graphs: LabelledGraphs) -> Columns:
    """Return numbers of nodes and edges, lengths and number of paths from a source to a sink, and the width."""
    edge, exists = graphs.edges != NO_EDGE, graphs.exists
    has_edge = edge.any(1) | edge.any(2)
    is_source, is_sink = exists & ~edge.any(1), exists & ~edge.any(2)
    longest = torch.zeros(exists.shape)  # edges from a source
    shortest = torch.where(is_source, 0.0, torch.inf)
    num_paths, adjacency = is_source.double(), edge.double()
    total = torch.zeros(exists.shape, dtype=torch.float64)
    for step in range(exists.shape[1]):
        total += num_paths
        longest = torch.where(num_paths > 0, float(step), longest)
        shortest = torch.where((num_paths > 0) & shortest.isinf(), float(step), shortest)
        num_paths = torch.einsum("bs,bst->bt", num_paths, adjacency)  # walks of the next length
    level = torch.nn.functional.one_hot(longest.long(), exists.shape[1]) * exists[:, :, None]
    ends = shortest.masked_fill(~is_sink, torch.inf).amin(1)
    return [
        ("nodes", Group.SIZES, exists.sum(1)),
        ("edges", Group.SIZES, edge.sum((1, 2))),
        ("longest path", Group.PATHS, longest.amax(1)),
        ("shortest path", Group.PATHS, ends.nan_to_num(posinf=0.0)),
        ("log paths", Group.PATHS, (total * is_sink).sum(1).log1p()),
        ("edges from sources", Group.PATHS, (edge & is_source[:, :, None]).sum((1, 2))),
        ("edges to sinks", Group.PATHS, (edge & is_sink[:, None, :]).sum((1, 2))),
        ("edges from sources to sinks", Group.PATHS, (edge & is_source[:, :, None] & is_sink[:, None, :]).sum((1, 2))),
        ("mean depth", Group.PATHS, (longest * exists).sum(1) / exists.sum(1).clamp(min=1)),
        ("width", Group.PATHS, level.sum(1).amax(1)),
        ("nodes without edges", Group.PATHS, (exists & ~has_edge).sum(1)),
        ("largest number of inputs", Group.PATHS, edge.sum(1).amax(1)),
        ("largest number of outputs", Group.PATHS, edge.sum(2).amax(1)),
    ]


def type_counts(graphs: LabelledGraphs, types: Sequence[int]) -> Columns:
    """Return the numbers of nodes of each type: all, those that read a source, those that a sink reads."""
    places, labels = _ends(graphs.exists, graphs.edges != NO_EDGE), graphs.labels[:, :, 0]
    return [
        (f"nodes of type {value}{place}", Group.ENDS if place else Group.COUNTS, ((labels == value) & at).sum(1))
        for value in types
        for place, at in places.items()
    ]


def _ends(exists: Tensor, edge: Tensor) -> dict[str, Tensor]:
    """Return all nodes [B, N], those that read a source, and those that a sink reads, for edges [B, N, N]."""
    first, last = (edge & ~edge.any(1)[:, :, None]).any(1), (edge & ~edge.any(2)[:, None, :]).any(2)
    return {"": exists, " at a source": first, " at a sink": last}


def setting_numbers(env: Environment, states: GraphStates) -> Columns:
    """Return mean, extremes and sum over the nodes of attributes that are numbers, counts of the values of others."""
    columns, ends = Columns(), _ends(states.exists, states.has_edge)
    for position, attribute in enumerate(env.vocabulary.node_attributes):
        index = states.node_attr[:, :, position].long()
        is_set = index != UNSET
        numbers = ordered(attribute.values)
        if numbers is None:
            columns += [
                (f"nodes with {attribute.name}={value}", Group.COUNTS, (index == number).sum(1))
                for number, value in enumerate(attribute.values)
            ]
            continue
        value = numbers[index].masked_fill(~is_set, 0.0)
        columns += [
            (f"{kind} of {attribute.name}{place}", Group.SETTINGS, number)
            for place, at in ends.items()
            for kind, number in summaries(value, is_set & at).items()
        ]
        filled = value.masked_fill(~is_set, 1.0)
        products = torch.einsum("bs,bst,bt->b", filled, states.has_edge.double(), filled)
        columns.append((f"products of {attribute.name} along edges", Group.SIZES, products.abs().log1p()))
    return columns


def place_numbers(env: SlotEnv, states: GraphStates) -> Columns:
    """Return the rank of the value of each place with numbers, and which value each other place has."""
    columns: Columns = []
    for place, name in enumerate(env.vocabulary.node_types):
        index = states.node_attr[:, place, 0].long()
        positions, values = _offered(env, place)
        numbers = ordered(values)
        if numbers is None:
            columns += [(f"{name} is {v}", Group.PLACES, index == at) for at, v in zip(positions, values, strict=True)]
            continue
        rank = torch.full((len(env.values) + 1,), torch.nan, dtype=torch.float64)  # the last one: no value
        rank[torch.tensor(positions)] = numbers.argsort().argsort().double()
        columns.append((name, Group.SETTINGS, rank[index]))
        columns.append((f"{name} exists", Group.PLACES, index != UNSET))
    return columns


def _offered(env: SlotEnv, place: int) -> tuple[Sequence[int], Sequence[Any]]:
    """Return the values that a place may have, and their positions in the vocabulary."""
    if not isinstance(env, ChoicesEnv):
        return range(len(env.values)), env.values
    values = env.places.places[place].values
    return [env.values.index(text_of(value)) for value in values], values


class ShapeNumbers:
    """Numbers of operation graphs: sizes, channels, positions at which operations act, and the receptive field."""

    def __init__(self, env: OperationGraphEnv) -> None:
        self.env, tables = env, env.tables
        self._costs = torch.full((*tables.cost.shape,), torch.nan, dtype=torch.float64)  # [P, I, 2]; NaN: not computed
        self._shape = torch.tensor(tables.sizes, dtype=torch.float64).log2()  # [I, 2] channels, positions
        extents = [_extent(env, prefix) for prefix in env.choices.prefixes]
        self._extent = torch.tensor([*extents, 0.0], dtype=torch.float64)
        self._positions = self._shape[tables.inputs][:, 1].amax()

    def __call__(self, states: GraphStates) -> Columns:
        """Return the numbers of a batch."""
        env, states = self.env, _ends_first(self.env, states)
        facts = env.facts(states)
        edge = facts.edge
        is_hidden, is_last = facts.is_hidden, edge[:, :, env.num_inputs] & facts.is_hidden  # read by the output
        received, channels = self._shape[facts.input], self._shape[facts.output][..., 0]
        extent = self._extent[facts.prefix]
        step = (self._positions - received[..., 1]).clamp(min=0) * is_hidden  # logarithm of the strides before
        field, cost = torch.zeros_like(extent), self._cost(facts).log1p()
        for _ in range(env.max_hidden_nodes + 1):
            field = (field[:, :, None] * edge).amax(1) + extent * step.exp2()
        columns: Columns = [
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

    def _cost(self, facts: OperationFacts) -> Tensor:
        """Return parameters and multiply-adds [B, 2] float64, without learned projections of inputs."""
        prefix, shape = facts.prefix[facts.is_hidden], facts.input[facts.is_hidden]
        is_missing = self._costs[prefix, shape, 0].isnan()
        for pair in dict.fromkeys(zip(prefix[is_missing].tolist(), shape[is_missing].tolist(), strict=True)):
            applied = self.env.choices.applied(self.env.choices.prefixes[pair[0]])
            cost = applied.cost(dict(zip(applied.required_ports, self.env.tables.operands[pair[1]], strict=True)))
            self._costs[pair] = torch.tensor(cost, dtype=torch.float64)
        total = torch.zeros(*facts.prefix.shape, 2, dtype=torch.float64)
        total[facts.is_hidden] = self._costs[prefix, shape]
        return total.sum(1) + facts.head.double()


def _ends_first(env: OperationGraphEnv, states: GraphStates) -> GraphStates:
    """Return types, attributes and edges of states with inputs and output at their places, as `facts` reads them."""
    kind = torch.where(states.exists, states.node_type.clamp(max=env.num_ends), env.num_ends + 1)
    order = kind.argsort(dim=1, stable=True)
    graph = torch.arange(len(states))[:, None]
    pairs = graph[:, :, None], order[:, :, None], order[:, None, :]
    return replace(
        states,
        node_type=states.node_type[graph, order],
        node_attr=states.node_attr[graph, order],
        edge_type=states.edge_type[pairs],
        edge_attr=states.edge_attr[pairs],
    )


def _extent(env: OperationGraphEnv, prefix: Prefix) -> float:
    """Return the positions that an operation reads beyond one, 0 of an incomplete prefix."""
    if env.choices.next_attribute(prefix) is not None:
        return 0.0
    settings = env.choices.applied(prefix).settings
    kernel, dilation = (settings.get(name, 1) for name in ("kernel_size", "dilation"))
    kernel, dilation = (value if isinstance(value, int | float) else 1 for value in (kernel, dilation))
    return float((kernel - 1) * dilation)


def summaries(values: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return sum, mean, largest and least value [B] of values [B, N] under a mask; NaN but the sum for an empty one."""
    is_any, total = mask.any(1), (values * mask).sum(1)
    columns = {
        "mean": total / mask.sum(1),
        "largest": values.masked_fill(~mask, -torch.inf).amax(1),
        "least": values.masked_fill(~mask, torch.inf).amin(1),
    }
    return {"sum": total, **{name: x.masked_fill(~is_any, torch.nan) for name, x in columns.items()}}


def ordered(values: Sequence[Any]) -> Tensor | None:
    """Return values that are all numbers, at least two, as float64; None for others."""
    if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    return torch.tensor(values, dtype=torch.float64)
