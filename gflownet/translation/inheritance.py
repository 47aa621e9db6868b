"""Weights of a network for another one: matching nodes keep theirs, of other widths as far as both have them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.values import thawed

_NAME = re.compile(r"(.*?)((?:_\d+)+)")  # of a module or parameter: its kind, and the ids of its nodes
_RESIZED = {"weight", "bias", "running_mean", "running_var"}  # tensors of layers whose outputs are along the first axis
_STACKED = ("post_", "qkv")  # in names of weights with several parts along an axis: copied at one size only
_KERNEL_AXES = 2  # first axis of a weight after those of its outputs and inputs
_DEPTH_WEIGHT = 0.1  # of a difference of depths, against equal neighbours


class GraphOutline:
    """What two graphs are matched by: kinds and settings of nodes, their neighbours and depths."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.ends = *graph.input_node_ids, *graph.output_node_ids
        self.num_inputs = len(graph.input_node_ids)
        self.sources = {node: {edge.source for edge in graph.in_edges(node)} for node in graph.nodes}
        self.targets = {node: {edge.target for edge in graph.out_edges(node)} for node in graph.nodes}
        order = graph.topological_sort()
        self.hidden = [node for node in order if node not in self.ends]
        self.kinds = {node: _kind(graph, node) for node in graph.nodes}
        self.settings = {node: _settings(graph, node) for node in graph.nodes}
        self.depths = dict.fromkeys(order, 0)
        for node in order:
            self.depths[node] = max((self.depths[each] + 1 for each in self.sources[node]), default=0)
        self.counts = Counter(self.settings[node] for node in self.hidden)

    def num_equal(self, other: GraphOutline) -> int:
        """Return the number of hidden nodes with equal settings, the largest that a match can have."""
        return (self.counts & other.counts).total()

    def matches(self, other: GraphOutline) -> tuple[dict[int, int], float]:
        """Return a node of the other graph for nodes of this one, and the likeness of both in [0, 1].

        Inputs and outputs match by their place. Sources before targets, each hidden node gets the free node of its
        kind that has most neighbours in common: those of equal settings first.
        """
        found = dict(zip(self.ends, other.ends, strict=False)) if self.num_inputs == other.num_inputs else {}
        free = [node for node in other.hidden if node not in found.values()]
        for has_equal_settings in (True, False):
            for node in self.hidden:
                candidates = [
                    each
                    for each in free
                    if node not in found
                    and self.kinds[node] == other.kinds[each]
                    and (not has_equal_settings or self.settings[node] == other.settings[each])
                ]
                if candidates:
                    found[node] = max(candidates, key=lambda each: self._likeness(node, other, each, found))
                    free.remove(found[node])
        equal = sum(self.settings[node] == other.settings[each] for node, each in found.items())
        edges = sum(found.get(source) in other.sources[found[node]] for node in found for source in self.sources[node])
        num_edges = max(sum(map(len, self.sources.values())), sum(map(len, other.sources.values())), 1)
        num_nodes = max(len(self.kinds), len(other.kinds))
        return found, ((equal + len(found)) / 2 / num_nodes + edges / num_edges) / 2

    def _likeness(self, node: int, other: GraphOutline, each: int, found: Mapping[int, int]) -> float:
        before = sum(found.get(source) in other.sources[each] for source in self.sources[node])
        following = {other.settings[target] for target in other.targets[each]}
        after = sum(self.settings[target] in following for target in self.targets[node])
        distance = abs(self.depths[node] - other.depths[each])
        return (
            before / max(len(self.sources[node]), 1)
            + after / max(len(self.targets[node]), 1)
            - _DEPTH_WEIGHT * distance
        )


def inherited_share(
    sizes: Mapping[str, Sequence[int]], others: Mapping[str, Sequence[int]], nodes: Mapping[int, int]
) -> float:
    """Return the share of the weights that both networks have: the geometric mean of the shares in each.

    Args:
        sizes: of the tensors of a network by name.
        others: of those of another network.
        nodes: a node of the other network for nodes of this one, see `GraphOutline.matches`.
    """
    names = ((name, _name_before(name, nodes)) for name in sizes)
    pairs = [(name, sizes[name], others[before]) for name, before in names if before in others]
    num = sum(math.prod(map(min, own, other)) for name, own, other in pairs if _is_copied(name, own, other))
    return num / math.sqrt(max(math.prod(sum(map(math.prod, each.values())) for each in (sizes, others)), 1))


def inherit_weights(model: nn.Module, weights: Mapping[str, Tensor], nodes: Mapping[int, int]) -> float:
    """Copy weights of another network in place, and return their `inherited_share`.

    A wider layer keeps the function of the narrower one (Chen et al. 2016, Net2Net): its further inputs get zeros, its
    kernels grow by zeros around them. Further outputs keep their first values.

    Args:
        model: an untrained model.
        weights: the state_dict of a model of the other network.
        nodes: a node of the other network for nodes of this one, see `GraphOutline.matches`.
    """
    targets = model.state_dict()
    with torch.no_grad():
        for name, target in targets.items():
            source = weights.get(_name_before(name, nodes))
            if source is not None and _is_copied(name, target.shape, source.shape):
                _copy(target, source)
    sizes, others = ({name: value.shape for name, value in each.items()} for each in (targets, weights))
    return inherited_share(sizes, others, nodes)


def _kind(graph: ComputationGraph, node: int) -> str:
    value = graph.nodes[node]
    return str((value.operation_name, value.subgraph))


def _settings(graph: ComputationGraph, node: int) -> str:
    value = graph.nodes[node]
    return str((value.output_size, value.activation_function, thawed(value.attributes)))


def _name_before(name: str, nodes: Mapping[int, int]) -> str:
    """Return the name of a tensor in the other network, empty where one of its nodes has no match."""
    first, dot, rest = name.partition(".")
    found = _NAME.fullmatch(first)
    if found is None:
        return name
    ids = [nodes.get(int(number)) for number in found[2][1:].split("_")]
    return "" if None in ids else f"{found[1]}_{'_'.join(map(str, ids))}{dot}{rest}"


def _is_copied(name: str, own: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether a tensor keeps the entries that one of another network has."""
    if tuple(own) == tuple(other):
        return True
    first, _, last = name.rpartition(".")
    is_plain = (last in _RESIZED or not first) and not any(part in name for part in _STACKED)
    return is_plain and len(own) == len(other)


def _copy(target: Tensor, source: Tensor) -> None:
    """Copy the entries that both have; the middle of kernels."""
    places = list[tuple[slice, slice]]()
    for axis, sizes in enumerate(zip(target.shape, source.shape, strict=True)):
        size = min(sizes)
        starts = [(each - size) // 2 if axis >= _KERNEL_AXES else 0 for each in sizes]
        places.append((slice(starts[0], starts[0] + size), slice(starts[1], starts[1] + size)))
    if target.ndim > 1:
        target[places[0][0]] = 0
    target[tuple(first for first, _ in places)] = source[tuple(second for _, second in places)]
