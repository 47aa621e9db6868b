"""Contract of every policy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.errors import UserError
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import Attribute, GraphStates
from gflownet.policy.config import POLICIES, ModelConfig
from gflownet.testing import PolicyContract
from gflownet.testing.policies import NUM_COND, conditioning_for, log_probs, visited
from tests.contracts.environments import ENVIRONMENTS, computation_graphs

# Graphs with unnamed nodes; slot environments (a fixed set of named places).
UNNAMED = {
    **{name: ENVIRONMENTS[name] for name in ("undirected", "undirected_attributes", "directed", "directed_attributes")},
    "undirected_6": lambda: GraphBuildingEnv(["a", "b"], max_nodes=6, node_attributes=[Attribute("mark", (0, 1))]),
    "directed_6": lambda: GraphBuildingEnv(["a"], max_nodes=6, directed=True),
    "computation_graph": lambda: computation_graphs(max_hidden_nodes=4, max_edges=10),
    "computation_graph_recurrent": lambda: computation_graphs(
        input_sizes=(3, 2), aggregations=("sum", "concat"), max_hidden_nodes=3, max_edges=10, allow_recurrent=True
    ),
}
PLACES = {name: ENVIRONMENTS[name] for name in ("hypergrid", "bit_sequence", "cells")}
CASES = {**UNNAMED, "labelled_dag": ENVIRONMENTS["labelled_dag"], **PLACES}
# The environments that each policy supports; it rejects the others.
READABLE = {
    "dense_transformer": tuple(CASES),
    "graph_transformer": tuple(CASES),
    "mlp": ("labelled_dag", *PLACES),
    "sequence_transformer": tuple(PLACES),
}
PAIRS = [(policy, name) for policy in POLICIES for name in READABLE[policy]]
# Their features are among those of the other environments.
SLOW = (
    *("undirected", "undirected_attributes", "directed", "undirected_6", "directed_6", "computation_graph"),
    *("hypergrid", "cells"),
)
of_one_case_each = pytest.mark.parametrize(
    ("make_policy", "name"), [(policy, READABLE[policy][0]) for policy in POLICIES], indirect=["make_policy"]
)
# The networks that are equivariant to renumbering of nodes.
of_graph_networks = pytest.mark.parametrize("make_policy", ["dense_transformer", "graph_transformer"], indirect=True)
MakePolicy = Callable[..., tuple[GraphBuildingEnvContext, Policy]]


@pytest.fixture
def make_policy(request) -> MakePolicy:
    policy_class: Any = POLICIES.load(request.param)

    def make(env: Environment, *, backward: bool = False, **options) -> tuple[GraphBuildingEnvContext, Policy]:
        context = GraphBuildingEnvContext(env, num_cond_dim=NUM_COND).with_layout(policy_class.layout)
        context = context.with_backward() if backward else context
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = {"num_layers": 2, "num_emb": 16, "num_heads": 2, **options}
            policy = policy_class(context, ModelConfig(name=request.param, **sizes))
        return context, policy

    return make


def relabelled(env: Environment, states: GraphStates, seed: int) -> tuple[GraphStates, Tensor]:
    """Return the states with their interchangeable nodes renumbered, and the new number of each node, [B, N]."""
    n, first = env.vocabulary.max_nodes, env.num_ends if isinstance(env, ComputationGraphEnv) else 0
    new = torch.arange(n).repeat(len(states), 1)
    generator = torch.Generator().manual_seed(seed)
    for i, num in enumerate(states.num_nodes.tolist()):
        if num > first:
            new[i, first:num] = first + torch.randperm(num - first, generator=generator)
    old, graph = new.argsort(1), torch.arange(len(states))[:, None]
    pairs = (graph[:, :, None], old[:, :, None], old[:, None, :])
    renamed = GraphStates(
        num_nodes=states.num_nodes,
        node_type=states.node_type[graph, old],
        node_attr=states.node_attr[graph, old],
        edge_type=states.edge_type[pairs],
        edge_attr=states.edge_attr[pairs],
        edge_order=states.edge_order[pairs],
        reach=states.reach[pairs],
        num_bridges=states.num_bridges if env.vocabulary.directed else states.num_bridges[pairs],
        limit=states.limit,
    )
    return renamed, new


def renamed_action(env: Environment, action: tuple[int, int, int], new: list[int]) -> tuple[int, int, int]:
    kind, row, column = action
    n = env.vocabulary.max_nodes
    if kind in PAIR_TYPES:
        ends = [new[row // n], new[row % n]]
        source, target = ends if env.vocabulary.directed else sorted(ends)
        return kind, source * n + target, column
    return kind, row if kind == GraphActionType.Stop else new[row], column


# These need one environment for each network.
OF_ONE = ("check_every_conditioning_feature_is_used", "check_conditioning_affects_its_own_state_only")
CHECKS = [
    (policy, name, check)
    for policy, name in PAIRS
    for check in PolicyContract.names()
    if check not in OF_ONE or name == READABLE[policy][0]
    # Without edges, the parameters for edges have no gradient.
    if check != "check_gradient_reaches_every_parameter" or policy != "graph_transformer" or name not in PLACES
]


def contract_of(policy: str, name: str, *, every: int = 5) -> PolicyContract:
    # In sequences and cells, Stop is the only action whenever it is legal.
    idle = ("heads.stop.",) if name in ("bit_sequence", "cells") else ()
    return PolicyContract(policy, CASES[name](), idle=idle, every=every)


@pytest.mark.parametrize(
    ("policy", "name", "check"),
    [
        pytest.param(*case, marks=pytest.mark.slow) if case[1] in SLOW and case[2] not in OF_ONE else case
        for case in CHECKS
    ],
)
def test_policy(policy, name, check):
    contract_of(policy, name).run(check)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "name"), PAIRS)
def test_every_state_of_policy_is_independent_of_the_batch(policy, name):
    contract_of(policy, name, every=1).check_output_is_independent_of_the_batch()


@of_graph_networks
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in UNNAMED]
)
def test_policy_is_equivariant_to_node_renumbering(make_policy, name):
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=6, seed=1)
    conditioning = conditioning_for(len(states))
    renamed, new = relabelled(env, states, seed=2)
    assert not bool(renamed.equals(states).all())
    before = log_probs(context, policy, states, conditioning)
    after = log_probs(context, policy, renamed, conditioning)
    for graph, expected in enumerate(before):
        moved = {renamed_action(env, a, new[graph].tolist()): value for a, value in expected.items()}
        assert after[graph] == pytest.approx(moved, abs=1e-5)


@of_graph_networks
def test_policy_depends_on_edge_directions(make_policy):
    """A chain, a fork and a join of three hidden nodes differ only in the directions of their edges."""
    env = computation_graphs(
        activations=("relu",), aggregations=("sum",), hidden_sizes=(4,), max_hidden_nodes=4, max_edges=12
    )
    context, policy = make_policy(env)
    add_node, add_edge = (int(k) for k in (GraphActionType.AddNode, GraphActionType.AddEdge))
    n = env.vocabulary.max_nodes

    def build(*actions: tuple[int, int, int]) -> GraphStates:
        states = env.initial_states(1)
        for action in actions:
            states = env.step(states, ActionBatch(*(torch.tensor([value]) for value in action)))
        return states

    hidden = [(add_node, 0, 2)] * 3
    states = [
        build(*hidden, *((add_edge, s * n + t, 0) for s, t in pairs))
        for pairs in (((2, 3), (3, 4)), ((2, 3), (2, 4)), ((3, 4), (2, 4)))
    ]
    values = log_probs(context, policy, GraphStates.cat(states), torch.zeros(3, NUM_COND))
    sorted_values = [sorted(of_state.values()) for of_state in values]
    for i in range(3):
        for j in range(i):
            assert sorted_values[i] != pytest.approx(sorted_values[j], abs=1e-6)


@pytest.mark.parametrize(
    ("make_policy", "name"),
    [(policy, READABLE[policy][0]) for policy in POLICIES if policy != "mlp"],  # which has no heads
    indirect=["make_policy"],
)
def test_policy_width_not_divisible_by_heads_raises(make_policy, name):
    with pytest.raises(ValueError, match=r"model\.num_emb: expected a multiple of num_heads=3, got 16"):
        make_policy(CASES[name](), num_heads=3)


UNSUPPORTED = [(policy, name) for policy in POLICIES for name in CASES if name not in READABLE[policy]]


@pytest.mark.parametrize(("make_policy", "name"), UNSUPPORTED, indirect=["make_policy"])
def test_policy_rejects_unsupported_environment(make_policy, name):
    expected = r"model\.name=\w+: expected an environment with a fixed number of nodes( and no edges)?, got \w+Env$"
    with pytest.raises(UserError, match=expected):
        make_policy(CASES[name]())


@of_one_case_each
def test_policy_both_without_backward_context_raises(make_policy, name):
    context, policy = make_policy(CASES[name]())
    with pytest.raises(ValueError, match="with_backward"):
        policy.both(context.to_batch(context.env.initial_states(2)), conditioning_for(2))
