"""Certificates of whole spaces: no false alarm, planted errors of environments, and brute-force enumerations."""

from collections import Counter
from typing import Any

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.certificate.result import SymmetryClass
from gflownet.certificate.words import errors, findings, rule_findings
from gflownet.envs.choice_places import read_places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.graph_building import GraphBuildingEnv, LabelledDAGEnv
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import Attribute
from tests.certificate.subjects import Case
from tests.oracles.brute_force_spaces import acyclic_graphs, connected_graphs_with_bonds
from tests.oracles.slots import brute_force_settings
from tests.oracles.tabular import classes_of
from tests.planted_environments import CountsThreeForSix, HalvesTheLargestCount
from tests.test_exact_spaces import SPACES

_QUICK = ("connected, 5 nodes",)
_TOO_LARGE = "two colours, 7 nodes"  # 72,296 classes: minutes of Python in the tabular policy


@pytest.mark.parametrize(
    "name",
    [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SPACES if name != _TOO_LARGE],
)
def test_exact_network_raises_no_error(name):
    env = SPACES[name].env
    certificate = Case.of(classes_of(env, enumerate_states(env))).certified()
    assert errors(certificate) == []
    (part,) = certificate.parts
    assert part.certificate.figures()["num_terminal"] == SPACES[name].num_classes
    assert part.certificate.figures()["max_class_deviation"] < 1e-5
    assert part.optimum is not None
    assert part.optimum.total_variation < 1e-6


@pytest.mark.parametrize("planted", [CountsThreeForSix, pytest.param(HalvesTheLargestCount, marks=pytest.mark.slow)])
def test_wrong_automorphism_count_is_reported(planted):
    env = planted()
    certificate = Case.of(classes_of(env, enumerate_states(env))).certified()
    assert errors(certificate) == ["automorphism count", "exact optimum"]
    (line,) = rule_findings(certificate.rules)
    assert line.text.startswith("ERROR, automorphism count: ")
    verdict = findings(certificate, certificate.parts[0])
    assert verdict[0].text.startswith("ERROR, of trajectory balance is not the target: total variation 0.")
    deviations = {c.automorphisms: c.deviation for c in certificate.parts[0].certificate.classes}
    wrong = 3 if planted is CountsThreeForSix else 12
    assert min(deviations, key=lambda count: deviations[count]) == wrong


PLACES = {
    "cell": ["lstm", "gru"],
    "layers": [1, 2],
    "gate": {"values": ["sigmoid", "hard"], "only_if": {"cell": "lstm"}},
    "skip": {"values": [True, False], "only_if": {"cell": "gru", "layers": 2}},
}


def _space_of(env: Environment, *, num_classes: int) -> tuple[list[Any], tuple[SymmetryClass, ...]]:
    """Return the terminal objects and the automorphism counts of a space whose certificate has no error."""
    space = classes_of(env, enumerate_states(env))
    certificate = Case.of(space).certified()
    assert errors(certificate) == []
    (part,) = certificate.parts
    assert part.certificate.figures()["num_terminal"] == num_classes
    assert part.certificate.figures()["total_variation"] < 1e-6
    graph = space.graph
    return [env.terminal(graph.states, index) for index in graph.terminal.tolist()], part.certificate.classes


def test_conditional_choices_agree_with_brute_force():
    places = read_places(PLACES)
    expected = {Assignment.of(setting).canonical_key() for setting in brute_force_settings(places)}
    objects, classes = _space_of(ChoicesEnv(places), num_classes=len(expected))
    assert {candidate.canonical_key() for candidate in objects} == expected
    assert [(c.automorphisms, c.num_states) for c in classes] == [(1.0, len(expected))]


def test_labelled_dags_agree_with_brute_force():
    expected = acyclic_graphs(3)
    assert len(expected) == 25
    objects, _ = _space_of(LabelledDAGEnv(3), num_classes=25)
    assert {frozenset(graph.edge_colours) for graph in objects} == expected


@pytest.mark.slow
def test_graphs_with_bonds_agree_with_brute_force():
    expected = connected_graphs_with_bonds(3, colours=("a", "b"), bonds=(1, 2))
    env = GraphBuildingEnv(["a", "b"], max_nodes=3, min_nodes=3, edge_attributes=[Attribute("bond", (1, 2))])
    objects, classes = _space_of(env, num_classes=len(expected))
    assert {graph.canonical_key() for graph in objects} == {graph.canonical_key() for graph in expected}
    assert {c.automorphisms: c.num_states for c in classes} == Counter(expected.values())
