"""Contract of every environment and its context, on random walks and on enumerated small spaces."""

import json
from collections import Counter
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from gflownet.envs.catalogue import CatalogueEnv
from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.states import GraphStates
from gflownet.metrics.exact import StateGraph, enumerate_states
from tests.contracts.environments import ENVIRONMENTS

MAX_STATES = 6_000


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


@pytest.fixture(scope="module")
def state_graph(env) -> StateGraph:
    return enumerate_states(env, max_states=MAX_STATES)


def random_walk(env: Environment, *, num: int, seed: int) -> list[tuple[GraphStates, ActionBatch]]:
    """Return the states and actions of `num` uniformly random walks that continue until only Stop is legal."""
    generator = torch.Generator().manual_seed(seed)
    states, steps = env.initial_states(num), []
    while True:
        masks = env.forward_masks(states)
        can_move = masks.num_actions() > masks.masks[GraphActionType.Stop].flatten(1).sum(1)
        if not bool(can_move.any()):
            return steps
        states, masks = states[can_move], {k: m[can_move] for k, m in masks.masks.items()}
        masks[GraphActionType.Stop] = torch.zeros_like(masks[GraphActionType.Stop])
        actions = type(env.forward_masks(states))(masks).sample_uniform(generator)
        steps.append((states, actions))
        states = env.step(states, actions)


def key(env: Environment, states: GraphStates, index: int = 0) -> str:
    return env.coloured_graph(states, index).canonical_key()


def test_step_then_reverse_restores_state(env):
    for states, actions in random_walk(env, num=20, seed=1):
        after = env.step(states, actions)
        restored = env.step(after, env.reverse(states, actions))
        assert bool(restored.equals(states).all())


def test_reverse_then_step_restores_state_up_to_isomorphism(env):
    generator = torch.Generator().manual_seed(2)
    for states, actions in random_walk(env, num=10, seed=2):
        after = env.step(states, actions)
        backward = env.backward_masks(after).sample_uniform(generator)
        before = env.step(after, backward)
        restored = env.step(before, env.reverse(after, backward))
        assert [key(env, restored, i) for i in range(len(restored))] == [key(env, after, i) for i in range(len(after))]


