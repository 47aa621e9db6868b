import math
from collections import Counter

import pytest
import torch

from gflownet.mdp.action import PAIR_TYPES, ActionBatch, ActionMasks, GraphAction, GraphActionType
from gflownet.mdp.environment import IllegalAction
from tests.contracts.environments import ENVIRONMENTS

STOP, ADD_NODE, ADD_EDGE = GraphActionType.Stop, GraphActionType.AddNode, GraphActionType.AddEdge


@pytest.fixture
def masks() -> ActionMasks:
    """Return three graphs: one with a single action, one with five over all types, one with two."""
    nodes = torch.zeros(3, 2, 3, dtype=torch.bool)
    edges = torch.zeros(3, 4, 1, dtype=torch.bool)
    nodes[1, 0, 2] = nodes[1, 1, 0] = nodes[2, 1, 2] = True
    edges[1, 3, 0] = edges[1, 1, 0] = edges[2, 0, 0] = True
    return ActionMasks({STOP: torch.tensor([True, True, False]).reshape(3, 1, 1), ADD_NODE: nodes, ADD_EDGE: edges})


def as_tuples(actions: ActionBatch) -> list[tuple[int, ...]]:
    return list(zip(actions.kind.tolist(), actions.row.tolist(), actions.column.tolist(), strict=True))


def legal(masks: ActionMasks, graph: int) -> set[tuple[int, ...]]:
    return {(int(k), *rc) for k, m in masks.masks.items() for rc in map(tuple, m[graph].nonzero().tolist())}


def test_masks_positions_and_counts(masks):
    graphs, actions = masks.positions()
    assert masks.num_actions().tolist() == [1, 5, 2]
    listed = Counter(zip(graphs.tolist(), as_tuples(actions), strict=True))
    assert listed == Counter((g, a) for g in range(3) for a in legal(masks, g))


def test_masks_contains(masks):
    for kind in (*masks.masks, GraphActionType.RemoveNode):
        for row in range(-5, 6):
            for column in range(-4, 5):
                actions = ActionBatch(*(torch.full((3,), value) for value in (int(kind), row, column)))
                expected = [(int(kind), row, column) in legal(masks, g) for g in range(3)]
                assert masks.contains(actions).tolist() == expected


def test_sample_uniform_over_all_types(masks):
    num_draws = 4_000  # copies of the graphs in one batch
    copies = ActionMasks({kind: mask.repeat(num_draws, 1, 1) for kind, mask in masks.masks.items()})
    draws = as_tuples(copies.sample_uniform(torch.Generator().manual_seed(0)))
    for graph in range(3):
        counts, allowed = Counter(draws[graph::3]), legal(masks, graph)
        assert counts.keys() == allowed
        p = 1 / len(allowed)
        for count in counts.values():
            assert abs(count / num_draws - p) <= 4.5 * math.sqrt(p * (1 - p) / num_draws)


def test_sample_uniform_without_actions_raises(masks):
    empty = ActionMasks({STOP: torch.tensor([True, False]).reshape(2, 1, 1)})
    with pytest.raises(ValueError, match="graph 1: expected at least one legal action"):
        empty.sample_uniform(torch.Generator())


def test_action_batch_cat_and_index(masks):
    _, actions = masks.positions()
    order = torch.tensor([3, 1])
    assert as_tuples(actions[order]) == [as_tuples(actions)[3], as_tuples(actions)[1]]
    assert as_tuples(ActionBatch.cat([actions[:2], actions[2:]])) == as_tuples(actions)
    assert len(actions) == 8


@pytest.mark.parametrize("name", ["directed", "undirected", "computation_graph"])
@pytest.mark.parametrize(
    "action",
    [
        GraphAction(ADD_EDGE, 0, 5),  # would read as an edge from 1 in an environment of 4 nodes
        GraphAction(ADD_EDGE, -1, 1),
        GraphAction(GraphActionType.RemoveNode, -1),
        GraphAction(GraphActionType.AddNode, 99, value="relu"),
    ],
)
def test_encode_node_above_limit_raises(name, action):
    env = ENVIRONMENTS[name]()
    with pytest.raises(ValueError, match=r"expected nodes 0 to \d, got"):
        env.encode(action)


@pytest.mark.parametrize("kind", [kind for kind in GraphActionType if kind != STOP])
def test_encode_without_nodes_raises(kind):
    env = ENVIRONMENTS["computation_graph"]()
    words = {"attribute": "aggregation", "value": "relu" if kind == GraphActionType.AddNode else None}
    with pytest.raises(ValueError, match=rf"^{kind.name}\(.*\): expected a source, got none$"):
        env.encode(GraphAction(kind, target=1, **words))
    if kind in PAIR_TYPES:
        with pytest.raises(ValueError, match=rf"^{kind.name}\(.*\): expected a target, got none$"):
            env.encode(GraphAction(kind, source=0, **words))


@pytest.mark.parametrize("row", [-1, 16, 99])
def test_step_outside_of_tables_raises(row):
    env = ENVIRONMENTS["directed"]()
    action = ActionBatch(torch.tensor([int(ADD_EDGE)]), torch.tensor([row]), torch.tensor([0]))
    with pytest.raises(IllegalAction, match=f"AddEdge has no row {row}, column 0"):
        env.step(env.initial_states(1), action)


def test_action_text():
    assert str(GraphAction(ADD_EDGE, 0, 3)) == "AddEdge(source=0, target=3)"
    assert str(GraphAction(STOP)) == "Stop()"
    assert GraphActionType.SetEdgeAttr.field_name == "set_edge_attr"
