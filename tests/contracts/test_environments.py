"""Contract of every environment and its context, on random walks and on enumerated small spaces."""

import pytest

from gflownet.envs.catalogue import CatalogueEnv
from gflownet.testing import EnvironmentContract
from tests.contracts.environments import ENVIRONMENTS

MAX_STATES = 6_000


def contract_of(name: str, **options: int) -> EnvironmentContract:
    env = ENVIRONMENTS[name]()
    # A listed graph is reached by a code, which has no symmetries.
    return EnvironmentContract(env, max_states=MAX_STATES, has_code=isinstance(env, CatalogueEnv), **options)


# Every check runs on smaller environments of the same class; these have thousands of states.
LARGE = {"tensor_graph_joined", "tensor_graph_new_indices", "undirected_attributes"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in ENVIRONMENTS],
)
def contract(request) -> EnvironmentContract:
    return contract_of(request.param)


@pytest.mark.parametrize("check", EnvironmentContract.names())
def test_environment(contract, check):
    contract.run(check)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_terminal_object_survives_json(name):
    contract_of(name, num_round_trips=MAX_STATES).check_terminal_object_survives_json()
