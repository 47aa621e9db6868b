"""Masks, steps and reachability of every environment against reference rules on networkx graphs."""

import random
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import ActionMasks, GraphAction, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import Attribute, GraphStates
from tests.contracts.environments import ENVIRONMENTS, computation_graphs, operation_graphs, tensor_graphs
from tests.oracles.graph_building import GraphBuildingOracle
from tests.oracles.networkx_states import oracle_of, to_networkx

LARGER = {
    "undirected_7": lambda: GraphBuildingEnv(["a", "b", "c"], max_nodes=7, edge_attributes=[Attribute("bond", (1, 2))]),
    "directed_7": lambda: GraphBuildingEnv(
        ["a", "b"], max_nodes=7, min_nodes=3, directed=True, node_attributes=[Attribute("charge", (-1, 0, 1))]
    ),
    "computation_graph_3_hidden": lambda: computation_graphs(
        activations=("relu", "tanh", "gelu", "linear"),
        aggregations=("sum", "concat", "moe"),
        max_hidden_nodes=3,
        max_edges=7,
    ),
    "computation_graph_tight": lambda: computation_graphs(
        input_sizes=(3, 2),
        output_sizes=(2, 4),
        activations=("relu",),
        hidden_sizes=(4,),
        max_hidden_nodes=3,
        max_edges=5,
    ),
    "computation_graph_recurrent_ordered": lambda: computation_graphs(
        output_sizes=(2, 4),
        aggregations=("sum", "concat"),
        hidden_sizes=(4,),
        max_hidden_nodes=3,
        max_edges=7,
        allow_recurrent=True,
        output_aggregation="concat",
    ),
    "tensor_graph_three_operations": lambda: tensor_graphs(
        inputs={"a": (2, 3), "b": (3,), "s": ()}, functions=("tanh", "exp"), new_extents=(3,), max_operations=3
    ),
    "tensor_graph_transforms": lambda: tensor_graphs(
        inputs={"a": (2, 3)}, operations=("transform",), new_extents=(2,), max_operations=3
    ),
}
CASES = {**ENVIRONMENTS, **LARGER}
# Short walks of other environments of the same class cover the same rules.
LONG_ONLY = {
    *("catalogue_of_cells", "undirected", "directed", "cells", "choices", "recurrent_stack", "operation_graph"),
    *("computation_graph", "computation_graph_two_hidden", "computation_graph_3_hidden"),
    *("tensor_graph_joined", "tensor_graph_equal_inputs", "tensor_graph_three_operations", "tensor_graph"),
    *("operation_graph_layouts", "operation_graph_positions", "operation_graph_three_ports", "operation_graph_tokens"),
    *("cells_nb101", "undirected_fixed_size", "directed_attributes", "computation_graph_ordered"),
    *("computation_graph_many_ends", "recurrent_stack_of_gru"),
}

# One short walk does not meet every kind of action.
MANY_KINDS = {"undirected_attributes", "operation_graph_tight", "directed_7"}


# Operations with several ports and shared modules, tight in edges and costs, with at most 200 states.
SHARED = {"inputs": ((2,),), "operations": ("linear",), "share": True}
VARIED = {"features": 2, "activation": ["relu", "linear"], "merge": ["sum", "max"]}
MATMUL = {"operations": ("torch:matmul",), "choices": {}, "align": "auto"}
BILINEAR = {
    "operations": ("torch.nn:Bilinear",),
    "choices": {"torch.nn:Bilinear": {"out_features": 2}},
    "align": "auto",
}
IDENTITY = {"activation": ["relu", "linear"]}
SMALL: dict[str, dict[str, Any]] = {
    "three_share": {**SHARED, "choices": {"linear": {"features": 2}}, "max_hidden_nodes": 3, "max_parameters": 15},
    # The second node has to share the module of the first one, with any activation and merge.
    "must_share": {**SHARED, "choices": {"linear": VARIED}, "max_edges": 3, "max_parameters": 9},
    # Only one source fits the free port, and the projection of another one to the fed port is too expensive.
    "projections": {**MATMUL, "inputs": ((4, 4), (4, 5), (5, 3)), "max_hidden_nodes": 1, "max_multiply_adds": 125},
    "equal_shapes": {
        **{**MATMUL, "operations": ("torch:matmul", "torch:sub"), "inputs": ((4, 4), (3, 4))},
        **{"max_edges": 3, "max_parameters": 6},
    },
    "more_costs": {**BILINEAR, "inputs": ((2,), (3,), (2,)), "max_hidden_nodes": 1, "max_parameters": 21},
    "more_nodes": {**BILINEAR, "inputs": ((3,), (2,)), "max_multiply_adds": 16},
    "one_and_two_ports": {
        **{"inputs": ((2,),), "operations": ("torch:sub", "identity"), "choices": {"identity": IDENTITY}},
        "max_edges": 3,
    },
    "two_and_three_ports": {
        **{"inputs": ((3, 4), (2, 2)), "operations": ("cross_attention", "torch:sub")},
        **{"choices": {"cross_attention": {"heads": 2}}, "max_hidden_nodes": 1},
    },
}
MANY_STATES = {"more_costs", "more_nodes", "more_projections", "must_share", "projections", "two_and_three_ports"}
SMALL["more_projections"] = {**SMALL["projections"], "max_edges": 5}