@pytest.mark.parametrize("num", [100, pytest.param(MAX_STATES, marks=pytest.mark.slow)])
def test_terminal_object_round_trip_through_json(env, state_graph, num):
    """The restored states have the identity, canonical keys and number of backward actions of the originals."""
    states = state_graph.states[state_graph.terminal[:: max(1, len(state_graph.terminal) // num)]]
    objects = [env.terminal(states, i) for i in range(len(states))]
    restored = env.states_of([env.terminal_type.from_dict(json.loads(json.dumps(x.to_dict()))) for x in objects])
    assert [key(env, restored, i) for i in range(len(restored))] == [key(env, states, i) for i in range(len(states))]
    assert torch.equal(env.identify(restored), env.identify(states))
    for kind, mask in env.backward_masks(states).masks.items():
        assert torch.equal(env.backward_masks(restored).masks[kind].flatten(1).sum(1), mask.flatten(1).sum(1))


def test_step_does_not_change_states_in_place(env):
    states = env.initial_states(3)
    copy = states.clone()
    actions = env.forward_masks(states).sample_uniform(torch.Generator().manual_seed(0))
    env.step(states, actions)
    assert bool(states.equals(copy).all())


def test_step_accepts_action_iff_mask_is_true(env):
    generator = torch.Generator().manual_seed(3)
    vocabulary = env.vocabulary
    num_actions = Counter()
    for states, _ in random_walk(env, num=6, seed=3):
        for kind in (*env.forward_types, *env.backward_types):
            rows, columns = vocabulary.num_rows(kind), vocabulary.num_columns(kind)
            for _ in range(3):
                row = int(torch.randint(rows, (1,), generator=generator))
                column = int(torch.randint(columns, (1,), generator=generator))
                state = states[:1]
                action = ActionBatch(*(torch.tensor([value]) for value in (int(kind), row, column)))
                masks = env.forward_masks(state) if kind in env.forward_types else env.backward_masks(state)
                legal = bool(masks.masks[kind][0, row, column])
                num_actions[legal] += 1
                if legal:
                    env.step(state, action)
                else:
                    with pytest.raises(IllegalAction, match=r"graph 0: .*illegal: "):
                        env.step(state, action)
    assert num_actions[True] > 0
    assert num_actions[False] > 0


def test_context_action_index_round_trip(env):
    context = GraphBuildingEnvContext(env)
    for states, actions in random_walk(env, num=8, seed=4):
        batch = context.to_batch(states)
        restored = context.from_indices(batch, context.to_indices(batch, actions))
        assert torch.equal(restored.kind, actions.kind)
        assert torch.equal(restored.row, actions.row)
        assert torch.equal(restored.column, actions.column)
        action = env.decode(states, 0, actions)
        assert env.encode(action) == (int(actions.kind[0]), int(actions.row[0]), int(actions.column[0]))
        index = context.action_to_index(states, 0, action)
        assert context.index_to_action(states, 0, index) == action


def test_context_batch_equals_collated_graphs(env):
    context = GraphBuildingEnvContext(env)
    for states, _ in random_walk(env, num=4, seed=5):
        direct: Any = context.to_batch(states)
        collated: Any = Batch.from_data_list([context.to_data(states, i) for i in range(len(states))])
        assert sorted(direct.keys()) == sorted(collated.keys())
        assert direct.num_graphs == collated.num_graphs == len(states)
        for name in direct.keys():  # noqa: SIM118 (a Batch is not a dict)
            assert torch.equal(direct[name], collated[name]), name
        assert direct.x.shape[1] == context.num_node_features
        assert direct.edge_attr.shape[1] == context.num_edge_features


def test_context_features_differ_between_states(env, state_graph):
    """The policy cannot distinguish two states with equal features and edges."""
    batch: Any = GraphBuildingEnvContext(env).to_batch(state_graph.states[:: max(1, len(state_graph) // 300)])
    owner, edges = batch.batch[batch.edge_index[0]].tolist(), [[] for _ in range(batch.num_graphs)]
    ends = (batch.edge_index - batch.ptr[batch.batch[batch.edge_index[0]]]).T.tolist()
    for graph, *edge in zip(owner, ends, batch.edge_attr.tolist(), strict=True):
        edges[graph].append(edge)
    nodes = [x.tolist() for x in batch.x.split(batch.ptr.diff().tolist())]
    encodings = {str((x, sorted(edge_list))) for x, edge_list in zip(nodes, edges, strict=True)}
    assert len(encodings) == batch.num_graphs > 1


def test_forward_and_backward_actions_satisfy_orbit_identity(env, state_graph):
    """n_forward(G -> G') |Aut G'| = n_backward(G' -> G) |Aut G| for every edge of the state graph."""
    moves = ~state_graph.stops
    forward = Counter(zip(state_graph.parent[moves].tolist(), state_graph.child[moves].tolist(), strict=True))
    positions = {key(env, state_graph.states, i): i for i in range(len(state_graph))}
    graph, action = env.backward_masks(state_graph.states).positions()
    before = env.apply(state_graph.states[graph], action)
    backward = Counter()
    for i, child in enumerate(graph.tolist()):
        parent_key = key(env, before, i)
        assert parent_key in positions, "a backward action led to a state that no forward action reaches"
        backward[positions[parent_key], child] += 1
    symmetries = state_graph.num_automorphisms
    assert forward.keys() == backward.keys()
    for (parent, child), count in forward.items():
        assert count * symmetries[child] == backward[parent, child] * symmetries[parent]


def test_parents_step_to_the_state(env, state_graph):
    for index in range(1, len(state_graph), max(1, len(state_graph) // 25)):
        expected = key(env, state_graph.states, index)
        parents = env.parents(state_graph.states, index)
        assert parents
        for action, parent in parents:
            child = env.step(parent, env.encode_batch([action]))
            assert key(env, child) == expected


def test_every_state_reaches_a_terminal_state(env, state_graph):
    assert bool((env.forward_masks(state_graph.states).num_actions() > 0).all())
    leads_to_terminal = torch.zeros(len(state_graph), dtype=torch.bool)
    leads_to_terminal[state_graph.terminal] = True
    for level in reversed(range(int(state_graph.level.max()) + 1)):
        actions = state_graph.level[state_graph.parent] == level
        leads_to_terminal[state_graph.parent[actions]] |= leads_to_terminal[state_graph.child[actions]]
    assert bool(leads_to_terminal.all())


def test_terminal_object_key_and_automorphisms_match_state(env, state_graph):
    """One canonical key per state, unchanged by JSON, and the automorphism count of the state."""
    keys = set()
    for index in state_graph.terminal.tolist():
        candidate = env.terminal(state_graph.states, index)
        keys.add(candidate.canonical_key())
        restored = type(candidate).from_dict(candidate.to_dict())
        assert restored.canonical_key() == candidate.canonical_key()
        # A listed graph is reached by a code, which has no symmetries.
        expected = 1 if isinstance(env, CatalogueEnv) else candidate.num_automorphisms()
        assert state_graph.num_automorphisms[index] == expected
    assert len(keys) == len(state_graph.terminal)


def test_encode_unknown_value_raises(env):
    with pytest.raises(ValueError, match=r"expected a node type out of .*got 'nonsense'"):
        env.encode(GraphAction(GraphActionType.AddNode, source=0, value="nonsense"))
