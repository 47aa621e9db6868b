"""Searches that start from the evaluations of earlier ones, on the cells of a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.report.results import TakenOver
from gflownet.search.config import SurrogateConfig
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.prior import EarlierSearch, Prior, best_first, earlier_search, read_prior
from tests.benchmark_tables import write_nb201
from tests.evaluation.stub_rows import record
from tests.search.test_candidate_model import Search


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Search:
    return Search(str(write_nb201(tmp_path_factory.mktemp("cells") / "table.csv")), num=60)


def row_of(cell: Any, score: float, graph: str = "") -> EvaluationRecord:
    fields = {"hash": cell.canonical_hash(), "graph": graph or json.dumps(cell.to_dict())}
    return record(cell.canonical_key(), score=score, **fields)


def rows_of(search: Search, scores: Tensor) -> list[Any]:
    """Return stored rows of the architectures of a search with other scores."""
    cells = [search.env.terminal(search.history.states, index) for index in range(len(scores))]
    return [row_of(cell, float(score)) for cell, score in zip(cells, scores, strict=True)]


def errors(search: Search, source: Tensor | None) -> float:
    """Return the squared error of predictions from 8 of 60 architectures, and from earlier scores of all."""
    scores = torch.tensor(search.history.measured, dtype=torch.float64)
    model = GaussianProcess(search.env, SurrogateConfig(), seed=0)
    features = model.encode(search.history.states)
    if source is not None:
        model.start_from([(features, source)])
    model.fit(features[:8], scores[:8])
    predicted = model.unwarp(model.predict(features[8:]).mean)
    return float((predicted - scores[8:]).square().mean())


def test_related_scores_of_any_scale_help_and_unrelated_ones_hardly_harm(search: Search) -> None:
    scores = torch.tensor(search.history.measured, dtype=torch.float64)
    shuffled = scores[torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))]
    alone = errors(search, None)
    assert errors(search, 100 + 5 * scores) < 0.2 * alone
    assert errors(search, shuffled) < 1.5 * alone


def test_the_first_design_begins_with_the_best_of_each_earlier_search_in_turn(search: Search) -> None:
    scores = torch.tensor(search.history.measured, dtype=torch.float64)
    both = [
        earlier_search(name, rows_of(search, sign * scores + 1), search.env, search.task)
        for name, sign in (("a", 1), ("b", -1))
    ]
    prior = Prior(search.env, lambda: [each for each in both if isinstance(each, EarlierSearch)])
    best = prior.best(3, lambda history: torch.tensor(history.measured)[:, None])
    found = [search.history.measured[search.history.position(code) or 0] for code in search.env.identify(best).tolist()]
    assert found == scores.sort().values[[-1, 0, -2]].tolist()
    [first, _] = prior.summary(search.history, 10)
    counts = [first[name] for name in ("num_evaluations", "num_in_space", "num_first", "num_shared")]
    num = len(search.history)
    assert counts == [num, num, 10, num]
    assert first["correlation"] == pytest.approx(1)
    both = f"{num} architectures evaluated by both; rank correlation of both scores 1.00"
    assert TakenOver(**first).line == f"from a: {num} evaluations; 10 architectures of the first design; {both}"


def test_objectives_are_taken_by_the_hypervolume_they_add() -> None:
    values = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.6, 0.45], [0.1, 0.9]])
    assert best_first(values, 3).tolist() == [2, 3, 1]


def test_a_store_is_read_once_and_kept_by_a_checkpoint(search: Search, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    with EvaluationStore(folder / STORE_NAME, context="another task") as store:
        rows = rows_of(search, torch.linspace(0, 1, 20))
        store.add([*rows, replace(rows[0], seed=3, score=0.0)])  # a further seed is no evaluation of the search
    prior = Prior(search.env, lambda: read_prior([str(folder)], search.env, search.task))
    assert [(each.name, each.num_evaluations) for each in prior.searches] == [("first", 20)]
    restored = Prior(search.env, lambda: pytest.fail("read again"))
    restored.load_state_dict(prior.state_dict())
    assert restored.searches[0].history.measured == prior.searches[0].history.measured


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "expected a run folder or a store with evaluations, got"), ("other", "got 1 other in")],
)
def test_folders_without_evaluations_of_the_space_are_refused(
    search: Search, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "other").mkdir()
    with EvaluationStore(tmp_path / "other" / STORE_NAME, context="") as store:
        cell = search.env.terminal(search.history.states, 0)
        store.add([row_of(cell, 0.5, '{"nodes": [], "edges": []}')])
    with pytest.raises(UserError, match=message):
        read_prior([str(tmp_path / name)], search.env, search.task)
