"""A list of graphs as a search space: codes, order, features, and files that do not fit."""

import gzip
import json
from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import CatalogueConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from gflownet.mdp.states import LabelledGraphs
from tasks.catalogue import CatalogueContext, CatalogueEnv, label_counts, similarity_order
from tests.benchmark_tables import recipes, write_lines
from tests.contracts.environments import listed_graphs
from tests.evaluation.candidates import classifier_graph


def env_of(path: Any, **options: Any) -> CatalogueEnv:
    config = EnvConfig(catalogue=CatalogueConfig(graphs=str(path), **options))
    return CatalogueContext.build_env(config, input_sizes=(), output_sizes=())


@pytest.mark.parametrize(
    ("num", "branching", "num_digits"), [(1, 8, 1), (8, 8, 1), (9, 8, 2), (30, 2, 5), (30, 127, 1), (30, 3, 4)]
)
def test_trajectories_end_in_every_listed_graph_once(num, branching, num_digits):
    graphs = [Assignment(("a", "b"), (index, "x")) for index in range(num)]
    env = CatalogueEnv([*graphs, *graphs[:3]], branching=branching)
    states = enumerate_states(env)
    terminals = [env.terminal(states.states, index).canonical_key() for index in states.terminal.tolist()]
    assert sorted(terminals) == sorted(graph.canonical_key() for graph in graphs)
    assert env.num_digits == num_digits
    moves = ~states.stops
    assert len(set(states.child[moves].tolist())) == int(moves.sum()) == len(states) - 1  # a tree


def test_isomorphic_graphs_are_listed_once():
    graphs = listed_graphs()
    env = CatalogueEnv(graphs)
    assert len(env.graphs) == len({graph.canonical_key() for graph in graphs}) < len(graphs)


def test_similar_graphs_share_first_choices():
    """Four families of graphs, listed in turn, differ in the node that occurs often: one family per first choice."""
    graphs = [
        ColouredGraph((family,) * 5 + ("a", "b", "c", "d")[:member], {(0, 1): "edge"})
        for member in range(4)
        for family in "wxyz"
    ]
    env = CatalogueEnv(graphs, branching=4)
    first_choices: dict[str, set[int]] = {}
    for graph in graphs:
        first_choices.setdefault(graph.node_colours[0], set()).add(env.describe(graph).node_values[0][0])
    assert sorted(first_choices.values(), key=min) == [{0}, {1}, {2}, {3}]


def test_order_depends_on_edges_where_nodes_are_equal():
    edges = [{(0, 1): "e"}, {(1, 2): "e", (0, 2): "e"}, {(1, 0): "e"}, {(2, 1): "e", (2, 0): "e"}]
    graphs = [ColouredGraph(("a", "a", "b"), each) for each in edges]
    order = similarity_order([label_counts(graph.to_dict()) for graph in graphs])
    assert {frozenset(order[:2]), frozenset(order[2:])} != {frozenset((0, 1)), frozenset((2, 3))}
    assert sorted(order) == [0, 1, 2, 3]


def features(graphs: LabelledGraphs, index: int) -> tuple[list, list]:
    """Return the labels of the nodes, and of the edges with their ends, of one graph."""
    labels, edges = graphs.labels[index, :, 0].tolist(), graphs.edges[index].tolist()
    ends = [(labels[s], code, labels[t]) for s, row in enumerate(edges) for t, code in enumerate(row) if code]
    return sorted(label for label in labels if label >= 0), sorted(ends)


def test_labelled_graphs_are_those_of_the_list():
    env = CatalogueEnv(listed_graphs(), branching=3)
    states = env.states_of(env.graphs)
    graphs = env.labelled_graphs(states)
    listed = [graph for graph in env.graphs if isinstance(graph, ColouredGraph)]
    assert len(listed) == len(env.graphs)
    colours = sorted({colour for graph in listed for colour in graph.node_colours})
    for index, graph in enumerate(listed):
        label = [colours.index(colour) for colour in graph.node_colours]
        expected = sorted((label[s], 1, label[t]) for s, t in graph.edge_colours)
        assert features(graphs, index) == (sorted(label), expected)
    incomplete = env.labelled_graphs(env.initial_states(2))
    assert not bool(incomplete.exists.any())
    assert not bool(incomplete.edges.any())


def test_unlisted_graph_raises():
    env = CatalogueEnv(listed_graphs())
    with pytest.raises(ValueError, match=r"graph 0: expected one of \d+ listed graphs, got another one"):
        env.states_of([ColouredGraph(("z",), {})])


