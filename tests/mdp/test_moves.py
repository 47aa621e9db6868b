"""Local moves: legal results, connected spaces, and what each kind keeps."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import LabelledDAGEnv
from gflownet.graphs.canonical import ColouredGraph
from gflownet.learning.sampler import uniform_states
from gflownet.mdp import moves as moves_module
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.construction import NONE, built, taken_apart
from gflownet.mdp.environment import Environment
from gflownet.mdp.moves import Move, Moves
from gflownet.mdp.states import UNSET, GraphStates
from gflownet.search.proposals import mutated
from tests.contracts.environments import ENVIRONMENTS
from tests.contracts.test_environments import CASES
from tests.fast_cases import slow_except
from tests.oracles.construction import built_one_by_one
from tests.search.terminal_states import ENVIRONMENT_NAMES

NUM_STATES = 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_results(env: Environment, kind: Move, *, num: int = NUM_STATES) -> tuple[GraphStates, GraphStates, Tensor]:
    """Return states that have moves of a kind, their results, and the numbers of repairs."""
    states = uniform_states(env, num, generator=generator())
    moves = Moves.of(env, states, generator(1))
    owner = moves.kinds()[:, int(kind)].nonzero().squeeze(1).repeat(4)
    kinds = torch.full_like(owner, int(kind))
    results, repairs = moves.results(owner, kinds, moves.sample(owner, kinds, generator(2)), generator(3))
    return states[owner], results, repairs


def assert_built_by_legal_actions(env: Environment, states: GraphStates) -> None:
    """Take states apart by random actions, each the reverse of a legal one."""
    assert bool(env.forward_masks(states).masks[Kind.Stop].all())
    random = generator(4)
    while len(states):
        alive = (env.backward_masks(states).num_actions() > 0).nonzero().squeeze(1)
        finished = (env.backward_masks(states).num_actions() == 0).nonzero().squeeze(1)
        assert set(env.identify(states[finished]).tolist()) <= set(env.identify(env.initial_states(1)).tolist())
        states = states[alive]
        if len(states):
            actions = env.backward_masks(states).sample_uniform(random)
            before = env.apply(states, actions)
            after = env.step(before, env.reverse(states, actions))
            assert bool((env.identify(after) == env.identify(states)).all())
            states = before


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_results_of_moves_are_legal(name):
    env = ENVIRONMENTS[name]()
    results = [random_results(env, kind)[1] for kind in Move]
    assert_built_by_legal_actions(env, GraphStates.cat(results))


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_construction_without_an_edit_builds_the_state(name):
    env = ENVIRONMENTS[name]()
    states = uniform_states(env, NUM_STATES, generator=generator())
    again, repairs = built(env, taken_apart(env, states, generator(1)), generator(2))
    assert env.identify(again).tolist() == env.identify(states).tolist()
    assert not bool(repairs.any())


@pytest.mark.parametrize(
    "name",
    [
        *("catalogue", "choices", "hypergrid", "labelled_dag_3", "undirected_attributes_2"),
        *("computation_graph_recurrent", "recurrent_stack_of_gru"),
        *slow_except((), ("cells_nb101", "operation_graph_tight_3", "tensor_graph_equal_inputs_1")),
        *slow_except((), ["computation_graph_ordered_output"]),
    ],
)
def test_moves_connect_the_space(name):
    env = CASES[name]()
    space = enumerate_states(env, max_states=5_000)
    every = space.states[space.terminal]
    codes = env.identify(every).tolist()
    graph = nx.DiGraph()
    graph.add_nodes_from(codes)
    index = torch.arange(len(every)).repeat(24)
    children = env.identify(mutated(env, every[index], generator())).tolist()
    graph.add_edges_from(zip([codes[i] for i in index.tolist()], children, strict=True))
    assert set(children) <= set(codes)
    assert nx.is_strongly_connected(graph)


@pytest.mark.parametrize("name", ["directed", "computation_graph_two_hidden", "operation_graph", "cells_nb101"])
def test_relabel_keeps_edges_and_changes_labels(name):
    env = ENVIRONMENTS[name]()
    if name == "computation_graph_two_hidden":
        assert not bool(Moves.of(env, uniform_states(env, 3, generator=generator()), generator()).kinds()[:, 0].any())
        return
    states, results, repairs = random_results(env, Move.RELABEL, num=12)
    exact = (repairs == 0).nonzero().squeeze(1)
    assert len(exact) > len(states) / 2
    assert env.identify(without_labels(results[exact])).tolist() == env.identify(without_labels(states[exact])).tolist()
    assert bool((env.identify(results[exact]) != env.identify(states[exact])).any())


def without_labels(states: GraphStates) -> GraphStates:
    kinds = states.node_type.where(~states.exists, 0)
    return replace(states, node_type=kinds, node_attr=torch.full_like(states.node_attr, UNSET))


def test_rewire_moves_one_end_and_remove_takes_one_edge():
    env = LabelledDAGEnv(4)
    states, results, repairs = random_results(env, Move.REWIRE, num=12)
    gone, new = (states.has_edge & ~results.has_edge), (results.has_edge & ~states.has_edge)
    exact = ((repairs == 0) & (new.flatten(1).sum(1) == 1)).nonzero().squeeze(1)
    assert len(exact) > 10
    (_, *old_ends), (_, *new_ends) = (x[exact].nonzero(as_tuple=True) for x in (gone, new))
    num_same = torch.stack([old == now for old, now in zip(old_ends, new_ends, strict=True)]).sum(0)
    assert bool((num_same == 1).all())
    states, results, _ = random_results(env, Move.REMOVE, num=12)
    assert bool((results.has_edge.flatten(1).sum(1) == states.has_edge.flatten(1).sum(1) - 1).all())


def test_insert_in_an_edge_and_removal_of_a_node_keep_the_path():
    env = ENVIRONMENTS["cells_nb101"]()
    chain = ColouredGraph(("input", "output", env.vocabulary.node_types[2]), {(0, 2): "edge", (2, 1): "edge"})
    shorter = ColouredGraph(("input", "output"), {(0, 1): "edge"})
    for start, kind, end in ((shorter, Move.INSERT, chain), (chain, Move.REMOVE, shorter)):
        state = env.states_of([start])
        moves = Moves.of(env, state, generator())
        kinds, positions = moves.all_of(0)
        chosen = (kinds == int(kind)).nonzero().squeeze(1)
        owner = torch.zeros_like(chosen)
        results, repairs = moves.results(owner, kinds[chosen], positions[chosen], generator())
        keys = {env.terminal(results, i).canonical_key() for i in (repairs == 0).nonzero().squeeze(1).tolist()}
        assert end.canonical_key() in keys


def test_illegal_edit_is_left_out_and_counted_as_a_repair():
    env = LabelledDAGEnv(3)
    state = env.states_of([ColouredGraph(("0", "1", "2"), {(0, 1): "edge", (1, 2): "edge"})])
    plan = taken_apart(env, state, generator())
    step = int((plan.source[0] == 1).nonzero())
    cyclic = replace(plan, source=plan.source.clone(), target=plan.target.clone())
    cyclic.source[0, step], cyclic.target[0, step] = 1, 0
    result, repairs = built(env, cyclic, generator())
    assert repairs.tolist() == [1]
    assert int(result.has_edge.sum()) == 1
    missing = replace(plan, source=plan.source.masked_fill(plan.source == 1, 3))
    assert built(env, missing, generator())[1].tolist() == [1]
    assert NONE not in plan.kind.tolist()[0]


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_results_of_moves_against_states_built_one_by_one(name, monkeypatch):
    env = ENVIRONMENTS[name]()
    states = uniform_states(env, NUM_STATES, generator=generator())
    owner = torch.arange(len(states)).repeat(len(Move))
    kinds = torch.arange(len(Move)).repeat_interleave(len(states))
    outcomes = []
    for one_by_one in (False, True):
        if one_by_one:
            monkeypatch.setattr(moves_module, "built", lambda *args, **_: built_one_by_one(*args))
        random = generator(5)
        moves = Moves.of(env, states, random)
        has_move = moves.kinds()[owner, kinds].nonzero().squeeze(1)
        chosen = owner[has_move], kinds[has_move]
        results, repairs = moves.results(*chosen, moves.sample(*chosen, random), random)
        outcomes.append((results, torch.as_tensor(repairs).tolist(), random.get_state().tolist()))
    (fast, *of_fast), (slow, *of_slow) = outcomes
    assert bool(fast.equals(slow).all())
    assert of_fast == of_slow
