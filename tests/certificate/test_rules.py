"""Checks of transitions: each planted error is reported by its name, and no environment raises a false alarm."""

import re
from collections import Counter

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.certificate.rules import check_rules
from gflownet.certificate.transitions import first_problem, shown_state
from tests.contracts.environments import ENVIRONMENTS
from tests.planted_environments import (
    PLANTED,
    AllowsABridgeRemoval,
    CountsThreeForSix,
    ForgetsBridges,
    Graphs,
    HidesAnEdgeRemoval,
    ListsAnUnreachableState,
    ListsItsInitialStateLast,
    MergesColours,
)
from tests.test_exact_spaces import SPACES

_ERRORS = [(check, env) for check, envs in PLANTED.items() for env in envs]
# Texts of the first violation.
_EXAMPLES = {
    CountsThreeForSix: r"^3 instead of 6 for \[4 nodes: 0 a, 1 a, 2 a, 3 a; edges: 0-1, 0-2, 0-3\]$",
    HidesAnEdgeRemoval: r"^1 removals lead from \[4 nodes: 0 a, 1 a, 2 a, 3 a; edges: .*, expected 2$",
    AllowsABridgeRemoval: r"^RemoveEdge\(source=0, target=1\) on \[4 nodes: 0 a, 1 a, 2 a, 3 a; edges: ",
    ListsItsInitialStateLast: r"^expected \[no nodes; no edges\] first, the initial state$",
    ListsAnUnreachableState: r"^\[4 nodes: .*; no edges\] is not reachable$",
    ForgetsBridges: "violates: the numbers of bridges follow from the edges$",
    MergesColours: "differ with equal codes$",
}
_QUICK = ("computation_graph_ordered", "choices")
_FAST_SPACES = ("connected, 5 nodes",)
_TOO_MANY = "two colours, 7 nodes"  # minutes


@pytest.mark.parametrize(
    ("check", "planted", "is_complete"),
    [(*error, True) for error in _ERRORS]
    + [pytest.param(check, envs[0], False, marks=pytest.mark.slow) for check, envs in PLANTED.items()],
)
def test_check_rules_reports_planted_error_by_name(check, planted, is_complete):
    env = planted()
    report = check_rules(env, enumerate_states(env).states, is_complete=is_complete, seed=0)
    assert not report.holds
    assert report.violations[0].check is check
    assert report.violations[0].num > 0
    if is_complete and planted in _EXAMPLES:
        assert re.search(_EXAMPLES[planted], report.violations[0].example)


def test_check_rules_counts_all_transitions():
    env = Graphs()
    graph = enumerate_states(env)
    report = check_rules(env, graph.states, is_complete=True, seed=0)
    assert report.holds
    assert (report.num_states, report.num_counted) == (len(graph), len(graph))
    assert report.num_forward == int((~graph.stops).sum())
    assert report.num_backward == int(graph.num_backward.sum())
    moves = ~graph.stops
    edges = Counter(zip(graph.parent[moves].tolist(), graph.child[moves].tolist(), strict=True))
    assert report.num_edges == len(edges)


def test_check_rules_of_samples_is_bounded_and_reproducible():
    env = SPACES["two colours, 5 nodes"].env
    states = enumerate_states(env).states
    report = check_rules(env, states, is_complete=False, seed=1)
    assert report == check_rules(env, states, is_complete=False, seed=1)
    assert report.holds
    assert report.num_forward <= 2_000
    assert report.num_states < len(states)
    assert report.num_counted == 300


def _all_or_quick(names, quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _all_or_quick(ENVIRONMENTS, _QUICK))
def test_rules_of_sampled_states_hold(name):
    """The contract suite checks the rules of all states."""
    env = ENVIRONMENTS[name]()
    assert check_rules(env, enumerate_states(env).states, is_complete=False, seed=0).violations == ()


@pytest.mark.parametrize("name", _all_or_quick([name for name in SPACES if name != _TOO_MANY], _FAST_SPACES))
def test_rules_of_exact_space_hold(name):
    env = SPACES[name].env
    assert check_rules(env, enumerate_states(env).states, is_complete=True, seed=0).violations == ()


@pytest.mark.parametrize(
    ("field", "index", "value", "condition"),
    [
        ("node_type", (0, 0), -1, "nodes fill the first positions"),
        ("node_type", (0, 0), 7, "types are in the vocabulary"),
        ("edge_type", (0, 0, 3), 0, "edges join nodes of the graph"),
        ("edge_order", (0, 0, 3), 1, "absent edges have no rank"),
        ("edge_type", (0, 0, 1), -1, "undirected edges are stored both ways"),
        ("num_bridges", (0, 0, 1), 3, "the numbers of bridges follow from the edges"),
    ],
)
def test_first_problem_names_broken_array(field, index, value, condition):
    env = Graphs()
    graph = enumerate_states(env)
    states = graph.states[(graph.states.num_nodes == 3).nonzero()[:2, 0]].clone()
    assert first_problem(env, states)[1] == ""
    getattr(states, field)[index] = value
    violated, text = first_problem(env, states.clone())
    assert text == condition
    assert violated.tolist() == [True, False]


def test_shown_state_names_nodes_edges_and_labels():
    env = ENVIRONMENTS["directed_attributes"]()
    graph = enumerate_states(env)
    texts = [shown_state(env, graph.states, i) for i in (0, 1, len(graph) - 1)]
    assert texts[:2] == ["no nodes; no edges", "1 node: 0 a; no edges"]
    assert texts[2].startswith("3 nodes: 0 a, 1 a, 2 a; edges: 0->1 edge(")
