import json
import pickle
from math import factorial
from random import Random

import networkx as nx
import pytest

from gflownet.graphs.canonical import ColouredGraph
from tests.oracles import graphs as oracle

thorough = pytest.mark.parametrize("num_examples", [30, pytest.param(300, marks=pytest.mark.slow)])


def coloured_graph(rng, max_nodes=6):
    directed, num_nodes = rng.random() < 0.5, rng.randint(0, max_nodes)
    colours = tuple(rng.choice(rng.choice(("a", "ab"))) for _ in range(num_nodes))
    pairs = [(s, t) for s in range(num_nodes) for t in range(num_nodes) if directed or s <= t]
    edges = rng.choice(([None, None, "x", "y"], [None, "x"], [None, None, None, "x"]))
    colours_of = {pair: rng.choice(edges) for pair in pairs}
    return ColouredGraph(colours, {pair: colour for pair, colour in colours_of.items() if colour}, directed)


@thorough
def test_canonical_form_invariant_under_relabelling(num_examples):
    for rng in map(Random, range(num_examples)):
        graph = coloured_graph(rng)
        other = oracle.relabelled(graph, rng.sample(range(len(graph.node_colours)), len(graph.node_colours)))
        assert other.canonical_key() == graph.canonical_key()
        assert other.canonical_hash() == graph.canonical_hash()
        assert other == graph
        assert hash(other) == hash(graph)
        assert other.num_automorphisms() == graph.num_automorphisms()


@thorough
def test_equality_is_isomorphism(num_examples):
    for rng in map(Random, range(num_examples)):
        first, second = coloured_graph(rng), coloured_graph(rng, max_nodes=3)
        assert (first == second) == oracle.isomorphic_by_vf2(first, second)
        if not first.edge_colours:
            continue
        moved = dict(first.edge_colours)
        ends, colour = rng.choice(sorted(moved.items()))
        del moved[ends]
        free = [(s, t) for s in range(len(first.node_colours)) for t in range(s, len(first.node_colours))]
        free = [pair for pair in free if pair not in moved and pair[::-1] not in moved]
        if not free:
            continue
        neighbour = ColouredGraph(first.node_colours, {**moved, rng.choice(free): colour}, first.directed)
        assert (first == neighbour) == oracle.isomorphic_by_vf2(first, neighbour)


@thorough
def test_automorphism_count_matches_vf2(num_examples):
    for rng in map(Random, range(num_examples)):
        graph = coloured_graph(rng, max_nodes=7)
        assert graph.num_automorphisms() == oracle.automorphisms_by_vf2(graph)


@thorough
def test_canonical_order_maps_graph_onto_form(num_examples):
    for rng in map(Random, range(num_examples)):
        graph = coloured_graph(rng)
        form = graph.canonical_form()
        position = {node: place for place, node in enumerate(form.order)}
        image = oracle.relabelled(graph, [position[node] for node in range(len(form.order))])
        directed, colours, edges = json.loads(form.key)
        assert oracle.labelled_form(image) == (
            directed,
            tuple(colours),
            tuple(sorted(((s, t), c) for s, t, c in edges)),
        )


def test_hexagon_differs_from_two_triangles():
    """Colour refinement cannot separate them, also as 12-node pairs."""
    for copies in (1, 2):
        hexagons = oracle.from_undirected_networkx(nx.disjoint_union_all([nx.cycle_graph(6)] * copies))
        triangles = oracle.from_undirected_networkx(nx.disjoint_union_all([nx.cycle_graph(3)] * 2 * copies))
        assert hexagons != triangles
        assert hexagons.canonical_hash() != triangles.canonical_hash()
        assert hexagons.num_automorphisms() == 12**copies * factorial(copies)
        assert triangles.num_automorphisms() == 6 ** (2 * copies) * factorial(2 * copies)


SHRIKHANDE = nx.Graph(
    ((x, y), ((x + dx) % 4, (y + dy) % 4)) for x in range(4) for y in range(4) for dx, dy in [(0, 1), (1, 0), (1, 1)]
)
ROOK = nx.line_graph(nx.complete_bipartite_graph(4, 4))


@pytest.mark.parametrize(
    "graph",
    [
        nx.disjoint_union_all([nx.cycle_graph(length) for length in (6, 3, 3, 5, 4)]),
        nx.frucht_graph(),
        nx.random_regular_graph(3, 14, seed=1),
        nx.random_regular_graph(4, 12, seed=2),
        nx.disjoint_union(nx.dodecahedral_graph(), nx.desargues_graph()),
    ],
)
def test_canonical_key_with_several_orbits_per_cell(graph):
    rng = Random(0)
    coloured = oracle.from_undirected_networkx(graph)
    for _ in range(3):
        permutation = rng.sample(range(len(graph)), len(graph))
        assert oracle.relabelled(coloured, permutation).canonical_key() == coloured.canonical_key()


