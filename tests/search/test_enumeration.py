"""All terminal states of small spaces, against the enumeration of every state and transition."""

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.search import enumeration
from gflownet.search.enumeration import enumerated
from tests.contracts.environments import ENVIRONMENTS

# Smaller ones of each class; the others take seconds in the reference.
_SPACES = (
    *("undirected", "labelled_dag", "computation_graph_two_hidden", "operation_graph", "cells", "cells_capped"),
    *("choices", "choices_capped", "hypergrid", "bit_sequence"),
)
_NAMES = [name for name in ENVIRONMENTS if name.startswith(_SPACES)]


@pytest.mark.parametrize("name", [n if n in _SPACES else pytest.param(n, marks=pytest.mark.slow) for n in _NAMES])
def test_terminal_states_equal_those_of_all_states(name):
    env = ENVIRONMENTS[name]()
    try:
        graph = enumerate_states(env, max_states=5_000)
    except ValueError:
        pytest.skip("a space with more states")
    states = enumerated(env, max_num=len(graph.terminal))
    assert states is not None
    assert sorted(env.identify(states).tolist()) == sorted(graph.code[graph.terminal].tolist())
    assert enumerated(env, max_num=len(graph.terminal) - 1) is None


def test_large_space_is_refused_before_its_states_are_expanded(monkeypatch):
    """Transitions of new states count when these are met: no child of the last ones is identified."""
    env, num_identified = ENVIRONMENTS["undirected"](), list[int]()
    first = int(env.forward_masks(env.initial_states(1)).num_actions())
    identify = type(env).identify
    monkeypatch.setattr(
        type(env), "identify", lambda self, states: num_identified.append(len(states)) or identify(self, states)
    )
    monkeypatch.setattr(enumeration, "_CHUNK", 1)
    monkeypatch.setattr(enumeration, "_TRANSITIONS_PER_TERMINAL", first + 1)
    monkeypatch.setattr(enumeration, "_MIN_STATES", 1)
    assert enumerated(env, max_num=1) is None
    assert sum(num_identified) <= 1 + first
