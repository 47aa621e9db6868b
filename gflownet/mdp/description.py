"""Graphs and actions in names of a vocabulary, and the array-backed states and indices that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import ATTRIBUTE_TYPES, PAIR_TYPES, SETTING_TYPES, GraphAction, GraphActionType
from gflownet.mdp.states import (
    ABSENT,
    MAIN_EDGE,
    UNSET,
    Attribute,
    GraphStates,
    GraphVocabulary,
    count_bridges,
    transitive_closure,
)


@dataclass(frozen=True)
class DescribedEdge:
    """An edge by position in the vocabulary."""

    edge_type: int = 0
    values: Sequence[int] = ()  # of every edge attribute
    order: int = 0


@dataclass(frozen=True)
class GraphDescription:
    """A graph by positions in the vocabulary, nodes in the order of a state."""

    node_types: Sequence[int]
    node_values: Sequence[Sequence[int]]  # of every node attribute, for every node
    edges: Mapping[tuple[int, int], DescribedEdge] = field(default_factory=dict)  # undirected ones from either end


def described_states(vocabulary: GraphVocabulary, descriptions: Sequence[GraphDescription]) -> GraphStates:
    """Return the states of B graphs.

    Raises:
        ValueError: a graph has more nodes than the vocabulary allows; the message names it by position.
    """
    states = GraphStates.empty(len(descriptions), vocabulary)
    for index, graph in enumerate(descriptions):
        num_nodes = len(graph.node_types)
        if num_nodes > vocabulary.max_nodes:
            raise ValueError(f"graph {index}: expected at most {vocabulary.max_nodes} nodes, got {num_nodes}")
        states.num_nodes[index] = num_nodes
        states.node_type[index, :num_nodes] = torch.tensor(graph.node_types, dtype=torch.int8)
        for node, values in enumerate(graph.node_values):
            states.node_attr[index, node] = torch.tensor(values, dtype=torch.int8)
        for (source, target), edge in graph.edges.items():
            for ends in {(source, target), (source, target) if vocabulary.directed else (target, source)}:
                states.edge_type[index, *ends] = edge.edge_type
                states.edge_attr[index, *ends] = torch.tensor(edge.values, dtype=torch.int8)
                states.edge_order[index, *ends] = edge.order
    if vocabulary.directed:
        states.reach[:] = transitive_closure(states.edge_type == MAIN_EDGE)
    else:
        states.num_bridges[:] = count_bridges(states.edge_type != ABSENT)
    return states


def described_graph(vocabulary: GraphVocabulary, graph: ColouredGraph) -> GraphDescription:
    """Return the inverse of `Environment.coloured_graph`.

    Raises:
        ValueError: a direction, a type or a value that the vocabulary does not have.
    """
    types, values, edges = [], [], {}
    if graph.directed != vocabulary.directed:
        raise ValueError(f"expected directed {vocabulary.directed}, got {graph.directed}")
    for colour in graph.node_colours:
        kind, _, text = colour.partition("|")
        types.append(position_of(vocabulary.node_types, kind, "node type"))
        values.append(_value_positions(vocabulary.node_attributes, text))
    for ends, colour in graph.edge_colours.items():
        kind, text, order, *_ = f"{colour}|||".split("|")
        position = position_of(vocabulary.edge_types, kind, "edge type")
        edges[ends] = DescribedEdge(position, _value_positions(vocabulary.edge_attributes, text), int(order or 0))
    return GraphDescription(types, values, edges)


def _value_positions(attributes: Sequence[Attribute], joined: str) -> list[int]:
    """Return the positions of comma-separated values in the vocabulary; UNSET for ?."""
    texts = joined.split(",") if joined else []
    if len(texts) != len(attributes):
        raise ValueError(f"expected values of {[a.name for a in attributes]}, got {joined!r}")
    names = [[*map(str, attribute.values)] for attribute in attributes]
    named = zip(attributes, names, texts, strict=True)
    return [UNSET if text == "?" else position_of(values, text, f"value of {a.name}") for a, values, text in named]


def position_of(values: Sequence, value: object, what: str) -> int:
    """Return the position of a type or a value in the vocabulary. Raises ValueError if it is not there."""
    if value not in values:
        raise ValueError(f"expected a {what} out of {list(values)}, got {value!r}")
    return list(values).index(value)


def encode_action(vocabulary: GraphVocabulary, action: GraphAction) -> tuple[int, int, int]:
    """Return (kind, row, column) of an action whose nodes are given.

    Raises:
        ValueError: a type, attribute or value that is not in the vocabulary, or a node above `max_nodes`.
    """
    kind = action.action_type
    for node in (action.source, action.target):
        if node is not None and not 0 <= node < vocabulary.max_nodes:
            raise ValueError(f"{action}: expected nodes 0 to {vocabulary.max_nodes - 1}, got {node}")
    row, column = action.source or 0, 0
    if kind in PAIR_TYPES:
        row = row * vocabulary.max_nodes + (action.target or 0)
    if kind == GraphActionType.AddNode:
        column = position_of(vocabulary.node_types, action.value, "node type")
    elif kind == GraphActionType.AddEdge:
        column = position_of(vocabulary.edge_types, action.value or vocabulary.edge_types[0], "edge type")
    elif kind in ATTRIBUTE_TYPES:
        attributes, columns = _attributes_and_columns(vocabulary, kind)
        column = position_of([a.name for a in attributes], action.attribute, "attribute")
        if kind in SETTING_TYPES:
            value = position_of(attributes[column].values, action.value, f"value of {action.attribute}")
            column = columns.index((column, value))
    return int(kind), row, column


def decode_action(vocabulary: GraphVocabulary, kind: GraphActionType, row: int, column: int) -> GraphAction:
    """Return the action at (kind, row, column) in names."""
    if kind == GraphActionType.Stop:
        return GraphAction(kind)
    source, target = divmod(row, vocabulary.max_nodes) if kind in PAIR_TYPES else (row, None)
    if kind == GraphActionType.AddNode:
        return GraphAction(kind, source, value=vocabulary.node_types[column])
    if kind == GraphActionType.AddEdge:
        return GraphAction(kind, source, target, value=vocabulary.edge_types[column])
    if kind not in ATTRIBUTE_TYPES:
        return GraphAction(kind, source, target)
    attributes, columns = _attributes_and_columns(vocabulary, kind)
    if kind not in SETTING_TYPES:
        return GraphAction(kind, source, target, attribute=attributes[column].name)
    position, value = columns[column]
    attribute = attributes[position]
    return GraphAction(kind, source, target, attribute=attribute.name, value=attribute.values[value])


def _attributes_and_columns(
    vocabulary: GraphVocabulary, kind: GraphActionType
) -> tuple[tuple[Attribute, ...], tuple[tuple[int, int], ...]]:
    """Return the attributes of nodes or edges, and the (attribute, value) positions of their setting actions."""
    if kind in PAIR_TYPES:
        return vocabulary.edge_attributes, vocabulary.edge_columns
    return vocabulary.node_attributes, vocabulary.node_columns
