"""The mixture of surrogates: weights by left out observations, and the left out predictions themselves."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeRegressor

from gflownet.search.config import MIXED_MODELS, SurrogateConfig
from gflownet.search.descriptors import Descriptors
from gflownet.search.forest import RandomForest
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.mixture import MODELS, Automatic, stacked
from gflownet.search.regression import Hyperparameters, Regression
from gflownet.search.surrogate import Prediction, Warping, mixture
from tests.contracts.environments import computation_graphs
from tests.search.terminal_states import random_terminal_states

NUM = 40


@pytest.fixture(scope="module")
def env():
    return computation_graphs(max_hidden_nodes=4, max_edges=8)


def test_left_out_predictions_equal_those_of_a_model_without_the_observation(env):
    states = random_terminal_states(env, NUM, seed=0)
    features, values = GaussianProcess(env, SurrogateConfig(), seed=0).encode(states), states.num_nodes.double().sin()
    regression = Regression(features, torch.arange(NUM), Hyperparameters.initial(features.num_blocks + 2))
    regression.observe(values)
    result, posterior = regression.left_out(), regression.posterior
    covariance = regression.factor @ regression.factor.T
    for row in (0, 17):
        others = torch.arange(NUM) != row
        weights = torch.linalg.solve(covariance[others][:, others], covariance[others, row])
        expected = posterior.mean + weights @ (values[others] - posterior.mean)
        assert float(result.mean[row]) == pytest.approx(float(expected))
        variance = (covariance[row, row] - weights @ covariance[others, row]) * posterior.variance
        assert float(result.std[row]) == pytest.approx(float(variance.sqrt()))


def test_weights_prefer_the_model_that_predicts():
    values = torch.randn(60, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.randn(60, generator=torch.Generator().manual_seed(1)).double()
    good, bad = Prediction(values + 0.2 * noise, 0.2 * torch.ones(60)), Prediction(noise, torch.ones(60))
    assert stacked([good, bad], values) == [1.0, 0.0]
    halves = stacked([good, good], values)
    assert halves == pytest.approx([0.5, 0.5])


def test_mixture_has_mean_and_variance_of_its_parts():
    parts = [
        Prediction(torch.tensor([0.0]), torch.tensor([1.0]), 0.5),
        Prediction(torch.tensor([2.0]), torch.tensor([1.0])),
    ]
    result = mixture(parts, [0.5, 0.5])
    assert float(result.mean) == 1.0
    assert float(result.std) == pytest.approx(2**0.5)
    assert result.noise == pytest.approx((0.5 * 0.25) ** 0.5)


def test_automatic_encodes_as_its_models_and_once(env, monkeypatch):
    states = random_terminal_states(env, 9, seed=0)
    surrogate, calls = Automatic(env, SurrogateConfig(), seed=0), list[int]()
    surrogate.encode(states[:2])  # measures random architectures
    original = Descriptors._numbers
    monkeypatch.setattr(Descriptors, "_numbers", lambda self, batch: calls.append(len(batch)) or original(self, batch))
    parts = surrogate.encode(states).parts
    assert calls == [9]
    labels, numbers, forest = (model.encode(states) for model in surrogate.models)
    assert torch.equal(parts[2], forest)
    for part, expected in zip(parts[:2], (labels, numbers), strict=True):
        assert all(torch.equal(getattr(part, each.name), getattr(expected, each.name)) for each in fields(part))
    assert parts[1].labels is parts[0].labels
    other = surrogate.encode(states[:5]).parts
    assert torch.equal(other[2], forest[:5])


def test_forest_equals_trees_of_scikit_learn(env):
    states = random_terminal_states(env, NUM, seed=0)
    forest, scores = RandomForest(env, SurrogateConfig(), seed=3), states.num_nodes.double().sin()
    features = forest.encode(states)
    forest.fit(features[:30], scores[:30])
    forest.fit(features[:31], scores[:31])  # the same trees in other warped scores
    generator = np.random.default_rng(3)
    rows, growth, trees = generator.integers(30, size=(100, 30)), Warping.of(scores[:30]), []
    for sample in rows:
        seed = int(generator.integers(2**31))
        tree = DecisionTreeRegressor(min_samples_leaf=2, max_features=0.5, random_state=seed)
        trees.append(tree.fit(features.numpy()[sample], growth.warp(scores[:30]).numpy()[sample]))
    outputs = torch.stack([torch.from_numpy(tree.predict(features.numpy())) for tree in trees])
    expected = Warping.of(scores[:31]).warp(growth.unwarp(outputs)).mean(0)
    assert torch.equal(forest.predict(features).mean, expected)


def test_automatic_shows_weights_and_covariances(env):
    states = random_terminal_states(env, 2 * NUM, seed=0)
    surrogate = Automatic(env, SurrogateConfig(), seed=0)
    features, scores = surrogate.encode(states), states.num_nodes.double() + states.has_edge.sum((1, 2))
    surrogate.fit(features[:NUM], scores[:NUM])
    metrics = surrogate.metrics()
    assert tuple(MIXED_MODELS) == MODELS, "panel and report have words for each"
    assert sum(metrics[f"surrogate_weight_{name}"] for name in ("labels", "numbers", "forest")) == pytest.approx(1)
    new = features[NUM:]
    prediction, covariance = surrogate.predict(new), surrogate.covariance(new, 3)
    assert covariance is not None
    assert float(covariance[3]) == pytest.approx(float(prediction.latent_std[3] ** 2), rel=1e-3)
    assert bool((covariance.abs() <= prediction.latent_std * prediction.latent_std[3] + 1e-6).all())
