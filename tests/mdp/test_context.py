from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import enumerate_states
from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import GraphStates
from tests.contracts.environments import ENVIRONMENTS, computation_graphs

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
            GraphAction(Kind.SetNodeAttr, 2, attribute="output_size", value=4),
            "a hidden node.s own attributes are set, once and in order",
        ),
        (
            "computation_graph",
            (),
            GraphAction(Kind.SetNodeAttr, 1, attribute="output_size", value=4),
            "a hidden node.s own attributes are set, once and in order",
        ),
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
