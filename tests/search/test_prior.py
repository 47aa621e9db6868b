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
from gflownet.records.marker import RunMarker, write_marker
from gflownet.records.trust import trusting
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
    [first, _] = prior.summary(search.history, 10, has_sampler=True)
    counts = [first[name] for name in ("num_evaluations", "num_in_space", "num_first", "num_design", "num_shared")]
    num = len(search.history)
    assert counts == [num, num, 10, 10, num]
    assert first["correlation"] == pytest.approx(1)
    both = f"{num} architectures evaluated by both, with a rank correlation of 1.00"
    line = f"from a: {num} evaluations; 10 of the first 10 architectures; {both}; the sampler began without its policy"
    assert TakenOver(**first).line == line


def test_objectives_are_taken_by_the_hypervolume_they_add() -> None:
    values = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.6, 0.45], [0.1, 0.9]])
    assert best_first(values, 3).tolist() == [2, 3, 1]


def filled(location: str, search: Search, *, run: str = "", graph: str = "") -> None:
    """Write 20 evaluations of a run to a store."""
    with EvaluationStore(location, context=f"another task {run}") as store:
        rows = rows_of(search, torch.linspace(0, 1, 20))
        rows = [replace(row, run=run, graph=graph or row.graph) for row in rows]
        store.add([*rows, replace(rows[0], seed=3, score=0.0)])  # a further seed is no evaluation of the search


def test_a_prior_is_read_once_and_kept_by_a_checkpoint(search: Search, tmp_path: Path) -> None:
    filled(str(tmp_path / STORE_NAME), search)
    weights, read = {"weight": torch.ones(2)}, list[Path]()
    prior = Prior(
        search.env,
        lambda: read_prior([str(tmp_path)] * 2, search.env, search.task, lambda folder: read.append(folder) or weights),
    )
    assert [(each.name, each.num_evaluations) for each in prior.searches] == [(tmp_path.name, 20)] * 2
    assert read == [tmp_path]  # the first that fits
    restored = Prior(search.env, lambda: pytest.fail("read again"))
    restored.load_state_dict(prior.state_dict())
    assert restored.searches[0].history.measured == prior.searches[0].history.measured
    assert restored.policy == weights
    old = [{name: value for name, value in each.items() if name != "policy"} for each in prior.state_dict()]
    restored.load_state_dict(old)
    assert restored.policy is None


def test_a_database_is_read_by_its_url_or_by_the_folder_of_a_run_that_names_it(
    search: Search, database: str, tmp_path: Path
) -> None:
    runs = {name: tmp_path / name for name in ("own", "other")}
    for number, folder in enumerate(runs.values()):
        folder.mkdir()
        write_marker(folder, RunMarker(f"{number:032}", {"evaluation": {"store_url": database}}))
        filled(database, search, run=f"{number:032}")
    by_url, by_folder = (read_prior([each], search.env, search.task) for each in (database, str(runs["own"])))
    assert [(each.name, each.num_evaluations) for each in by_folder] == [("own", 20)]
    assert (by_url[0].name in ("evaluations.sqlite", "postgres"), by_url[0].num_evaluations) == (True, 40)


@pytest.mark.parametrize(
    ("config", "graph", "message"),
    [
        ({}, '{"operation": "foreign_module:Swish"}', "it would import foreign_module:Swish; pass --trust"),
        ({"evaluation": {"store_url": "postgresql://h/x"}}, "", "it would connect to postgresql://h/x; pass --trust"),
    ],
)
def test_the_folder_of_another_user_imports_and_connects_to_nothing(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], graph: str, message: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    filled(str(folder / STORE_NAME), search, graph=graph)
    write_marker(folder, RunMarker("0" * 32, config))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))
    with pytest.raises(UserError, match=message):
        read_prior([str(folder)], search.env, search.task)
    with trusting(is_trusted=True), pytest.raises(UserError) as raised:
        read_prior([str(folder)], search.env, search.task)
    assert "--trust" not in str(raised.value)


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
