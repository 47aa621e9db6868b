"""What every environment and its context promise, on random and on exhaustively enumerated small spaces."""

import json
from collections import Counter
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.states import GraphStates
from gflownet.metrics.exact import StateGraph, enumerate_states
from tests.contracts.environments import ENVIRONMENTS

MOST_STATES = 6_000


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


@pytest.fixture(scope="module")
def state_graph(env) -> StateGraph:
    return enumerate_states(env, max_states=MOST_STATES)


def random_walk(env: Environment, *, num: int, seed: int) -> list[tuple[GraphStates, ActionBatch]]:
    """Return the states and the uniformly drawn actions of `num` walks that go on as long as anything is legal."""
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


def test_reverse_of_a_step_is_the_identity(env):
    for states, actions in random_walk(env, num=20, seed=1):
        after = env.step(states, actions)
        back = env.step(after, env.reverse(states, actions))
        assert bool(back.equals(states).all())


def test_step_of_a_reverse_is_the_identity_up_to_isomorphism(env):
    generator = torch.Generator().manual_seed(2)
    for states, actions in random_walk(env, num=10, seed=2):
        after = env.step(states, actions)
        backward = env.backward_masks(after).sample_uniform(generator)
        before = env.step(after, backward)
        again = env.step(before, env.reverse(after, backward))
        assert [key(env, again, i) for i in range(len(again))] == [key(env, after, i) for i in range(len(after))]


