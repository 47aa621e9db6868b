"""Contract of every environment and its context, on random walks and on enumerated small spaces."""

import functools

import pytest

from gflownet.envs.graph_building import GraphBuildingEnv, LabelledDAGEnv
from gflownet.mdp.states import Attribute
from gflownet.testing import EnvironmentContract
from tasks.catalogue import CatalogueEnv
from tests.contracts.environments import CONVOLUTIONS, ENVIRONMENTS, operation_graphs, recurrent_stacks, tensor_graphs
from tests.oracles.networkx_states import oracle_of, search_classes

MAX_STATES = 6_000
# Environments with hundreds or thousands of states, and others of a class of which smaller ones are checked.
LARGE = {
    *("undirected", "undirected_fixed_size", "undirected_attributes", "directed", "directed_attributes"),
    *("labelled_dag", "cells"),
    *("computation_graph", "computation_graph_two_hidden", "computation_graph_ordered"),
    *("recurrent_stack", "operation_graph", "operation_graph_tight"),
    *("operation_graph_projections", "operation_graph_modules"),
    *("tensor_graph", "tensor_graph_equal_inputs", "tensor_graph_new_indices", "tensor_graph_joined"),
}
SMALLER = {
    "undirected_3": lambda: GraphBuildingEnv(["a", "b"], max_nodes=3),
    "undirected_attributes_2": lambda: GraphBuildingEnv(
        ["a"],
        max_nodes=2,
        node_attributes=[Attribute("charge", (-1, 1)), Attribute("mark", ("x",))],
        edge_attributes=[Attribute("bond", (1, 2))],
    ),
    "directed_attribute_3": lambda: GraphBuildingEnv(
        ["a"], max_nodes=3, directed=True, edge_attributes=[Attribute("gain", (1, 2))]
    ),
    "labelled_dag_3": lambda: LabelledDAGEnv(3),
    "operation_graph_tight_3": lambda: operation_graphs(
        operations=("conv2d", "max_pool2d"),
        choices={**CONVOLUTIONS, "conv2d": {**CONVOLUTIONS["conv2d"], "features": 4, "stride": [1, 2]}},
        max_parameters=300,
        max_multiply_adds=8_000,
        max_edges=3,
    ),
    "operation_graph_projections_1": lambda: operation_graphs(
        inputs=((3, 8, 8), (6, 4, 4)),
        operations=("conv2d", "identity"),
        choices={
            "conv2d": {"features": 4, "kernel_size": 1, "stride": [1, 2], "dilation": 1},
            "identity": {"merge": ["sum", "max"], "activation": "relu"},
        },
        align="auto",
        max_parameters=95,
        max_hidden_nodes=1,
    ),
    "recurrent_stack_1": lambda: recurrent_stacks(betas=["on"], max_depth=1),
    "tensor_graph_equal_inputs_1": lambda: tensor_graphs(inputs={"a": (2,), "b": (2,)}),
    "tensor_graph_joined_2": lambda: tensor_graphs(
        inputs={"a": (2,), "s": ()}, operations=("*", "-"), max_operations=2, max_rank=0
    ),
}
CASES = {**ENVIRONMENTS, **SMALLER}
# Checks of code that all environments share, and environments whose actions and features cover it.
SHARED = {
    "check_step_accepts_exactly_the_legal_actions",
    "check_action_index_round_trip",
    "check_batch_equals_collated_graphs",
}
SHARED_CASES = {*("undirected_attributes_2", "computation_graph_recurrent", "hypergrid", "choices_capped")}
# Other operations and sizes of an environment that has a fast case; their masks: tests/envs/test_against_networkx.py.
REPEATED = {
    *("operation_graph_positions", "operation_graph_layouts", "operation_graph_tokens", "operation_graph_three_ports"),
    *("computation_graph_many_ends", "computation_graph_ordered_output", "cells_nb101", "tensor_graph_joined_2"),
    *("choices", "recurrent_stack_of_gru"),
}


def is_slow(name: str, check: str) -> bool:
    return name in LARGE or name in REPEATED or (check in SHARED and name not in SHARED_CASES)


@functools.lru_cache(maxsize=1)
def contract_of(name: str) -> EnvironmentContract:
    env, num_round_trips = CASES[name](), MAX_STATES if name in LARGE else 25
    # A listed graph is reached by a code, which has no symmetries.
    has_code = isinstance(env, CatalogueEnv)
    return EnvironmentContract(env, max_states=MAX_STATES, num_round_trips=num_round_trips, has_code=has_code)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[pytest.mark.slow] * is_slow(name, check))
        for name in CASES
        for check in EnvironmentContract.names()
    ],
)
def test_environment(name, check):
    contract_of(name).run(check)


# More than half a second of networkx; others of these classes are counted for every commit.
COUNTED_SLOWLY = {
    *(*LARGE, "operation_graph_layouts", "operation_graph_positions", "operation_graph_ports"),
    *("computation_graph_many_ends", "tensor_graph_joined_2", "cells_nb101", "operation_graph_shared"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in COUNTED_SLOWLY)) for name in CASES]
)
def test_numbers_of_states_and_actions_equal_an_independent_enumeration(name):
    """A mask that hides actions in both directions breaks no rule of the transitions that are left."""
    graph = contract_of(name).state_graph
    classes, terminal = search_classes(oracle_of(contract_of(name).env))
    num_actions = sum(each.graph["num_actions"] for each in classes)
    assert (len(graph), len(graph.terminal), len(graph.parent)) == (len(classes), len(terminal), num_actions)
