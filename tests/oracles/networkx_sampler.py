"""Reference for sample_forward of gflownet/learning/sampler.py: networkx graphs, one after another.

Every graph is copied at every step, and its legal actions and features are computed one by one. Graphs share only the
call of the policy.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import networkx as nx
import torch

from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import PAIR_TYPES, GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.layout import NUM_PAIR_FEATURES
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import Attribute
from tests.fixed_length_env import FixedLengthGraphBuildingEnv
from tests.oracles.graph_building import GraphBuildingOracle, NxGraph
from tests.oracles.networkx_states import num_automorphisms, oracle_of

# The legal actions of one graph: kind -> row of the environment -> column -> action; rows and columns ascend.
Legal = dict[Kind, dict[int, dict[int, GraphAction]]]


@dataclass
class NetworkxTrajectory:
    """One trajectory: the states before each action and the actions; the last state is terminal, the last action Stop.

    `log_forward` and `log_backward` hold log P_F and the uniform log P_B of the actions.
    """

    graphs: list[NxGraph]
    actions: list[GraphAction] = field(default_factory=list)
    log_forward: list[float] = field(default_factory=list)
    log_backward: list[float] = field(default_factory=list)
    num_automorphisms: int | None = None  # of the terminal state; None: not counted


class FixedLengthOracle(GraphBuildingOracle):
    """Graph building with Stop as the only legal action after `num_actions` actions, and not before."""

    def __init__(self, node_types: Sequence[str], *, max_nodes: int, num_actions: int, directed: bool) -> None:
        super().__init__(node_types, max_nodes=max_nodes, directed=directed)
        self.num_actions = num_actions

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        num_taken = graph.number_of_edges() + (len(graph) > 0)
        in_time = (num_taken == self.num_actions) == (action.action_type == Kind.Stop)
        return in_time and super().allows(graph, action)


def rules_of(env: Environment) -> GraphBuildingOracle:
    """Return the reference rules of an environment, including the one of fixed length."""
    if not isinstance(env, FixedLengthGraphBuildingEnv):
        return oracle_of(env)
    v = env.vocabulary
    return FixedLengthOracle(v.node_types, max_nodes=v.max_nodes, num_actions=env.num_actions, directed=v.directed)


@torch.no_grad()
def sample_with_networkx(
    context: GraphBuildingEnvContext,
    oracle: GraphBuildingOracle,
    policy: Policy,
    *,
    conditioning: Conditioning,
    rng: Random,
    count_automorphisms: bool = False,
) -> list[NetworkxTrajectory]:
    """Return one trajectory per conditioning, drawn from the policy, which reads sparse batches."""
    from torch_geometric.data import Batch

    trajectories = [NetworkxTrajectory([oracle.initial()]) for _ in conditioning.beta]
    alive = list(range(len(trajectories)))
    while alive:
        graphs = [trajectories[i].graphs[-1] for i in alive]
        legal = [by_position(context, oracle.forward(graph)) for graph in graphs]
        data: list[Any] = [data_of(context, *pair) for pair in zip(graphs, legal, strict=True)]
        categorical, _ = policy(Batch.from_data_list(data), conditioning.encoding[alive])
        logits = [rows.tolist() for rows in categorical.logits]
        goes_on = []
        for i, graph, choices in zip(alive, graphs, legal_logits(context, logits, legal), strict=True):
            action, log_p = sample_action(choices, rng)
            trajectories[i].actions.append(action)
            trajectories[i].log_forward.append(log_p)
            if action.action_type == Kind.Stop:
                trajectories[i].log_backward.append(0.0)
                continue
            after = oracle.apply(graph, action)
            trajectories[i].graphs.append(after)
            trajectories[i].log_backward.append(-math.log(len(oracle.backward(after))))
            goes_on.append(i)
        alive = goes_on
    if count_automorphisms:
        for trajectory in trajectories:
            trajectory.num_automorphisms = num_automorphisms(trajectory.graphs[-1])
    return trajectories


def by_position(context: GraphBuildingEnvContext, actions: Iterable[GraphAction]) -> Legal:
    """Return legal actions by kind, row and column."""
    legal: Legal = {kind: {} for kind in context.action_types}
    positions = [(context.env.encode(action), action) for action in actions]
    for (kind, row, column), action in sorted(positions, key=lambda pair: pair[0]):
        legal[Kind(kind)].setdefault(row, {})[column] = action
    return legal


def legal_logits(
    context: GraphBuildingEnvContext, logits: Sequence[list[list[float]]], legal: Sequence[Legal]
) -> list[list[tuple[GraphAction, float]]]:
    """Return the logit of every legal action of each graph; a batch lists the rows of one graph after another."""
    next_row = dict.fromkeys(context.action_types, 0)
    logits_of_graphs = []
    for of_graph in legal:
        choices = []
        for kind, rows in zip(context.action_types, logits, strict=True):
            for columns in of_graph[kind].values():
                row = rows[next_row[kind]]
                choices += [(action, row[column]) for column, action in columns.items()]
                next_row[kind] += 1
        logits_of_graphs.append(choices)
    return logits_of_graphs


def sample_action(choices: Sequence[tuple[GraphAction, float]], rng: Random) -> tuple[GraphAction, float]:
    """Return one action of a softmax over logits, and the logarithm of its probability."""
    largest = max(logit for _, logit in choices)
    weights = [math.exp(logit - largest) for _, logit in choices]
    index = rng.choices(range(len(choices)), weights)[0]
    return choices[index][0], math.log(weights[index] / math.fsum(weights))


def data_of(context: GraphBuildingEnvContext, graph: NxGraph, legal: Legal) -> Any:
    """Return the same data as `GraphBuildingEnvContext.to_data`."""
    from torch_geometric.data import Data

    assert context.num_extra_node_features == 0
    v = context.env.vocabulary
    num_directed = graph.number_of_edges() * (1 if v.directed else 2)
    ends, features = [], []
    for edge in sorted(graph.edges) if v.directed else sorted((min(e), max(e)) for e in graph.edges):
        values = edge_features(context, graph, *edge)
        ends += [edge, edge[::-1]]
        features += [[*values, 1, 0], [*values, 0, 1] if v.directed else [*values, 1, 0]]
    fields = {
        "x": table(
            [node_features(context, graph, node) for node in sorted(graph) or [None]], context.num_node_features
        ),
        "graph_attr": table([[len(graph) / v.max_nodes, num_directed / (2 * v.max_nodes)]], 2),
        "edge_index": pairs(ends),
        "edge_attr": table(features, context.num_edge_features),
    }
    for kind, rows in legal.items():
        fields.update({f"{kind.field_name}_{name}": value for name, value in row_fields(context, graph, kind, rows)})
    return Data(**fields)


def row_fields(
    context: GraphBuildingEnvContext, graph: NxGraph, kind: Kind, rows: dict[int, dict[int, GraphAction]]
) -> list[tuple[str, torch.Tensor]]:
    """Return the batch fields of the rows of one action type with a legal column."""
    n, num_columns = context.env.vocabulary.max_nodes, context.num_columns[kind]
    mask = [[column in columns for column in range(num_columns)] for columns in rows.values()]
    fields = [
        ("mask", torch.tensor(mask, dtype=torch.bool).reshape(-1, num_columns)),
        ("row", torch.tensor(list(rows), dtype=torch.int64)),
    ]
    if kind not in PAIR_TYPES:
        return [*fields, ("index", torch.tensor(list(rows), dtype=torch.int64))]
    ends = [divmod(row, n) for row in rows]
    fields.append(("index", pairs(ends)))
    if kind == Kind.AddEdge:
        fields.append(("attr", table([pair_features(context, graph, *pair) for pair in ends], NUM_PAIR_FEATURES)))
    else:
        values = [edge_features(context, graph, *pair) for pair in ends]
        fields.append(("attr", table(values, context.num_edge_features - 2)))
    return fields


def node_features(context: GraphBuildingEnvContext, graph: NxGraph, node: int | None) -> list[float]:
    """Return one-hot type and attributes of a node or of no node, each with an entry for "none"."""
    v = context.env.vocabulary
    data: Any = {"type": None, "attributes": {}} if node is None else graph.nodes[node]
    return [*one_hot([*v.node_types, None], data["type"]), *attributes(v.node_attributes, data["attributes"])]


def edge_features(context: GraphBuildingEnvContext, graph: NxGraph, source: int, target: int) -> list[float]:
    """Return the type, the attributes and the rank of an edge."""
    v, data = context.env.vocabulary, graph.edges[source, target]
    values = attributes(v.edge_attributes, data["attributes"])
    return [*one_hot(v.edge_types, data["type"]), *values, data["order"] / v.max_nodes]


def pair_features(context: GraphBuildingEnvContext, graph: NxGraph, source: int, target: int) -> list[float]:
    """Return whether a path of edges of the first type exists, and four counts of paths of two steps, divided by N."""
    v = context.env.vocabulary
    directed, main = graph.to_directed(), nx.DiGraph()
    main.add_nodes_from(graph)
    main.add_edges_from((s, t) for s, t, kind in graph.edges(data="type") if kind == v.edge_types[0])
    reached = source == target or (v.directed and nx.has_path(main, source, target))
    source_out, source_in = set(directed.successors(source)), set(directed.predecessors(source))
    target_in, target_out = set(directed.predecessors(target)), set(directed.successors(target))
    return [
        float(reached),
        *(
            len(common) / v.max_nodes
            for common in (
                source_out & target_in,
                source_in & target_out,
                source_out & target_out,
                source_in & target_in,
            )
        ),
    ]


def attributes(vocabulary: Sequence[Attribute], values: dict[str, Any]) -> list[float]:
    """Return attributes as one-hots, each with an entry for "not set"."""
    unset = object()
    return [x for a in vocabulary for x in one_hot([*a.values, unset], values.get(a.name, unset))]


def one_hot(values: Sequence[object], value: object) -> list[float]:
    """Return 1 at the position of the value, 0 elsewhere."""
    return [float(candidate == value) for candidate in values]


def table(rows: Sequence[Sequence[float]], num_columns: int) -> torch.Tensor:
    """Return rows as [M, C] float32, also for no rows."""
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, num_columns)


def pairs(ends: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return pairs of nodes as [2, M] int64."""
    return torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T.contiguous()