@pytest.mark.parametrize("num", [100, pytest.param(MOST_STATES, marks=pytest.mark.slow)])
def test_a_terminal_object_leads_back_to_its_state(env, state_graph, num):
    """Through JSON, too; where nodes stay in order, to the very state."""
    states = state_graph.states[state_graph.terminal[:: max(1, len(state_graph.terminal) // num)]]
    objects = [env.terminal(states, i) for i in range(len(states))]
    again = env.states_of([env.terminal_type.from_dict(json.loads(json.dumps(x.to_dict()))) for x in objects])
    assert [key(env, again, i) for i in range(len(again))] == [key(env, states, i) for i in range(len(states))]
    for kind, mask in env.backward_masks(states).masks.items():
        assert torch.equal(env.backward_masks(again).masks[kind].flatten(1).sum(1), mask.flatten(1).sum(1))


def test_states_are_not_changed_in_place(env):
    states = env.initial_states(3)
    kept = states.clone()
    actions = env.forward_masks(states).sample_uniform(torch.Generator().manual_seed(0))
    env.step(states, actions)
    assert bool(states.equals(kept).all())


def test_an_action_is_legal_iff_its_mask_says_so(env):
    generator = torch.Generator().manual_seed(3)
    vocabulary = env.vocabulary
    seen = Counter()
    for states, _ in random_walk(env, num=6, seed=3):
        for kind in (*env.forward_types, *env.backward_types):
            rows, columns = vocabulary.num_rows(kind), vocabulary.num_columns(kind)
            for _ in range(3):
                row = int(torch.randint(rows, (1,), generator=generator))
                column = int(torch.randint(columns, (1,), generator=generator))
                one = states[:1]
                action = ActionBatch(*(torch.tensor([value]) for value in (int(kind), row, column)))
                masks = env.forward_masks(one) if kind in env.forward_types else env.backward_masks(one)
                legal = bool(masks.masks[kind][0, row, column])
                seen[legal] += 1
                if legal:
                    env.step(one, action)
                else:
                    with pytest.raises(IllegalAction, match=r"graph 0: .*illegal: "):
                        env.step(one, action)
    assert seen[True] > 0
    assert seen[False] > 0


def test_indices_and_actions_round_trip(env):
    context = GraphBuildingEnvContext(env)
    for states, actions in random_walk(env, num=8, seed=4):
        batch = context.to_batch(states)
        again = context.from_indices(batch, context.to_indices(batch, actions))
        assert torch.equal(again.kind, actions.kind)
        assert torch.equal(again.row, actions.row)
        assert torch.equal(again.column, actions.column)
        action = env.decode(states, 0, actions)
        assert env.encode(action) == (int(actions.kind[0]), int(actions.row[0]), int(actions.column[0]))
        index = context.action_to_index(states, 0, action)
        assert context.index_to_action(states, 0, index) == action


def test_a_batch_is_the_collation_of_its_graphs(env):
    context = GraphBuildingEnvContext(env)
    for states, _ in random_walk(env, num=4, seed=5):
        direct: Any = context.to_batch(states)
        collated: Any = Batch.from_data_list([context.to_data(states, i) for i in range(len(states))])
        assert sorted(direct.keys()) == sorted(collated.keys())
        assert direct.num_graphs == collated.num_graphs == len(states)
        for name in direct.keys():  # noqa: SIM118 (a Batch is no dict)
            assert torch.equal(direct[name], collated[name]), name
        assert direct.x.shape[1] == context.num_node_features
        assert direct.edge_attr.shape[1] == context.num_edge_features


def test_features_tell_all_states_apart(env, state_graph):
    """Two states with the same features and edges would be one state to the policy."""
    batch: Any = GraphBuildingEnvContext(env).to_batch(state_graph.states[:: max(1, len(state_graph) // 300)])
    owner, edges = batch.batch[batch.edge_index[0]].tolist(), [[] for _ in range(batch.num_graphs)]
    ends = (batch.edge_index - batch.ptr[batch.batch[batch.edge_index[0]]]).T.tolist()
    for graph, *edge in zip(owner, ends, batch.edge_attr.tolist(), strict=True):
        edges[graph].append(edge)
    nodes = [x.tolist() for x in batch.x.split(batch.ptr.diff().tolist())]
    shown = {str((x, sorted(joined))) for x, joined in zip(nodes, edges, strict=True)}
    assert len(shown) == batch.num_graphs > 1


def test_every_child_of_a_state_has_it_as_a_parent_and_the_orbit_identity_holds(env, state_graph):
    """n_forward(G -> G') |Aut G'| = n_backward(G' -> G) |Aut G| (spec/gflownet.md, test ladder 1)."""
    moves = ~state_graph.stops
    forward = Counter(zip(state_graph.parent[moves].tolist(), state_graph.child[moves].tolist(), strict=True))
    known = {key(env, state_graph.states, i): i for i in range(len(state_graph))}
    graph, action = env.backward_masks(state_graph.states).positions()
    before = env.apply(state_graph.states[graph], action)
    backward = Counter()
    for i, child in enumerate(graph.tolist()):
        parent_key = key(env, before, i)
        assert parent_key in known, "a backward action led to a state that no forward action reaches"
        backward[known[parent_key], child] += 1
    symmetries = state_graph.num_automorphisms
    assert forward.keys() == backward.keys()
    for (parent, child), count in forward.items():
        assert count * symmetries[child] == backward[parent, child] * symmetries[parent]


def test_parents_lead_to_the_state(env, state_graph):
    for index in range(1, len(state_graph), max(1, len(state_graph) // 25)):
        wanted = key(env, state_graph.states, index)
        parents = env.parents(state_graph.states, index)
        assert parents
        for action, parent in parents:
            child = env.step(parent, env.encode_batch([action]))
            assert key(env, child) == wanted


def test_no_state_is_a_dead_end(env, state_graph):
    assert bool((env.forward_masks(state_graph.states).num_actions() > 0).all())
    leads_to_terminal = torch.zeros(len(state_graph), dtype=torch.bool)
    leads_to_terminal[state_graph.terminal] = True
    for level in reversed(range(int(state_graph.level.max()) + 1)):
        here = state_graph.level[state_graph.parent] == level
        leads_to_terminal[state_graph.parent[here]] |= leads_to_terminal[state_graph.child[here]]
    assert bool(leads_to_terminal.all())


def test_terminal_objects_have_the_identity_of_their_states(env, state_graph):
    """One key per state, the same from JSON, and as many symmetries as the state has."""
    keys = set()
    for index in state_graph.terminal.tolist():
        candidate = env.terminal(state_graph.states, index)
        keys.add(candidate.canonical_key())
        again = type(candidate).from_dict(candidate.to_dict())
        assert again.canonical_key() == candidate.canonical_key()
        assert candidate.num_automorphisms() == state_graph.num_automorphisms[index]
    assert len(keys) == len(state_graph.terminal)


def test_terminal_objects_lead_back_to_their_states(env, state_graph):
    """From JSON, up to isomorphism: offline data hold objects, and trajectories need states."""
    picked = state_graph.terminal[:: max(1, len(state_graph.terminal) // 60)]
    objects = [env.terminal(state_graph.states, index) for index in picked.tolist()]
    again = env.states_of([type(candidate).from_dict(candidate.to_dict()) for candidate in objects])
    assert torch.equal(env.identify(again), env.identify(state_graph.states[picked]))


def test_a_value_outside_the_vocabulary_is_named(env):
    with pytest.raises(ValueError, match=r"expected a node type out of .*got 'nonsense'"):
        env.encode(GraphAction(GraphActionType.AddNode, source=0, value="nonsense"))
