"""The ladder of the exactness script: it holds on small spaces, and a wrong state graph does not pass."""

import importlib
from dataclasses import replace
from types import ModuleType

import pytest

from gflownet.metrics.exact import enumerate_backward, enumerate_states


@pytest.fixture
def ladder(monkeypatch, checkout) -> ModuleType:
    monkeypatch.syspath_prepend(str(checkout / "scripts"))
    return importlib.import_module("scripts.ladder")


NUM_CLASSES = (6, 21, 112, 853, 65, 419, 4302, 72296, 260, 185, 146)


@pytest.mark.parametrize(
    "num_classes", [n if n in (21, 65, 146) else pytest.param(n, marks=pytest.mark.slow) for n in NUM_CLASSES]
)
def test_goals_of_a_space_hold(ladder, num_classes):
    assert tuple(space.num_classes for space in ladder.SPACES) == NUM_CLASSES
    rows = ladder.space_rows(next(space for space in ladder.SPACES if space.num_classes == num_classes))
    assert len([row for row in rows if row.goal]) == 8
    assert [row.name for row in rows if not row.holds] == []


def test_wrong_symmetries_and_missing_parents_are_counted(ladder):
    space = next(space for space in ladder.SPACES if space.num_classes == 65)
    graph = enumerate_states(space.env)
    backward = enumerate_backward(space.env, graph)
    assert ladder.num_orbit_violations(graph, backward) == 0
    wrong = replace(graph, num_automorphisms=graph.num_automorphisms.index_fill(0, graph.terminal[-1:], 5.0))
    assert ladder.num_orbit_violations(wrong, backward) > 0
    fewer = replace(backward, child=backward.child[1:], parent=backward.parent[1:])
    assert ladder.num_orbit_violations(graph, fewer) > 0
