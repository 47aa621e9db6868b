"""Computation graphs: terminal graphs, order of inputs, edge budget, recurrent edges, and errors."""

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.computation_graph import ComputationGraphEnv, ComputationGraphEnvContext
from gflownet.envs.config import EnvConfig
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.states import GraphStates
from tests.contracts.environments import ENVIRONMENTS, computation_graphs

Kind = GraphActionType
ARCHITECTURES = [name for name in ENVIRONMENTS if name.startswith("computation_graph")]


def build(env: Environment, *actions: GraphAction) -> GraphStates:
    states = env.initial_states(1)
    for action in actions:
        states = env.step(states, env.encode_batch([action]))
    return states


def hidden(source: int) -> GraphAction:
    return GraphAction(Kind.AddNode, source, value="relu")


def edge(source: int, target: int, value: str = "forward") -> GraphAction:
    return GraphAction(Kind.AddEdge, source, target, value=value)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_terminal_computation_graph_is_valid_and_acyclic(name):
    env = ENVIRONMENTS[name]()
    assert isinstance(env, ComputationGraphEnv)
    graph = enumerate_states(env)
    step = max(1, len(graph.terminal) // 300)
    for index in graph.terminal[::step].tolist():
        architecture = env.terminal(graph.states, index)
        assert isinstance(architecture, ComputationGraph)
        assert architecture.validate() == []
        assert architecture.detect_cycles() == ()
        assert len(architecture.edges) <= env.max_edges
        num_hidden = sum(node.node_type == NodeType.HIDDEN for node in architecture.nodes.values())
        assert num_hidden <= env.max_hidden_nodes


def test_terminal_computation_graph_holds_chosen_values():
    env = computation_graphs(
        input_sizes=(3, 5),
        output_sizes=(2,),
        hidden_sizes=(4, 8),
        max_hidden_nodes=2,
        max_edges=8,
        allow_recurrent=True,
        output_aggregation="concat",
    )
    states = build(
        env,
        GraphAction(Kind.AddNode, 1, value="tanh"),
        GraphAction(Kind.SetNodeAttr, 3, attribute="aggregation", value="max"),
        GraphAction(Kind.SetNodeAttr, 3, attribute="output_size", value=8),
        edge(3, 2),
        edge(0, 2),
        edge(2, 3, "recurrent"),
    )
    graph = env.terminal(states, 0)
    assert [(n.node_type, n.output_size) for n in graph.nodes.values()] == [
        (NodeType.INPUT, 3),
        (NodeType.INPUT, 5),
        (NodeType.OUTPUT, 2),
        (NodeType.HIDDEN, 8),
    ]
    assert (graph.nodes[3].activation_function, graph.nodes[3].aggregation) == ("tanh", "max")
    assert (graph.nodes[2].activation_function, graph.nodes[2].aggregation) == ("linear", "concat")
    assert [e.source for e in graph.in_edges(2)] == [3, 0]  # in the order they were added
    assert {(e.source, e.target): e.is_recurrent for e in graph.edges.values()} == {
        (1, 3): False,
        (3, 2): False,
        (0, 2): False,
        (2, 3): True,
    }


def test_input_order_matters_for_concat_but_not_for_sum():
    for output_aggregation, num in (("concat", 2), ("sum", 1)):
        env = computation_graphs(
            input_sizes=(3, 3), activations=("relu",), max_edges=2, output_aggregation=output_aggregation
        )
        first, second = (build(env, *(edge(s, 2) for s in order)) for order in ((0, 1), (1, 0)))
        keys = {env.terminal(states, 0).canonical_key() for states in (first, second)}
        assert len(keys) == num
        assert bool(first.equals(second)) == (num == 1)


def test_recurrent_edges_allow_cycles_and_self_loops():
    env = computation_graphs(
        activations=("relu",),
        aggregations=("sum",),
        hidden_sizes=(4,),
        max_hidden_nodes=2,
        max_edges=8,
        allow_recurrent=True,
    )
    states = build(env, hidden(0), hidden(2), edge(3, 2, "recurrent"), edge(3, 3, "recurrent"), edge(1, 1, "recurrent"))
    with pytest.raises(IllegalAction, match="the edge is already there"):
        env.step(states, env.encode_batch([edge(3, 2)]))
    for illegal in (edge(0, 3, "recurrent"), edge(2, 1, "recurrent"), edge(1, 0, "recurrent")):
        with pytest.raises(IllegalAction, match="an edge leads from a node that is there into"):
            env.step(states, env.encode_batch([illegal]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_sizes": ()}, "expected at least one input and one output"),
        ({"output_sizes": ()}, "expected at least one input and one output"),
        ({"output_sizes": (2, 2), "max_edges": 1}, "max_edges: expected at least 2, to connect inputs and .*, got 1"),
        ({"max_hidden_nodes": -1}, "env.max_hidden_nodes: expected 0 to 125 with 2 inputs and outputs .* got -1"),
    ],
)
def test_computation_graph_env_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        computation_graphs(**changes)


def test_computation_graph_context_from_config():
    config = EnvConfig(activations=["gelu"], aggregations=["sum"], output_sizes=[16], max_hidden_nodes=3, max_edges=9)
    context = ComputationGraphEnvContext.from_config(config, input_sizes=(64,), output_sizes=(10,), num_cond_dim=5)
    env = context.env
    assert context.num_cond_dim == 5
    assert env.vocabulary.max_nodes == 5
    assert env.vocabulary.node_attributes == ()
    states = build(env, GraphAction(Kind.AddNode, 0, value="gelu"), edge(2, 1))
    terminal = env.terminal(states, 0)
    assert isinstance(terminal, ComputationGraph)
    node = terminal.nodes[2]
    assert (node.output_size, node.activation_function, node.aggregation) == (16, "gelu", "sum")
    assert int(env.initial_states(3).num_nodes.sum()) == 6
    assert bool(env.forward_masks(states).contains(env.encode_batch([GraphAction(Kind.Stop)])))
    assert torch.equal(states.num_nodes, torch.tensor([3]))


def test_foreign_graphs_keep_limit_and_ignore_orders():
    options = {"activations": ("relu",), "aggregations": ("sum",), "hidden_sizes": (4,), "max_hidden_nodes": 2}
    env, smaller = (computation_graphs(max_edges=num, **options) for num in (4, 3))
    states = build(env, hidden(0), hidden(2), edge(3, 1), edge(2, 1))
    data = env.terminal(states, 0).to_dict()
    for place, each in enumerate(data["edges"]):
        each["attributes"] = {"order": 3 - place}
    foreign = ComputationGraph.from_dict(data)
    assert bool(env.states_of([foreign]).equals(states))
    with pytest.raises(ValueError, match="graph 0: expected at most 3 edges, got 4"):
        smaller.states_of([foreign])


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 1), (2, 1)], "node 2: expected an in-edge that is not recurrent, got none"),
        ([(0, 1), (1, 2, True), (2, 1)], "node 2: expected an in-edge that is not recurrent, got none"),
        ([(0, 2), (2, 3), (3, 2), (3, 1)], "expected no cycle but through edges that are marked recurrent"),
    ],
)
def test_foreign_graph_off_the_paths_raises(edges, message):
    env = computation_graphs(max_hidden_nodes=2, max_edges=5, allow_recurrent=True)
    graph = env.terminal(env.initial_states(1), 0)
    fields = {"output_size": 4, "activation_function": "relu", "attributes": {"aggregation": "sum"}}
    for node in sorted({end for edge in edges for end in edge[:2]} - {0, 1}):
        graph.add_node(node, NodeType.HIDDEN, **fields)
    for source, target, *is_recurrent in edges:
        graph.add_edge(source, target, attributes={"is_recurrent": True} if is_recurrent else {})
    with pytest.raises(ValueError, match=f"graph 0: {message}"):
        env.states_of([graph])
