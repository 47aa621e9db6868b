from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import Attribute, GraphStates
from gflownet.metrics.exact import enumerate_states
from tests.contracts.environments import ENVIRONMENTS, computation_graphs
from tests.oracles.networkx_states import to_networkx

Kind = GraphActionType


def built(env: Environment, *actions: GraphAction) -> GraphStates:
    states = env.initial_states(1)
    for action in actions:
        states = env.step(states, env.encode_batch([action]))
    return states


def add_node(source: int | None, value: str) -> GraphAction:
    return GraphAction(Kind.AddNode, source, value=value)


def add_edge(source: int, target: int, value: str | None = None) -> GraphAction:
    return GraphAction(Kind.AddEdge, source, target, value=value)


def set_node(node: int, attribute: str, value: object) -> GraphAction:
    return GraphAction(Kind.SetNodeAttr, node, attribute=attribute, value=value)


def edges_of(env: Environment, states: GraphStates) -> dict[tuple[int, int], list[list[float]]]:
    """Return the features of every edge of one graph, by (source, target) as the policy sees them."""
    data: Any = GraphBuildingEnvContext(env).to_data(states, 0)
    features_of: dict[tuple[int, int], list[list[float]]] = {}
    for source, target, features in zip(*data.edge_index.tolist(), data.edge_attr.tolist(), strict=True):
        features_of.setdefault((source, target), []).append(features)
    return features_of


def test_directed_edge_features():
    env = ENVIRONMENTS["directed"]()
    edges = edges_of(env, built(env, add_node(None, "a"), add_node(0, "a")))
    assert edges.keys() == {(0, 1), (1, 0)}
    assert edges[0, 1] != edges[1, 0]
    undirected = ENVIRONMENTS["undirected"]()
    edges = edges_of(undirected, built(undirected, add_node(None, "a"), add_node(0, "a")))
    assert edges[0, 1] == edges[1, 0]


def test_recurrent_edge_features():
    env = computation_graphs(
        activations=("relu",),
        aggregations=("sum",),
        hidden_sizes=(4,),
        max_hidden_nodes=2,
        max_edges=8,
        allow_recurrent=True,
    )
    start = (add_node(0, "relu"), add_node(2, "relu"))
    plain = edges_of(env, built(env, *start, add_edge(2, 1, "forward")))
    both = edges_of(env, built(env, *start, add_edge(3, 2, "recurrent")))
    assert len(both[2, 3]) == len(both[3, 2]) == 2
    forward_along, recurrent_against = both[2, 3]
    assert forward_along == plain[2, 3][0]
    assert recurrent_against not in plain[2, 3] + plain[3, 2]
    looped = edges_of(env, built(env, *start, add_edge(3, 3, "recurrent")))
    assert len(looped[3, 3]) == 2
    assert looped[3, 3][0] != looped[3, 3][1]


def test_edge_features_include_concat_rank():
    env = computation_graphs(
        activations=("relu",),
        aggregations=("concat",),
        hidden_sizes=(4,),
        max_hidden_nodes=2,
        max_edges=8,
    )
    hidden = (add_node(0, "relu"), add_node(2, "relu"))
    edges = edges_of(env, built(env, *hidden, add_edge(0, 3)))
    assert edges[0, 3][0] != edges[2, 3][0]
    other_way = edges_of(env, built(env, add_node(0, "relu"), add_node(0, "relu"), add_edge(2, 3)))
    assert sorted(map(str, edges)) == sorted(map(str, other_way))
    assert edges[0, 3] == other_way[2, 3]
    assert edges[2, 3] == other_way[0, 3]


def test_unset_node_attribute_features():
    env = ENVIRONMENTS["computation_graph"]()
    context, node = GraphBuildingEnvContext(env), (add_node(0, "relu"),)
    states = [built(env, *node)]
    for aggregation in ("sum", "max"):
        states.append(built(env, *node, set_node(2, "aggregation", aggregation)))
        for size in (4, 8):
            words = (set_node(2, "aggregation", aggregation), set_node(2, "output_size", size))
            states.append(built(env, *node, *words))
    states.append(built(env, add_node(0, "tanh")))
    data: list[Any] = [context.to_data(s, 0) for s in states]
    encodings = {tuple(d.x[2].tolist()) for d in data}
    assert len(encodings) == len(states)


