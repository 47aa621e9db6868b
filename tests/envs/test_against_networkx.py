"""Every environment, a batch at a time, against networkx graphs that are stepped one by one by definition."""

import random
from collections.abc import Iterator

import networkx as nx
import pytest
import torch

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import ActionMasks, GraphAction, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import ABSENT, UNSET, Attribute, GraphStates
from tests.contracts.environments import ENVIRONMENTS, computation_graphs
from tests.oracles.computation_graph_env import ComputationGraphOracle
from tests.oracles.graph_building import GraphBuildingOracle

BIGGER = {
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
        input_sizes=(3, 2), output_sizes=(2, 4), activations=("relu",), hidden_sizes=(4,), max_hidden_nodes=3, max_edges=5
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
}
CASES = {**ENVIRONMENTS, **BIGGER}


def oracle_of(env: Environment) -> GraphBuildingOracle:
    node_attributes = {a.name: a.values for a in env.vocabulary.node_attributes}
    if isinstance(env, GraphBuildingEnv):
        return GraphBuildingOracle(
            env.vocabulary.node_types,
            max_nodes=env.vocabulary.max_nodes,
            min_nodes=env.min_nodes,
            directed=env.vocabulary.directed,
            node_attributes=node_attributes,
            edge_attributes={a.name: a.values for a in env.vocabulary.edge_attributes},
        )
    assert isinstance(env, ComputationGraphEnv)
    terminal_aggregation = env._fixed.get("aggregation")
    return ComputationGraphOracle(
        len(env.input_sizes),
        len(env.output_sizes),
        activations=env.vocabulary.node_types[env.num_ends :],
        node_attributes=node_attributes,
        aggregation=None if terminal_aggregation is None else str(terminal_aggregation),
        output_aggregation=env.output_aggregation,
        max_hidden_nodes=env.max_hidden_nodes,
        max_edges=env.max_edges,
        recurrent=len(env.vocabulary.edge_types) > 1,
    )


def to_networkx(env: Environment, states: GraphStates, index: int) -> nx.Graph:
    """Return what the arrays say about one graph; every entry where nothing is must be blank."""
    v, state = env.vocabulary, states[index]
    n = int(state.num_nodes)
    assert bool((state.node_type[:n] != ABSENT).all())
    assert bool((state.node_type[n:] == ABSENT).all())
    assert bool((state.node_attr[n:] == UNSET).all())
    absent = state.edge_type == ABSENT
    assert bool(absent[n:].all())
    assert bool(absent[:, n:].all())
    assert bool((state.edge_attr[absent] == UNSET).all())
    assert bool((state.edge_order[absent] == 0).all())
    if not v.directed:
        assert torch.equal(state.edge_type, state.edge_type.T)
        assert torch.equal(state.edge_attr, state.edge_attr.transpose(0, 1))
    graph = nx.DiGraph() if v.directed else nx.Graph()
    for node in range(n):
        graph.add_node(
            node,
            type=v.node_types[int(state.node_type[node])],
            attributes=chosen(v.node_attributes, state.node_attr[node].tolist()),
        )
    for source, target in (~absent).nonzero().tolist():
        graph.add_edge(
            source,
            target,
            type=v.edge_types[int(state.edge_type[source, target])],
            attributes=chosen(v.edge_attributes, state.edge_attr[source, target].tolist()),
            order=int(state.edge_order[source, target]),
        )
    return graph


def chosen(attributes: tuple[Attribute, ...], values: list[int]) -> dict:
    return {a.name: a.values[value] for a, value in zip(attributes, values, strict=True) if value != UNSET}


def in_words(env: Environment, states: GraphStates, masks: ActionMasks) -> list[set[GraphAction]]:
    """Return the legal actions of each graph; no two positions of a mask may mean the same action."""
    graphs, actions = masks.positions()
    found: list[set[GraphAction]] = [set() for _ in range(len(states))]
    for i, graph in enumerate(graphs.tolist()):
        position = actions[torch.tensor([i])]
        found[graph].add(env.decode(states[graph : graph + 1], 0, position))
    assert sum(map(len, found)) == len(graphs)
    assert [len(actions) for actions in found] == masks.num_actions().tolist()
    return found


def walks(
    env: Environment, oracle: GraphBuildingOracle, *, num: int, num_steps: int, seed: int
) -> Iterator[tuple[GraphStates, list[nx.Graph], list[set[GraphAction]], list[set[GraphAction]]]]:
    """Yield the states of a batch, their twins and the twins' actions; each graph goes forth and, less often, back."""
    rng = random.Random(seed)
    states, graphs = env.initial_states(num), [oracle.initial() for _ in range(num)]
    for _ in range(num_steps):
        forward, backward = [oracle.forward(g) for g in graphs], [oracle.backward(g) for g in graphs]
        yield states, graphs, forward, backward
        taken = []
        for ahead, back in zip(forward, backward, strict=True):
            moves = sorted((a for a in ahead if a.action_type != GraphActionType.Stop), key=str)
            # All kinds alike, or the many edges would crowd the rest out.
            kind = rng.choice(sorted({a.action_type for a in moves})) if moves else None
            moves = [a for a in moves if a.action_type == kind]
            goes_back = not moves or (back and rng.random() < 0.25)
            taken.append(rng.choice(sorted(back, key=str) if goes_back else moves))
        states = env.step(states, env.encode_batch(taken))
        graphs = [oracle.apply(g, a) for g, a in zip(graphs, taken, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_masks_steps_and_reachability_agree_with_networkx(name):
    env = CASES[name]()
    oracle = oracle_of(env)
    seen = set()
    for states, graphs, forward, backward in walks(env, oracle, num=4, num_steps=24, seed=1):
        assert in_words(env, states, env.forward_masks(states)) == forward
        assert in_words(env, states, env.backward_masks(states)) == backward
        for i, graph in enumerate(graphs):
            assert nx.utils.graphs_equal(to_networkx(env, states, i), graph)
            assert reached(states, i) == expected_reach(env, graph)
            seen |= {a.action_type for a in forward[i] | backward[i]}
    assert seen == {*env.forward_types, *env.backward_types}


def reached(states: GraphStates, index: int) -> set[tuple[int, int]]:
    return {(s, t) for s, t in states.reach[index].nonzero().tolist()}


def expected_reach(env: Environment, graph: nx.Graph) -> set[tuple[int, int]]:
    """Return who reaches whom over edges of the first type; undirected graphs do without."""
    pairs = {(v, v) for v in range(env.vocabulary.max_nodes)}
    if env.vocabulary.directed:
        main = nx.DiGraph()
        main.add_nodes_from(graph)
        main.add_edges_from((s, t) for s, t, kind in graph.edges(data="type") if kind == env.vocabulary.edge_types[0])
        pairs |= {(s, t) for s in main for t in nx.descendants(main, s)}
    return pairs
