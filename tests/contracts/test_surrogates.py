"""Contract of every surrogate, on random architectures of several environments."""

from typing import Any

import pytest
import torch

from gflownet.envs.slots import SlotEnv
from gflownet.search.config import SURROGATES, SurrogateConfig
from gflownet.search.surrogate import Surrogate
from tests.contracts.environments import ENVIRONMENTS, cells, computation_graphs
from tests.fast_cases import slow_except
from tests.search.terminal_states import random_terminal_states, renamed_nodes

SPACES = {
    "computation_graph": lambda: computation_graphs(max_hidden_nodes=4, max_edges=8),
    "nb201": lambda: cells("nb201"),
    **{name: ENVIRONMENTS[name] for name in ("operation_graph", "choices", "tensor_graph")},
}
NUM_OBSERVED = 60


class Space:
    """Distinct architectures of an environment, with scores that depend on their graphs."""

    def __init__(self, name: str) -> None:
        self.env = SPACES[name]()
        states = random_terminal_states(self.env, 300, seed=0)
        codes = self.env.identify(states).tolist()
        self.states = states[torch.tensor([codes.index(code) for code in dict.fromkeys(codes)][:100])]
        graphs = self.env.labelled_graphs(self.states)
        kinds = torch.nn.functional.one_hot(graphs.labels.flatten(1) + 1).sum(1).double()
        weights = torch.randn(kinds.shape[1], generator=torch.Generator().manual_seed(1)).double()
        self.scores = kinds @ weights + 0.1 * (graphs.edges != 0).sum((1, 2))
        self.num = min(NUM_OBSERVED, len(self.states) // 2)


# Graphs with and without a fixed number of nodes; the other spaces are other encodings of the same kinds.
FAST_SPACES = ("computation_graph", "choices")


@pytest.fixture(scope="module", params=slow_except(FAST_SPACES, SPACES))
def space(request) -> Space:
    return Space(request.param)


@pytest.fixture(scope="module", params=SURROGATES)
def make_surrogate(request):
    surrogate_class = SURROGATES.load(request.param)
    config = SurrogateConfig(name=request.param)
    return lambda env, seed=0: surrogate_class(env, config, seed=seed)


@pytest.fixture(scope="module")
def fitted_surrogate(make_surrogate, space) -> tuple[Surrogate, Any]:
    return fitted(make_surrogate, space)


def fitted(make_surrogate, space: Space) -> tuple[Surrogate, Any]:
    surrogate = make_surrogate(space.env)
    features = surrogate.encode(space.states)
    surrogate.fit(features[: space.num], space.scores[: space.num])
    return surrogate, features


def test_surrogate_ranks_new_architectures(fitted_surrogate, space):
    """The scores grow with the number of nodes and depend on all labels."""
    surrogate, features = fitted_surrogate
    mean, values = surrogate.predict(features[space.num :]).mean, surrogate.warp(space.scores[space.num :])
    assert float(torch.corrcoef(torch.stack([mean, values]))[0, 1]) > 0.6


def test_surrogate_predictions_are_equal_for_isomorphic_states(fitted_surrogate, space):
    """Nodes get other positions; the nodes of choices and cells are places, which have none to swap."""
    renamed = space.states if isinstance(space.env, SlotEnv) else renamed_nodes(space.states, seed=1)
    assert torch.equal(space.env.identify(renamed), space.env.identify(space.states))
    surrogate, features = fitted_surrogate
    expected, result = surrogate.predict(features), surrogate.predict(surrogate.encode(renamed))
    torch.testing.assert_close(result.mean, expected.mean)
    torch.testing.assert_close(result.std, expected.std)


def test_surrogate_is_certain_at_observations(fitted_surrogate, space):
    surrogate, features = fitted_surrogate
    known, new = surrogate.predict(features[: space.num]), surrogate.predict(features[space.num :])
    error = (known.mean - surrogate.warp(space.scores[: space.num])).abs()
    assert float(error.mean()) < 0.2
    assert float(known.std.median()) < float(new.std.median())
    assert bool((known.std > 0).all())


def test_surrogate_warp_is_increasing_and_inverted_by_unwarp(fitted_surrogate, space):
    surrogate, _ = fitted_surrogate
    scores = space.scores.unique()
    values = surrogate.warp(scores)
    assert bool((values[1:] > values[:-1]).all())
    torch.testing.assert_close(surrogate.unwarp(values), scores)


def test_surrogate_is_determined_by_seed_and_observations(make_surrogate, space):
    first, features = fitted(make_surrogate, space)
    expected = first.predict(features)
    torch.manual_seed(1)
    again, features = fitted(make_surrogate, space)
    result = again.predict(features)
    assert torch.equal(result.mean, expected.mean)
    assert torch.equal(result.std, expected.std)


def test_surrogate_predictions_do_not_depend_on_batch(fitted_surrogate, space):
    surrogate, features = fitted_surrogate
    whole = surrogate.predict(features)
    for part in (slice(0, 1), slice(5, 17)):
        torch.testing.assert_close(surrogate.predict(features[part]).mean, whole.mean[part])
        torch.testing.assert_close(surrogate.predict(features[part]).std, whole.std[part])


def test_surrogate_resumes_to_the_bit(make_surrogate, space):
    """A surrogate that got its observations one by one continues like the one with its saved state."""
    surrogate = make_surrogate(space.env)
    features = surrogate.encode(space.states)
    for num in range(space.num - 2, space.num):
        surrogate.fit(features[:num], space.scores[:num])
        surrogate.predict(features)
    state = surrogate.state_dict()
    resumed = make_surrogate(space.env)
    resumed.load_state_dict(state)
    resumed.fit(features[: space.num - 1], space.scores[: space.num - 1])
    results = []
    for one in (surrogate, resumed):
        one.fit(features[: space.num], space.scores[: space.num])
        results.append(one.predict(features))
    assert torch.equal(results[0].mean, results[1].mean)
    assert torch.equal(results[0].std, results[1].std)
