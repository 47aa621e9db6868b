"""The posterior over Bayesian networks: the BGe score against predictive distributions, and its consequences."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.graph_building import LabelledDAGEnv, parents_of
from gflownet.evaluation.conditioning import Conditioning
from gflownet.graphs.canonical import ColouredGraph
from tasks.structure_learning import (
    MAX_VARIABLES,
    StructureLearningConfig,
    StructureLearningTask,
    draw_problem,
    log_marginals,
)


def make_task(*overrides: str) -> StructureLearningTask:
    config = load_config("structure_learning", overrides)
    return StructureLearningTask(with_task_options(config, StructureLearningConfig))


@pytest.fixture(scope="module")
def graphs() -> list[ColouredGraph]:
    """All 543 graphs over four variables."""
    env = LabelledDAGEnv(4)
    states = enumerate_states(env).states
    return [env.terminal(states, i) for i in range(len(states))]


def log_marginal_by_prediction(data: np.ndarray, degrees: float, prior: float) -> float:
    """Return log p(data) one row after another (Gelman et al., Bayesian Data Analysis, 3.6), with one prior row."""
    total, size = 0.0, data.shape[1]
    mean, strength, scatter = np.zeros(size), 1.0, prior * np.eye(size)
    for row in data:
        free = degrees - size + 1
        total += multivariate_t.logpdf(row, mean, scatter * (strength + 1) / (strength * free), df=free)
        scatter = scatter + np.outer(row - mean, row - mean) * strength / (strength + 1)
        mean = (strength * mean + row) / (strength + 1)
        strength, degrees = strength + 1, degrees + 1
    return float(total)


def test_marginals_are_products_of_predictions():
    """A set of l of n variables has a Wishart prior with alpha_w - n + l = l + 2 degrees of freedom."""
    data = np.random.default_rng(1).standard_normal((7, 3)) * [1.0, 2.0, 0.5] + [0.0, 1.0, -1.0]
    found = log_marginals(data)
    assert found[0] == 0.0
    for size in range(1, 4):
        for members in itertools.combinations(range(3), size):
            expected = log_marginal_by_prediction(data[:, members], size + 2.0, prior=0.5)
            assert found[sum(1 << j for j in members)] == pytest.approx(expected, abs=1e-9)


def equivalence_class(parents: list[list[int]]) -> tuple:
    """Return skeleton and v-structures, which Markov equivalent graphs share (Verma and Pearl 1990)."""
    skeleton = {frozenset((p, j)) for j, own in enumerate(parents) for p in own}
    colliders = {
        (pair, j)
        for j, own in enumerate(parents)
        for pair in itertools.combinations(own, 2)
        if frozenset(pair) not in skeleton
    }
    return frozenset(skeleton), frozenset(colliders)


def test_equivalent_networks_score_the_same_and_no_others(graphs):
    task = make_task()
    classes: dict[tuple, set[float]] = {}
    for graph in graphs:
        score = task.evaluate(graph, seed=0).metrics["log_score"]
        classes.setdefault(equivalence_class(parents_of(graph)), set()).add(round(score, 7))
    assert len(classes) == 185
    assert all(len(scores) == 1 for scores in classes.values())
    assert len(set.union(*classes.values())) == 185


def test_the_best_network_scores_one_and_rewards_are_the_posterior(graphs):
    task = make_task()
    scores = [task.evaluate(graph, seed=0) for graph in graphs]
    values = torch.tensor([score.value for score in scores], dtype=torch.float64)
    assert float(values.max()) == pytest.approx(1.0, abs=1e-12)
    log_scores = torch.tensor([score.metrics["log_score"] for score in scores], dtype=torch.float64)
    told = task.sample_conditioning(1, generator=torch.Generator())
    conditioning = Conditioning(told.encoding.expand(len(graphs), -1), told.beta.expand(len(graphs)))
    assert float(values.min()) > task.config.evaluation.floor_score
    posterior = task.log_reward(values, conditioning).softmax(0)
    assert torch.allclose(posterior, log_scores.softmax(0), atol=1e-9)


def test_plenty_of_data_find_the_true_network(graphs):
    task = make_task("task_options.num_samples=20000", "task_options.noise=0.5")
    truth = task.problem(4).parents
    assert sum(map(len, truth)) >= 3
    best = max(graphs, key=lambda graph: task.evaluate(graph, seed=0).value)
    assert equivalence_class(parents_of(best)) == equivalence_class(truth)
    true_graph = next(graph for graph in graphs if parents_of(graph) == truth)
    found = task.evaluate(true_graph, seed=0)
    assert found.value == pytest.approx(1.0, abs=1e-12)
    assert found.metrics["hamming_distance"] == 0.0


def test_distance_counts_pairs_that_are_joined_otherwise(graphs):
    task = make_task()
    truth = task.problem(4).parents
    edges = {(p, j) for j, own in enumerate(truth) for p in own}
    for graph in graphs[::40]:
        others = {(p, j) for j, own in enumerate(parents_of(graph)) for p in own}
        pairs = itertools.combinations(range(4), 2)
        kinds = [(((a, b) in edges, (b, a) in edges), ((a, b) in others, (b, a) in others)) for a, b in pairs]
        expected = sum(ours != theirs for ours, theirs in kinds)
        assert task.evaluate(graph, seed=0).metrics["hamming_distance"] == expected


def test_data_depend_on_their_options_alone():
    options = {"num_samples": 10, "edges_per_node": 1.0, "noise": 1.0}
    first, again, other = (draw_problem(4, **options, data_seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.data, again.data)
    assert not np.array_equal(first.data, other.data)
    assert math.isfinite(first.best)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("num_samples=0", r"task_options\.num_samples: expected a number >= 1, got 0"),
        ("edges_per_node=-1", r"task_options\.edges_per_node: expected a number >= 0, got -1"),
        ("noise=0", r"task_options\.noise: expected a number > 0, got 0"),
    ],
)
def test_options_that_draw_no_data_are_named(option, message):
    with pytest.raises(ValueError, match=message):
        make_task(f"task_options.{option}")


def test_too_many_variables_are_named():
    with pytest.raises(ValueError, match=r"env\.labelled_dag\.num_nodes: expected at most 12 variables"):
        make_task().problem(MAX_VARIABLES + 1)
