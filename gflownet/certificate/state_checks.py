"""Consistency of state arrays with the graphs they describe, and states and actions as text.

Letters: B states, N maximum number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import ABSENT, UNSET, GraphStates, count_bridges, transitive_closure

_MAIN_EDGE = 0  # the edge type that reachability follows
_MAX_TEXT = 300  # characters of a state as text


def first_problem(env: Environment, states: GraphStates) -> tuple[Tensor, str]:
    """Return which states violate the first violated condition, [B] bool, and the condition; none: all False, ""."""
    for text, violated in _problems(env, states):
        if bool(violated.any()):
            return violated, text
    return torch.zeros(len(states), dtype=torch.bool), ""


def shown_state(env: Environment, states: GraphStates, index: int) -> str:
    """Return a state as text: `3 nodes: 0 red, 1 red, 2 blue; edges: 0-1, 1-2`."""
    graph = env.coloured_graph(states, index)
    nodes = ", ".join(f"{node} {_shown(colour)}" for node, colour in enumerate(graph.node_colours))
    labels = {ends: _shown(colour) for ends, colour in graph.edge_colours.items()}
    plain = set(labels.values()) == {env.vocabulary.edge_types[_MAIN_EDGE]}
    arrow = "->" if graph.directed else "-"
    edges = ", ".join(
        f"{source}{arrow}{target}{'' if plain else ' ' + labels[source, target]}" for source, target in sorted(labels)
    )
    num = len(graph.node_colours)
    text = f"{num} node{'s' * (num != 1)}: {nodes}" if num else "no nodes"
    text += f"; edges: {edges}" if edges else "; no edges"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def shown_step(env: Environment, states: GraphStates, index: int, actions: ActionBatch) -> str:
    """Return action `index` on state `index` as text: the action, then the state."""
    return f"{env.decode(states, index, actions)} on [{shown_state(env, states, index)}]"


def _shown(colour: str) -> str:
    """Return a colour without empty fields: `red||0` as `red`, `a|1,?` as `a(1,?)`."""
    name, *rest = colour.split("|")
    details = [part for part in rest[:1] if part] + [f"rank {part}" for part in rest[1:] if part not in ("", "0")]
    return f"{name}({', '.join(details)})" if details else name


def _problems(env: Environment, states: GraphStates) -> Iterator[tuple[str, Tensor]]:
    """Yield conditions with the states that violate them, [B] bool, cheap ones first."""
    vocabulary = env.vocabulary
    inside = torch.arange(vocabulary.max_nodes) < states.num_nodes[:, None]
    pair = inside[:, :, None] & inside[:, None, :]
    edge = states.edge_type != ABSENT
    yield "nodes fill the first positions", _any((states.node_type != ABSENT) != inside)
    yield "absent nodes have no attributes", _any((states.node_attr != UNSET).any(-1) & ~inside)
    yield "edges join nodes of the graph", _any(edge & ~pair)
    yield "absent edges have no attributes", _any((states.edge_attr != UNSET).any(-1) & ~edge)
    yield "absent edges have no rank", _any((states.edge_order != 0) & ~edge)
    yield (
        "types are in the vocabulary",
        _any(states.node_type >= len(vocabulary.node_types)) | _any(states.edge_type >= len(vocabulary.edge_types)),
    )
    for values, attributes in (
        (states.node_attr, vocabulary.node_attributes),
        (states.edge_attr, vocabulary.edge_attributes),
    ):
        for position, attribute in enumerate(attributes):
            outside = values[..., position] >= len(attribute.values)
            yield f"values of {attribute.name} are in the vocabulary", _any(outside)
    if vocabulary.ranked:
        yield "ranked inputs have ranks 0, 1, ...", _any(_has_wrong_ranks(env, states))
    if vocabulary.directed:
        closure = transitive_closure(states.edge_type == _MAIN_EDGE)
        yield "reachability follows from the edges", _any(states.reach != closure)
    else:
        yield "undirected edges are stored both ways", _any(states.edge_type != states.edge_type.transpose(1, 2))
        yield "the numbers of bridges follow from the edges", _any(states.num_bridges != count_bridges(edge))
    yield "some forward action is legal", env.forward_masks(states).num_actions() == 0


def _has_wrong_ranks(env: Environment, states: GraphStates) -> Tensor:
    """Return the nodes whose in-edges have wrong ranks, [B, N]: 0, 1, ... in ranking nodes, else 0."""
    edge = states.edge_type != ABSENT
    ranks = states.edge_order.long().masked_fill(~edge, states.edge_order.shape[1])
    ordered = ranks.sort(1).values
    num_in = edge.sum(1)
    expected = torch.arange(edge.shape[1])[None, :, None]
    wrong = ((ordered != expected) & (expected < num_in[:, None, :])).any(1)
    return torch.where(env.ordered_nodes(states), wrong, (states.edge_order != 0).any(1))


def _any(violated: Tensor) -> Tensor:
    return violated.flatten(1).any(1)