def decoded_actions(env: Environment, states: GraphStates, masks: ActionMasks) -> list[set[GraphAction]]:
    """Return the legal actions of each graph; positions of a mask must decode to distinct actions."""
    graphs, actions = masks.positions()
    legal: list[set[GraphAction]] = [set() for _ in range(len(states))]
    for i, graph in enumerate(graphs.tolist()):
        position = actions[torch.tensor([i])]
        legal[graph].add(env.decode(states[graph : graph + 1], 0, position))
    assert sum(map(len, legal)) == len(graphs)
    assert [len(actions) for actions in legal] == masks.num_actions().tolist()
    return legal


def random_walks(
    env: Environment, oracle: GraphBuildingOracle, *, num: int, num_steps: int, seed: int
) -> Iterator[tuple[GraphStates, list[nx.Graph], list[set[GraphAction]], list[set[GraphAction]]]]:
    """Yield the states of a batch, the same graphs in networkx, and the legal forward and backward actions.

    Each graph takes random forward actions and, less often, backward actions.
    """
    rng = random.Random(seed)
    states, graphs = env.initial_states(num), [oracle.initial() for _ in range(num)]
    for _ in range(num_steps):
        forward, backward = [oracle.forward(g) for g in graphs], [oracle.backward(g) for g in graphs]
        yield states, graphs, forward, backward
        actions = []
        for forward_legal, backward_legal in zip(forward, backward, strict=True):
            moves = sorted((a for a in forward_legal if a.action_type != GraphActionType.Stop), key=str)
            # Kinds are drawn uniformly, because there are far more edge actions than others.
            kind = rng.choice(sorted({a.action_type for a in moves})) if moves else None
            moves = [a for a in moves if a.action_type == kind]
            goes_back = not moves or (backward_legal and rng.random() < 0.25)
            actions.append(rng.choice(sorted(backward_legal, key=str) if goes_back else moves))
        states = env.step(states, env.encode_batch(actions))
        graphs = [oracle.apply(g, a) for g, a in zip(graphs, actions, strict=True)]


def walks() -> Iterator[Any]:
    """Yield environment, number of walks and of their steps: short walks for every commit, long ones marked slow."""
    for name in CASES:
        if name not in LONG_ONLY:
            yield pytest.param(name, 1 + (name in MANY_KINDS), 16, id=name)
        yield pytest.param(name, 4, 24, id=f"{name}-long", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "num", "num_steps"), list(walks()))
def test_environment_masks_steps_and_reachability_match_networkx(name, num, num_steps):
    env = CASES[name]()
    oracle = oracle_of(env)
    action_types = set()
    for states, graphs, forward, backward in random_walks(env, oracle, num=num, num_steps=num_steps, seed=1):
        assert decoded_actions(env, states, env.forward_masks(states)) == forward
        assert decoded_actions(env, states, env.backward_masks(states)) == backward
        for i, graph in enumerate(graphs):
            assert nx.utils.graphs_equal(to_networkx(env, states, i), graph)
            assert reachable_pairs(states, i) == expected_reach(env, graph)
            action_types |= {a.action_type for a in forward[i] | backward[i]}
    assert action_types == {*env.forward_types, *env.backward_types}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in MANY_STATES)) for name in SMALL]
)
def test_all_actions_of_small_spaces_of_operations_match_networkx(name):
    """Legal actions of every state in both directions, and the states after them."""
    env = operation_graphs(output=1, **SMALL[name])
    oracle, states = oracle_of(env), enumerate_states(env).states
    graphs = [to_networkx(env, states, i) for i in range(len(states))]
    for masks, legal in (
        (env.forward_masks(states).without_stop(), oracle.forward),
        (env.backward_masks(states), oracle.backward),
    ):
        expected = [legal(graph) - {GraphAction(GraphActionType.Stop)} for graph in graphs]
        assert decoded_actions(env, states, masks) == expected
        owner, actions = masks.positions()
        before = states[owner]
        after = env.apply(before, actions)
        for i, graph in enumerate(owner.tolist()):
            following = oracle.apply(graphs[graph], env.decode(before, i, actions))
            assert nx.utils.graphs_equal(to_networkx(env, after, i), following)


def reachable_pairs(states: GraphStates, index: int) -> set[tuple[int, int]]:
    return {(s, t) for s, t in states.reach[index].nonzero().tolist()}


def expected_reach(env: Environment, graph: nx.Graph) -> set[tuple[int, int]]:
    """Return the pairs connected by a path of edges of the first type; only identical pairs in undirected graphs."""
    pairs = {(v, v) for v in range(env.vocabulary.max_nodes)}
    if env.vocabulary.directed:
        main = nx.DiGraph()
        main.add_nodes_from(graph)
        main.add_edges_from((s, t) for s, t, kind in graph.edges(data="type") if kind == env.vocabulary.edge_types[0])
        pairs |= {(s, t) for s in main for t in nx.descendants(main, s)}
    return pairs