def test_unset_edge_attribute_features():
    env = GraphBuildingEnv(["a"], max_nodes=2, directed=True, edge_attributes=[Attribute("gain", (0, 1))])
    start = (add_node(None, "a"), add_node(0, "a"))
    encodings = {str(edges_of(env, built(env, *start)))}
    for value in (0, 1):
        action = GraphAction(Kind.SetEdgeAttr, 0, 1, attribute="gain", value=value)
        encodings.add(str(edges_of(env, built(env, *start, action))))
    assert len(encodings) == 3


def test_empty_graph_is_encoded_as_blank_node():
    env = ENVIRONMENTS["undirected"]()
    context = GraphBuildingEnvContext(env)
    batch: Any = context.to_batch(GraphStates.cat([env.initial_states(2), built(env, add_node(None, "b"))]))
    assert batch.batch.tolist() == [0, 1, 2]
    assert batch.ptr.tolist() == [0, 1, 2, 3]
    assert torch.equal(batch.x[0], batch.x[1])
    assert not torch.equal(batch.x[0], batch.x[2])
    assert batch.add_node_index.tolist() == [0, 1, 2]
    assert batch.edge_index.shape == (2, 0)


@pytest.fixture(scope="module")
def mixed() -> tuple[Environment, GraphStates, ActionBatch]:
    """Return every legal action of states of all sizes, shuffled into one batch."""
    env = ENVIRONMENTS["undirected_attributes"]()
    states = enumerate_states(env).states
    graph, actions = env.forward_masks(states).positions()
    order = torch.randperm(len(graph), generator=torch.Generator().manual_seed(0))[:400]
    return env, states[graph[order]], actions[order]


def test_indices_of_mixed_batches_round_trip(mixed):
    env, states, actions = mixed
    context = GraphBuildingEnvContext(env)
    batch = context.to_batch(states)
    indices = context.to_indices(batch, actions)
    assert len(actions.kind.unique()) == len(env.forward_types)
    decoded = context.from_indices(batch, indices)
    for name in ("kind", "row", "column"):
        assert torch.equal(getattr(decoded, name), getattr(actions, name))
    for i in range(0, len(states), 7):
        word = env.decode(states, i, actions)
        assert context.action_to_index(states, i, word) == tuple(indices[i].tolist())


def test_indices_count_rows_of_batch(mixed):
    """Row r of an index is the r-th row of its graph in the batch, and its mask allows the column."""
    env, states, actions = mixed
    context = GraphBuildingEnvContext(env)
    batch = context.to_batch(states)
    rows, masks = SparseLayout(context).row_graphs(batch), context.masks(batch)
    for graph, (kind, row, column) in enumerate(context.to_indices(batch, actions).tolist()):
        position = (rows[kind] == graph).nonzero().squeeze(1)[row]
        assert bool(masks[kind][position, column])
        name = context.action_types[kind].field_name
        assert int(batch[f"{name}_row"][position]) == int(actions.row[graph])


