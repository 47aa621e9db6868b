"""Reference rules of an environment, conversion of states to networkx, and automorphisms counted by listing them."""

from collections import defaultdict

import networkx as nx
import torch
from networkx.algorithms.isomorphism import DiGraphMatcher, GraphMatcher

from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.graph_building import GraphBuildingEnv, LabelledDAGEnv
from gflownet.envs.operation_graph import OperationGraphEnv
from gflownet.envs.slots import BitSequenceEnv, HypergridEnv
from gflownet.envs.tensor_graph import TensorGraphEnv
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import ABSENT, UNSET, Attribute, GraphStates
from tasks.catalogue import CatalogueEnv
from tasks.recurrent_stacks import RecurrentStackEnv
from tests.oracles.computation_graph_env import ComputationGraphOracle
from tests.oracles.graph_building import GraphBuildingOracle
from tests.oracles.labelled_dag import LabelledDAGOracle
from tests.oracles.operation_graph import OperationGraphOracle, SharingOracle
from tests.oracles.slots import BitSequenceOracle, CatalogueOracle, ChoicesOracle, HypergridOracle, RecurrentStackOracle
from tests.oracles.tensor_graph import TensorGraphOracle


def oracle_of(env: Environment) -> GraphBuildingOracle:
    """Return the rules of an environment on networkx graphs."""
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
    if isinstance(env, LabelledDAGEnv):
        return LabelledDAGOracle(env.vocabulary.max_nodes)
    if isinstance(env, TensorGraphEnv):
        return TensorGraphOracle(
            env.inputs,
            env.vocabulary.node_types,
            max_operations=env.max_operations,
            max_rank=env.max_rank,
            max_nodes=env.vocabulary.max_nodes,
            functions=node_attributes.get("function", ()),
        )
    if isinstance(env, CatalogueEnv):
        return CatalogueOracle(env.vocabulary.node_types, num_graphs=len(env.graphs), branching=len(env.values))
    if isinstance(env, RecurrentStackEnv):
        choices = {place.name: place.values for place in env.places.places}
        return RecurrentStackOracle(env.vocabulary.node_types, env.values, choices=choices)
    if isinstance(env, ChoicesEnv):
        attribute = env.vocabulary.node_attributes[0].name
        return ChoicesOracle(env.vocabulary.node_types, attribute, env.values, env.places, limits=env.limits)
    if isinstance(env, OperationGraphEnv):
        return (SharingOracle if env.share else OperationGraphOracle)(
            env.input_shapes,
            env.output_shape,
            offered={offered.name: offered.choices for offered in env.choices.operations},
            ports={each.name: names for each, names in zip(env.choices.operations, env.choices.ports, strict=True)},
            attributes=node_attributes,
            limits=env.caps,
            align=env.align,
            max_hidden_nodes=env.max_hidden_nodes,
            max_edges=env.max_edges,
        )
    for kind, slots in ((HypergridEnv, HypergridOracle), (BitSequenceEnv, BitSequenceOracle)):
        if isinstance(env, kind):
            return slots(env.vocabulary.node_types, env.vocabulary.node_attributes[0].name, env.values)
    assert isinstance(env, ComputationGraphEnv)
    aggregation = env._fixed.get("aggregation")
    return ComputationGraphOracle(
        len(env.input_sizes),
        len(env.output_sizes),
        activations=env.vocabulary.node_types[env.num_ends :],
        node_attributes=node_attributes,
        aggregation=None if aggregation is None else str(aggregation),
        output_aggregation=env.output_aggregation,
        max_hidden_nodes=env.max_hidden_nodes,
        max_edges=env.max_edges,
        recurrent=len(env.vocabulary.edge_types) > 1,
    )


def to_networkx(env: Environment, states: GraphStates, index: int) -> nx.Graph:
    """Return the entries of one graph; every entry of absent nodes must be blank."""
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
            attributes=_set_attributes(v.node_attributes, state.node_attr[node].tolist()),
        )
    for source, target in (~absent).nonzero().tolist():
        graph.add_edge(
            source,
            target,
            type=v.edge_types[int(state.edge_type[source, target])],
            attributes=_set_attributes(v.edge_attributes, state.edge_attr[source, target].tolist()),
            order=int(state.edge_order[source, target]),
        )
    return graph


def _set_attributes(attributes: tuple[Attribute, ...], values: list[int]) -> dict:
    return {a.name: a.values[value] for a, value in zip(attributes, values, strict=True) if value != UNSET}


def search_classes(oracle: GraphBuildingOracle) -> tuple[list[nx.Graph], list[nx.Graph]]:
    """Return one graph of each isomorphism class of states, and those that are terminal, by search with the rules.

    The graph attribute `num_actions` of each is the number of its legal forward actions.
    """
    buckets: dict[str, list[nx.Graph]] = defaultdict(list)
    terminal, frontier = [], [oracle.initial()]
    while frontier:
        graph = frontier.pop()
        labelled = graph.copy()
        labels = {v: f"{data['type']}{sorted(data['attributes'].items())}" for v, data in graph.nodes(data=True)}
        nx.set_node_attributes(labelled, labels, "label")
        ranks = {(s, t): f"{d['order']}{sorted(d['attributes'].items()) or ''}" for s, t, d in graph.edges(data=True)}
        ranks = {(s, t): "".join(sorted((rank, ranks.get((t, s), "")))) for (s, t), rank in ranks.items()}
        nx.set_edge_attributes(labelled, ranks, "rank")
        bucket = buckets[nx.weisfeiler_lehman_graph_hash(labelled.to_undirected(), node_attr="label", edge_attr="rank")]
        if any(_matcher(labelled)(labelled, other, dict.__eq__, dict.__eq__).is_isomorphic() for other in bucket):
            continue
        bucket.append(labelled)
        actions = oracle.forward(graph)
        labelled.graph["num_actions"] = len(actions)
        terminal += [labelled] * (GraphAction(GraphActionType.Stop) in actions)
        frontier += [oracle.apply(graph, a) for a in actions if a.action_type != GraphActionType.Stop]
    return [graph for bucket in buckets.values() for graph in bucket], terminal


def num_automorphisms(graph: nx.Graph) -> int:
    """Return the number of automorphisms by listing them."""
    return sum(1 for _ in _matcher(graph)(graph, graph, dict.__eq__, dict.__eq__).isomorphisms_iter())


def _matcher(graph: nx.Graph) -> type[GraphMatcher] | type[DiGraphMatcher]:
    return DiGraphMatcher if isinstance(graph, nx.DiGraph) else GraphMatcher