def test_files_of_every_kind_of_graph_are_read(tmp_path):
    lists: dict[str, list[Graph]] = {
        "coloured": list(listed_graphs()),
        "computation": [classifier_graph((size, "relu")) for size in (4, 8)],
        "assignment": [Assignment(("a",), (value,)) for value in (1, 2.5, "x", True)],
    }
    for name, graphs in lists.items():
        path = write_lines(tmp_path / name, [{"graph": graph.to_dict(), "score": 0.5} for graph in graphs])
        env = env_of(path)
        assert {graph.canonical_key() for graph in env.graphs} == {graph.canonical_key() for graph in graphs}
        assert env.terminal_type is type(graphs[0])
    zipped = tmp_path / "recipes.jsonl.gz"
    zipped.write_bytes(gzip.compress("\n".join(map(json.dumps, recipes())).encode()))
    assert len(env_of(zipped).graphs) == 24


GRAPH = {"graph": ColouredGraph(("a",), {}).to_dict()}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "expected graphs in .*list.jsonl, got an empty file"),
        ([GRAPH, "{"], "line 2: expected a JSON object, got "),
        ([GRAPH, [1]], "line 2: expected a JSON object, got list"),
        ([GRAPH, {"score": 1}], "line 2: expected a field graph or recipe, got score"),
        ([GRAPH, {"graph": {"nodes": [{"id": 0, "colour": 1}], "edges": []}}], "line 2: expected colours of type str"),
        ([{"recipe": {"a": {"op": "linear"}}}], "line 1: recipe: expected an op and inputs of node a"),
        ([{"recipe": {"a": {"op": "linear", "input": ["y"]}}}], "line 1: recipe: expected x, h_prev_i or a node"),
        ([{"recipe": {"a": {"op": "linear", "input": ["x"]}}}], "line 1: recipe: expected an output h_new_0"),
        ([{"recipe": {"a": {"op": "linear", "input": "x"}}}], "line 1: recipe: expected a list of names as input of a"),
        ([{"recipe": {"a": {"op": "linear", "input": 3}}}], "line 1: recipe: expected a list of names .* of a, got 3"),
        ([{"recipe": {"a": {"op": "linear", "input": [["x"]]}}}], r"recipe: expected a list .* of a, got \[\['x'\]\]"),
        ([{"recipe": {"a": {"op": "linear", "input": ["a"]}}}], "line 1: recipe: expected no cycle, got a -> a"),
        (
            [GRAPH, {"graph": Assignment(("a",), (1,)).to_dict()}],
            r"expected graphs of one kind in .*, got Assignment \(line 2\), ColouredGraph \(line 1\)",
        ),
    ],
)
def test_lists_that_do_not_fit_raise_one_line(lines, message, tmp_path):
    path = write_lines(tmp_path / "list.jsonl", lines)
    with pytest.raises(UserError, match=rf"^env\.catalogue\.graphs: .*{message}") as error:
        env_of(path)
    assert "\n" not in str(error.value)


def test_unicode_line_separators_end_no_line(tmp_path):
    lines = [json.dumps({**GRAPH, "note": "a\u2028b"}, ensure_ascii=False) for _ in range(2)]
    listed = read_listed_graphs(str(write_lines(tmp_path / "list.jsonl", lines)), key="list")
    assert [each.line for each in listed] == [1, 2]


def recipe_key(tmp_path, recipe: dict[str, Any]) -> str:
    (listed,) = read_listed_graphs(str(write_lines(tmp_path / "one.jsonl", [{"recipe": recipe}])), key="list")
    return listed.graph.canonical_key()


def test_recipes_are_equal_up_to_names_and_interchangeable_inputs(tmp_path):
    def blend(first: str, second: str, **names: str) -> dict[str, Any]:
        gate = names.get("gate", "z")
        return {
            gate: {"op": "activation_sigm", "input": ["x"]},
            "h_new_0": {"op": "blend", "input": [gate, first, second]},
            "h_new_1": {"op": "elementwise_sum", "input": [first, second]},
        }

    key = recipe_key(tmp_path, blend("x", "h_prev_0"))
    assert recipe_key(tmp_path, blend("x", "h_prev_0", gate="gate")) == key
    assert recipe_key(tmp_path, blend("h_prev_0", "x")) != key
    assert recipe_key(tmp_path, blend("x", "h_prev_1")) != key
    summed = blend("x", "h_prev_0")
    summed["h_new_1"] = {"op": "elementwise_sum", "input": ["h_prev_0", "x"]}
    assert recipe_key(tmp_path, summed) == key


def test_codes_of_prefixes_are_next_to_each_other():
    """Codes are spread evenly: 5 graphs in two digits of base 3 have the codes 0, 1, 3, 5, 7 of 9."""
    env = CatalogueEnv([Assignment(("a",), (index,)) for index in range(5)], branching=3)
    states = env.states_of(env.graphs)
    assert torch.equal(states.node_attr[:, :, 0].long() @ torch.tensor([3, 1]), torch.tensor([0, 1, 3, 5, 7]))
    assert torch.equal(env.positions(states), torch.arange(5))