def test_action_indices_refer_to_batch_nodes(mixed):
    env, states, _ = mixed
    context = GraphBuildingEnvContext(env)
    batch: Any = context.to_batch(states[:50])
    n = env.vocabulary.max_nodes
    for kind in context.action_types:
        name = kind.field_name
        rows, index = batch[f"{name}_row"], batch[f"{name}_index"]
        graph = batch.batch[index[0] if index.dim() == 2 else index]
        ends = torch.stack([rows // n, rows % n]) if index.dim() == 2 else rows
        assert torch.equal(index, batch.ptr[graph] + ends)


@pytest.mark.parametrize("name", ["undirected", "directed", "computation_graph_two_hidden"])
def test_pair_features(name):
    """Whether the first reaches the second, and per N the paths of two steps along, against, out to and in from."""
    env = ENVIRONMENTS[name]()
    graph, n = enumerate_states(env), env.vocabulary.max_nodes
    batch: Any = GraphBuildingEnvContext(env).to_batch(graph.states)
    asymmetric = 0
    for position in range(0, len(batch.add_edge_row), 7):
        owner, row = int(batch.batch[batch.add_edge_index[0, position]]), int(batch.add_edge_row[position])
        mirrored: Any = to_networkx(env, graph.states, owner).to_directed()
        source, target = row // n, row % n
        out, back = set(mirrored.successors(source)), set(mirrored.predecessors(source))
        paths = [
            len(out & set(mirrored.predecessors(target))),
            len(back & set(mirrored.successors(target))),
            len(out & set(mirrored.successors(target))),
            len(back & set(mirrored.predecessors(target))),
        ]
        reached = env.vocabulary.directed and nx.has_path(mirrored, source, target)
        expected = [float(reached), *(num / n for num in paths)]
        assert batch.add_edge_attr[position].tolist() == pytest.approx(expected)
        asymmetric += paths[0] != paths[1]
    assert (asymmetric > 0) == env.vocabulary.directed


@pytest.mark.parametrize(
    ("name", "start", "action", "rule"),
    [
        ("undirected", (), GraphAction(Kind.Stop), "the graph needs at least 1 nodes"),
        ("undirected", (add_node(None, "a"),), add_edge(0, 0), "an edge joins two different nodes"),
        ("undirected", (add_node(None, "a"),), add_edge(0, 1), "both nodes must be there"),
        ("undirected", (add_node(None, "a"), add_node(0, "a")), add_edge(0, 1), "the edge is already there"),
        ("directed", (add_node(None, "a"), add_node(0, "a")), add_edge(1, 0), "the edge would close a cycle"),
        ("computation_graph", (), GraphAction(Kind.Stop), "every node must lead to an output"),
        ("computation_graph", (add_node(0, "relu"),), add_edge(2, 1), "a hidden node still has attributes to be set"),
        (
            "computation_graph",
            (add_node(0, "relu"),),
            set_node(2, "output_size", 4),
            "attributes are set once and in order",
        ),
        ("computation_graph", (), set_node(1, "output_size", 4), "only hidden nodes have attributes to set"),
        ("computation_graph", (), add_node(1, "relu"), "the source is not there, or is an output"),
        ("computation_graph", (), add_node(0, "input_0"), "only hidden nodes are added"),
        ("computation_graph", (), add_edge(1, 0), "an edge leads from a node that is there into a hidden or output"),
    ],
)
def test_action_to_index_of_illegal_action_raises(name, start, action, rule):
    env = ENVIRONMENTS[name]()
    with pytest.raises(IllegalAction, match=f"graph 0: .*illegal: {rule}"):
        GraphBuildingEnvContext(env).action_to_index(built(env, *start), 0, action)


def test_action_to_index_of_first_node():
    env = ENVIRONMENTS["directed"]()
    context, first = GraphBuildingEnvContext(env), add_node(None, "a")
    states = GraphStates.cat([env.initial_states(1), built(env, first)])
    assert context.action_to_index(states, 0, first) == context.action_to_index(states, 0, add_node(0, "a"))
    with pytest.raises(IllegalAction, match=r"^graph 1: AddNode\(value='a'\) is illegal: a source is needed"):
        context.action_to_index(states, 1, first)


class DegreeContext(GraphBuildingEnvContext):
    """Adds the number of out-edges to the features of every context."""

    num_extra_node_features = 2

    def extra_node_features(self, states: GraphStates) -> Tensor:
        out_degree = states.has_edge.sum(2)
        return torch.stack([out_degree, states.exists.long() * 7], -1).float()


def test_context_subclass_with_extra_node_features():
    env = ENVIRONMENTS["directed"]()
    states = GraphStates.cat([env.initial_states(1), built(env, add_node(None, "a"), add_node(0, "b"))])
    context, plain = DegreeContext(env), GraphBuildingEnvContext(env)
    batch: Any = context.to_batch(states)
    encodings: Any = plain.to_batch(states)
    assert context.num_node_features == plain.num_node_features + 2 == batch.x.shape[1]
    assert torch.equal(batch.x[:, :-2], encodings.x)
    assert batch.x[:, -2:].tolist() == [[0, 0], [1, 7], [0, 7]]


def test_context_without_build_env_raises():
    with pytest.raises(
        ValueError, match=r"^env\.name: expected a context with a build_env .*, DegreeContext has none$"
    ):
        DegreeContext.from_config(None, input_sizes=(1,), output_sizes=(1,), num_cond_dim=1)


def test_from_indices_beyond_rows_raises():
    env = computation_graphs()
    context = GraphBuildingEnvContext(env)
    batch = context.to_batch(env.initial_states(2))
    add_node = context.action_types.index(GraphActionType.AddNode)
    for row in (-1, 50):
        with pytest.raises(ValueError, match=rf"graph 1: expected a row of AddNode, got {row}"):
            context.from_indices(batch, torch.tensor([[add_node, 0, 2], [add_node, row, 2]]))
