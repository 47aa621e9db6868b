"""Batched codes and automorphism counts against the canonical form of each state."""

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.envs.slots import SlotEnv
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import UNKNOWN, canonical_forms
from gflownet.mdp.states import GraphStates
from tests.contracts.environments import ENVIRONMENTS

# One environment per class of states, in the fast suite.
QUICK = (
    *("catalogue", "undirected_attributes", "directed_attributes", "labelled_dag", "computation_graph_two_hidden"),
    *("computation_graph_recurrent", "computation_graph_ordered_output", "operation_graph_layouts", "cells_nb101"),
    *("choices", "recurrent_stack_of_gru", "tensor_graph_equal_inputs"),
)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ENVIRONMENTS]


def renamed(states: GraphStates, seed: int) -> GraphStates:
    """Return the graphs with their nodes in random order (`reach` and `num_bridges` left as they are)."""
    keys = torch.rand(states.exists.shape, generator=torch.Generator().manual_seed(seed)) + 2 * ~states.exists
    old, graph = keys.argsort(1), torch.arange(len(states))[:, None]
    pairs = (graph[:, :, None], old[:, :, None], old[:, None, :])
    return GraphStates(
        num_nodes=states.num_nodes,
        node_type=states.node_type[graph, old],
        node_attr=states.node_attr[graph, old],
        edge_type=states.edge_type[pairs],
        edge_attr=states.edge_attr[pairs],
        edge_order=states.edge_order[pairs],
        reach=states.reach,
        num_bridges=states.num_bridges,
        limit=states.limit,
    )


def states_of(env: Environment, graphs: list[nx.Graph]) -> GraphStates:
    """Return graphs with one type of nodes and edges as states."""
    states = GraphStates.empty(len(graphs), env.vocabulary)
    for i, graph in enumerate(graphs):
        states.num_nodes[i] = len(graph)
        states.node_type[i, : len(graph)] = 0
        for s, t in nx.convert_node_labels_to_integers(graph).edges:
            states.edge_type[i, s, t] = 0
            if not env.vocabulary.directed:
                states.edge_type[i, t, s] = 0
    return states


@pytest.mark.parametrize("name", NAMES)
def test_codes_and_counts_match_canonical_forms(name):
    env = ENVIRONMENTS[name]()
    states = enumerate_states(env, max_states=6_000).states
    other = states if isinstance(env, SlotEnv) else renamed(states, seed=1)  # nodes of slots are never permuted
    keep = torch.randperm(len(states), generator=torch.Generator().manual_seed(2))[:100]
    states, other = states[keep], other[keep]
    codes = env.identify(states)
    assert torch.equal(env.identify(other), codes)
    assert len(codes.unique()) == len({env.coloured_graph(states, i).canonical_key() for i in range(len(states))})
    counts = [env.coloured_graph(states, i).num_automorphisms() for i in range(len(states))]
    assert env.num_automorphisms(other) == counts


def pointed(env: Environment, states: GraphStates, index: int, action: Sequence[int]) -> tuple:
    """Return an identity of a state with an action: its canonical key with a pointer node joined to the ends."""
    graph, (kind, row, column) = env.coloured_graph(states, index), action
    ends = divmod(row, env.vocabulary.max_nodes) if kind in PAIR_TYPES else (row,)
    pointer, num_nodes = len(graph.node_colours), int(states.num_nodes[index])
    second = "target" if env.vocabulary.directed else "source"
    edges = {(end, pointer): colour for end, colour in zip(ends, ("source", second), strict=False) if end < num_nodes}
    if len(set(ends)) < len(ends):
        edges = {(row % env.vocabulary.max_nodes, pointer): "both"}
    named = ColouredGraph((*graph.node_colours, "pointer"), {**graph.edge_colours, **edges}, graph.directed)
    return named.canonical_key(), kind, column


@pytest.mark.parametrize("name", ["undirected", "directed", "undirected_attributes", "computation_graph_recurrent"])
def test_identify_actions(name):
    env = ENVIRONMENTS[name]()
    states = enumerate_states(env, max_states=6_000).states
    states = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(3))[:60]]
    for masks in (env.forward_masks(states), env.backward_masks(states)):
        owner, actions = masks.positions()
        moves = actions.kind != int(GraphActionType.Stop)
        owner, actions = owner[moves], actions[moves]
        codes = env.identify_actions(states[owner], actions).tolist()
        named = [
            pointed(env, states, graph, action)
            for graph, *action in zip(owner.tolist(), *(part.tolist() for part in actions.parts), strict=True)
        ]
        assert len(set(codes)) == len(set(named)) == len(set(zip(codes, named, strict=True)))
        assert len(set(codes)) < len(codes) or name == "computation_graph_recurrent"  # with one hidden node