def test_strongly_regular_graphs_differ():
    rook, shrikhande = oracle.from_undirected_networkx(ROOK), oracle.from_undirected_networkx(SHRIKHANDE)
    assert rook.num_automorphisms() == 1152
    assert shrikhande.num_automorphisms() == 192
    assert rook != shrikhande


@pytest.mark.parametrize(
    ("graph", "order"),
    [
        (nx.empty_graph(0), 1),
        (nx.empty_graph(30), factorial(30)),
        (nx.complete_graph(30), factorial(30)),
        (nx.star_graph(16), factorial(16)),
        (nx.complete_bipartite_graph(6, 6), 2 * factorial(6) ** 2),
        (nx.cycle_graph(40), 80),
        (nx.path_graph(500), 2),
        (nx.petersen_graph(), 120),
        (nx.hypercube_graph(4), 384),
        (nx.disjoint_union_all([nx.path_graph(3)] * 8), factorial(8) * 2**8),
        (nx.balanced_tree(2, 4), 2**15),
        (nx.frucht_graph(), 1),
        (SHRIKHANDE, 192),
        pytest.param(nx.disjoint_union(SHRIKHANDE, ROOK), 192 * 1152, marks=pytest.mark.slow),
    ],
)
def test_automorphism_count_of_large_groups(graph, order):
    assert oracle.from_undirected_networkx(graph).num_automorphisms() == order


def test_direction_colours_and_loops_change_identity():
    triangle = {(0, 1): "x", (1, 2): "x", (2, 0): "x"}
    nodes = ("a", "a", "a")
    assert ColouredGraph(nodes, triangle).num_automorphisms() == 3
    assert ColouredGraph(nodes, triangle, directed=False).num_automorphisms() == 6
    assert ColouredGraph(nodes, {**triangle, (0, 1): "y"}, directed=False).num_automorphisms() == 2
    assert ColouredGraph(nodes, {**triangle, (0, 0): "x"}, directed=False).num_automorphisms() == 2
    assert ColouredGraph(("a", "a", "b"), triangle).num_automorphisms() == 1
    variants = [
        ColouredGraph(nodes, triangle),
        ColouredGraph(nodes, triangle, directed=False),
        ColouredGraph(nodes, {**triangle, (0, 0): "x"}),
        ColouredGraph(nodes, {**triangle, (0, 0): "y"}),
        ColouredGraph(nodes, {**triangle, (2, 0): "y"}),
        ColouredGraph(nodes, {**triangle, (0, 2): "x"}),
        ColouredGraph(nodes, {(0, 1): "x", (1, 2): "x", (0, 2): "x"}),
        ColouredGraph(("a", "a", "b"), triangle),
    ]
    assert len(set(variants)) == len(variants)


def test_colours_are_not_parsed():
    assert ColouredGraph(("1",), {}) != ColouredGraph(('"1"',), {})
    assert ColouredGraph(("a,b", "c"), {}) != ColouredGraph(("a", "b,c"), {})


def test_undirected_edge_given_twice_raises():
    assert ColouredGraph(("a", "b"), {(0, 1): "x"}, False) == ColouredGraph(("a", "b"), {(1, 0): "x"}, False)
    with pytest.raises(ValueError, match="both directions"):
        ColouredGraph(("a", "b"), {(0, 1): "x", (1, 0): "x"}, directed=False)
    with pytest.raises(ValueError, match=r"edge \(0, 2\): expected nodes below 2"):
        ColouredGraph(("a", "b"), {(0, 2): "x"})


@thorough
def test_coloured_graph_round_trips(num_examples):
    for rng in map(Random, range(num_examples)):
        graph = coloured_graph(rng)
        for copy in (
            ColouredGraph.from_dict(json.loads(json.dumps(graph.to_dict()))),
            pickle.loads(pickle.dumps(graph)),
        ):
            assert oracle.labelled_form(copy) == oracle.labelled_form(graph)
        as_networkx = graph.to_networkx()
        assert as_networkx.is_directed() == graph.directed
        assert as_networkx.number_of_edges() == len(graph.edge_colours)


def test_coloured_graph_node_ids_with_gap_raise():
    with pytest.raises(ValueError, match=r"expected node ids 0 \.\. 0, got \[1\]"):
        ColouredGraph.from_dict({"directed": True, "nodes": [{"id": 1, "colour": "a"}], "edges": []})


def test_canonical_hash_version_and_text():
    """Stored hashes stay valid: a changed key needs a new version, here too."""
    graph = ColouredGraph(("a", "b"), {(0, 1): "x"})
    assert graph.canonical_key() == '[true,["a","b"],[[0,1,"x"]]]'
    assert graph.canonical_hash().startswith("g1-")
    assert len(graph.canonical_hash()) == 3 + 64
