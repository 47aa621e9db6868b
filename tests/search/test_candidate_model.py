"""Values of candidates: improvement, hypervolume, and feasibility together, on a table of cells."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.config import load_config, with_task_options
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluation, evaluation_of
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.learning.sampler import uniform_states
from gflownet.search.acquisition import boxes_above, log_expected_improvement, log_improvement
from gflownet.search.candidate_model import CandidateModel, Fantasies, in_scores, spread_order
from gflownet.search.config import SearchConfig, SurrogateConfig
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.history import History
from gflownet.search.method import SearchSetup
from gflownet.search.prior import Prior
from tasks.cells import CellsConfig, CellsTask
from tests.benchmark_tables import write_nb201
from tests.contracts.environments import computation_graphs
from tests.evaluation.stub_rows import record
from tests.search.terminal_states import random_terminal_states

LATENCY = "edgegpu_latency"


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    return str(write_nb201(tmp_path_factory.mktemp("cells") / "table.csv"))


@functools.cache
def task_of(table: str, *options: str) -> CellsTask:
    return CellsTask(with_task_options(load_config("cells", [f"task_options.table={table}", *options]), CellsConfig))


class Search:
    """Evaluations of random cells."""

    def __init__(self, table: str, *options: str, num: int = 40) -> None:
        self.task = copy.copy(task_of(table, *options))
        config: Any = self.task.config
        context: Any = ENVIRONMENTS.load("cells").from_config(
            config.env, input_sizes=(), output_sizes=(), num_cond_dim=self.task.num_cond_dim
        )
        self.env, self.history = context.env, History(context.env)
        surrogate = SurrogateConfig()
        unused: Any = None
        self.setup = SearchSetup(
            context=context,
            task=self.task,
            config=SearchConfig(surrogate=surrogate),
            history=self.history,
            seed=0,
            build_learner=unused,
            build_training=unused,
            build_surrogate=lambda: GaussianProcess(self.env, surrogate, seed=0),
            num_evaluations=num,
            prior=Prior(self.env),
        )
        states = uniform_states(self.env, 2 * num, generator=torch.Generator().manual_seed(0))
        self.history.add(states[:num], [self.evaluation(self.env.terminal(states, i)) for i in range(num)])
        self.new = states[num:]
        self.model = CandidateModel(self.setup)
        self.positions = torch.arange(len(self.history))

    def evaluation(self, cell: Any) -> Evaluation:
        score = self.task.evaluate(cell, seed=0)
        row = record(cell.canonical_key(), score=score.value, metrics=dict(score.metrics))
        return evaluation_of(row, task=self.task, cached=False)

    def log_values(self) -> Tensor:
        self.model.fit(self.history, self.positions)
        return self.model.log_values(self.model.encode(self.new))


def test_candidate_model_of_one_score_is_the_acquisition(table):
    search = Search(table)
    values = search.log_values()
    surrogate = GaussianProcess(search.env, SurrogateConfig(), seed=0)
    scores = torch.tensor(search.history.scores, dtype=torch.float64)
    surrogate.fit(surrogate.encode(search.history.states), scores)
    prediction = surrogate.predict(surrogate.encode(search.new))
    best = float(surrogate.warp(scores).max())
    torch.testing.assert_close(values, log_improvement(prediction, best))
    expected = search.model.expected_scores(search.model.encode(search.new))
    torch.testing.assert_close(expected, surrogate.unwarp(prediction.mean).clamp(min=0))


def test_candidate_model_refuses_predictions_of_a_surrogate_with_nan(table, monkeypatch):
    search = Search(table)
    predict = search.model.surrogate.predict
    monkeypatch.setattr(search.model.surrogate, "predict", lambda x: replace(p := predict(x), mean=p.mean * math.nan))
    with pytest.raises(UserError, match=r"^search\.surrogate\.name: expected predictions without NaN, got 40 NaN$"):
        search.log_values()


def test_candidate_model_of_two_objectives_is_the_hypervolume_improvement(table):
    search = Search(table, f"evaluation.objectives=[accuracy,{LATENCY}]")
    values = search.log_values()
    features, utilities = search.model.encode(search.new), torch.tensor(search.history.utilities, dtype=torch.float64)
    mean, std = zip(*(in_scores(each, each.predict(features)) for each in search.model.surrogates), strict=True)
    boxes = boxes_above(utilities, torch.zeros(2))
    torch.testing.assert_close(values, log_expected_improvement(torch.stack(mean, 1), torch.stack(std, 1), boxes))
    assert search.model.expected_scores(features).shape == (len(search.new), 2)


def test_candidate_model_counts_failures_as_zero_utilities(table):
    search = Search(table, f"evaluation.objectives=[accuracy,{LATENCY}]", num=6)
    search.history.statuses[2] = EvaluationStatus.FAILED
    targets = search.model.targets(search.history)
    assert targets[2].tolist() == [0.0, 0.0]
    assert [tuple(row) for row in targets[3:].tolist()] == search.history.utilities[3:]


@pytest.mark.slow
def test_candidate_model_prefers_feasible_candidates(table):
    """In the table, accuracy and latency grow together: the best accuracy is never feasible."""
    free, capped = Search(table), Search(table, f"evaluation.constraints.{LATENCY}=4.0")
    assert max(capped.history.scores) < max(free.history.scores) == max(capped.history.measured)
    difference = capped.log_values() - free.log_values()
    latency = torch.tensor(
        [capped.evaluation(capped.env.terminal(capped.new, i)).metrics[LATENCY] for i in range(len(capped.new))]
    )
    assert float(difference[latency <= 4].median()) > float(difference[latency > 5].median()) + 2


def test_candidate_model_without_a_feasible_observation_is_the_probability(table):
    search = Search(table, f"evaluation.constraints.{LATENCY}=0.1")
    assert all(score == 0.01 for score in search.history.scores)
    values = search.log_values()
    expected = search.model.caps[0].log_probability(search.model.encode(search.new))
    assert torch.equal(values, expected)
    assert bool((values < 0).all())


def test_candidate_model_skips_failures_in_caps(table):
    search = Search(table, f"evaluation.constraints.{LATENCY}=4.0", num=8)
    search.history.metrics[0] = {}
    assert bool(search.log_values().isfinite().all())


def test_constraint_on_an_unknown_metric_is_refused(table):
    search = Search(table)
    search.task.limits = {"energy": 1.0}
    with pytest.raises(UserError, match=r"^evaluation.constraints.energy: expected a metric that the task reports"):
        search.evaluation(search.env.terminal(search.new, 0))


def test_in_scores_is_the_prediction_where_the_warp_is_linear(table):
    search = Search(table)
    search.log_values()
    surrogate, features = search.model.surrogate, search.model.encode(search.new)
    prediction = replace(search.model.predict(features))
    prediction = replace(prediction, mean=prediction.mean.clamp(min=0) + 10 * prediction.std)
    mean, std = in_scores(surrogate, prediction)
    scale = float(surrogate.unwarp(torch.ones(1)) - surrogate.unwarp(torch.zeros(1)))
    torch.testing.assert_close(std, scale * prediction.std)
    assert not math.isnan(float(mean.sum()))


def test_fantasies_shrink_deviations_as_observations_do():
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 60, seed=0)
    process = GaussianProcess(env, SurrogateConfig(), seed=0)
    features, scores = process.encode(states), states.has_edge.sum((1, 2)).double().sin()
    process.fit(features[:50], scores[:50])
    candidates, rows = features[50:], torch.tensor([3, 7])
    fantasies, before = Fantasies(process, candidates), process.predict(candidates)
    covariance = torch.stack([process.covariance(candidates, row) for row in range(10)])
    torch.testing.assert_close(covariance.diagonal(), before.latent_std.square(), rtol=1e-6, atol=1e-8)
    for row in rows.tolist():
        fantasies.add(row)
    observed = covariance[rows][:, rows] + before.noise**2 * torch.eye(2)
    explained = (covariance[:, rows] * torch.linalg.solve(observed, covariance[rows]).T).sum(1)
    expected = (before.std.square() - explained).clamp(min=before.noise**2).sqrt()
    torch.testing.assert_close(fantasies.prediction.std, expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(fantasies.prediction.mean, before.mean)
    assert fantasies.best == float(before.mean[rows].max())


def test_spread_order_takes_the_farthest_of_four_points():
    points = torch.tensor([[0.0], [0.1], [1.0], [0.6], [0.1], [0.9], [0.5]], dtype=torch.float64)
    assert spread_order(points).tolist() == [0, 2, 6, 1, 3, 4, 5]
    assert spread_order(points[:1]).tolist() == [0]