GRAPHS = {
    "path": nx.path_graph(9),
    "cycle": nx.cycle_graph(9),
    "two_triangles": nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)),
    "hexagon": nx.cycle_graph(6),
    "prism": nx.circular_ladder_graph(3),
    "complete_bipartite": nx.complete_bipartite_graph(3, 3),
    "petersen": nx.petersen_graph(),
    "cube": nx.hypercube_graph(3),
    "complete": nx.complete_graph(10),
    "star": nx.star_graph(9),
    "wheel": nx.wheel_graph(8),
    "spider": nx.from_edgelist([(0, i) for i in range(1, 5)] + [(i, i + 4) for i in range(1, 5)]),
    "matching": nx.from_edgelist([(2 * i, 2 * i + 1) for i in range(5)]),
    "heavy_pair": nx.barbell_graph(4, 2),
}


@pytest.mark.parametrize("directed", [False, True])
def test_symmetric_graphs_of_one_colour(directed):
    """Regular graphs, which refinement alone cannot separate, and all graphs on six nodes."""
    env = GraphBuildingEnv(["a"], max_nodes=10, directed=directed)
    atlas = [g for g in nx.graph_atlas_g() if 1 <= len(g) <= 6]
    states = states_of(env, [*GRAPHS.values(), *atlas])
    graphs: list[ColouredGraph] = [env.coloured_graph(states, i) for i in range(len(states))]
    codes = [env.identify(renamed(states, seed=seed)) for seed in range(3)]
    assert torch.equal(codes[0], codes[1])
    assert torch.equal(codes[0], codes[2])
    same_code = codes[0][:, None] == codes[0]
    keys = [g.canonical_key() for g in graphs]
    assert same_code.tolist() == [[a == b for b in keys] for a in keys]
    assert env.num_automorphisms(states) == [g.num_automorphisms() for g in graphs]


def test_identify_independent_of_max_nodes():
    small, large = (GraphBuildingEnv(["a"], max_nodes=n) for n in (10, 14))
    codes = [env.identify(states_of(env, list(GRAPHS.values()))) for env in (small, large)]
    assert torch.equal(*codes)


def test_single_search_is_cached(monkeypatch):
    env = GraphBuildingEnv(["a"], max_nodes=16)
    states = states_of(env, [nx.hypercube_graph(4), GRAPHS["path"], nx.hypercube_graph(4)])
    assert canonical_forms(states).num_automorphisms.tolist() == [UNKNOWN, 2, UNKNOWN]
    searched = []
    original = ColouredGraph.canonical_form
    monkeypatch.setattr(ColouredGraph, "canonical_form", lambda self: searched.append(1) or original(self))
    assert env.num_automorphisms(states) == [384, 2, 384]
    codes = env.identify(states)
    assert codes[0] == codes[2] != codes[1]
    assert (codes % 2).tolist() == [1, 0, 1]  # odd codes: from the single search
    assert env.num_automorphisms(states) == [384, 2, 384]
    assert len(searched) == 1


def test_identify_actions_with_single_search():
    """In two hypercubes, pairs of nodes have equal codes iff they have equal distances."""
    env = GraphBuildingEnv(["a"], max_nodes=32)
    cube = nx.hypercube_graph(4)
    cubes = nx.disjoint_union(cube, cube)
    states = states_of(env, [cubes])[torch.zeros(31, dtype=torch.int64)]
    pairs = ActionBatch(torch.full((31,), int(GraphActionType.AddEdge)), torch.arange(1, 32), torch.zeros(31).long())
    codes = env.identify_actions(states, pairs).tolist()
    distance_of = nx.single_source_shortest_path_length(cubes, 0)
    distances = [distance_of.get(node) for node in range(1, 32)]
    assert len(set(codes)) == len(set(zip(codes, distances, strict=True))) == 5


def test_identify_actions_independent_of_batch():
    env = GraphBuildingEnv(["a", "b"], max_nodes=5)
    states = enumerate_states(env).states
    owner, actions = env.backward_masks(states).positions()
    together = env.identify_actions(states[owner], actions)
    for index in range(0, len(owner), 40):
        one = torch.tensor([index])
        assert torch.equal(env.identify_actions(states[owner[one]], actions[one]), together[one])


@pytest.mark.parametrize("num_attributes", [7, 8, 17])
def test_canonical_forms_read_every_attribute(num_attributes):
    """Values of one attribute distinguish nodes as types do, whichever attribute it is."""
    env = ENVIRONMENTS["undirected"]()
    states = enumerate_states(env).states
    plain = replace(states, node_type=torch.where(states.exists, 0, states.node_type).to(torch.int8))
    expected = canonical_forms(states)
    assert not torch.equal(canonical_forms(plain).num_automorphisms, expected.num_automorphisms)
    for place in {0, 6, num_attributes - 1}:
        values = torch.zeros(*states.node_type.shape, num_attributes, dtype=torch.int8)
        values[:, :, place] = states.node_type
        forms = canonical_forms(replace(plain, node_attr=values))
        assert torch.equal(forms.num_automorphisms, expected.num_automorphisms)
        assert len(forms.code.unique()) == len(expected.code.unique())


def test_identify_no_states():
    env = ENVIRONMENTS["directed"]()
    assert env.identify(env.initial_states(0)).shape == (0,)
