"""Searches with a surrogate on cells of a made-up table."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch

from gflownet.config import load_config
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.run.trainer import GFNTrainer
from gflownet.search.features import Descriptors
from gflownet.search.loop import SearchLoop
from gflownet.search.method import Results
from gflownet.search.proposals import Pool
from gflownet.search.sampler import ScoreModel
from gflownet.search.surrogate_search import SurrogateSearch
from tests.search.searches import RIDGE, build, run_search


def macro_table(folder: Path) -> Path:
    """Write a table with a score for each of the 6,561 cells of NAS-Bench-Macro: better to the right; return its path.

    The best cell is 22222222, with 97 %.
    """
    path = folder / "macro.csv"
    rows = (f"{''.join(code)},{17 + 10 * sum(map(int, code)) / 2}" for code in product("012", repeat=8))
    path.write_text("code,mean\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def build_components(overrides: Sequence[str]) -> GFNTrainer:
    return GFNTrainer(load_config(None, ["wandb.mode=disabled", RIDGE, *overrides]))


@pytest.fixture(scope="module")
def macro(tmp_path_factory) -> tuple[str, ...]:
    table = macro_table(tmp_path_factory.mktemp("macro"))
    return (
        *("task=cells", "env.name=cells", "env.cells.name=nb_macro", f"task_options.table={table}"),
        *("task_options.column=mean", "search.method=surrogate", "search.batch_size=4", "budget.evaluations=40"),
        "search.sampler.num_verified=0",
    )


@pytest.fixture(scope="module")
def finished(macro) -> SearchLoop:
    return run_search(build_components(macro))[0]


def method_of(loop: SearchLoop) -> SurrogateSearch:
    assert isinstance(loop.method, SurrogateSearch)
    return loop.method


def test_search_beats_random_and_proposes_nothing_twice(finished):
    assert max(finished.history.scores) == pytest.approx(0.97)  # random search of 60: 0.82 in the median
    assert finished.history.num_new == len(finished.history.proposals) == 40


def test_score_model_predicts_known_and_unknown_architectures(finished):
    method, history = method_of(finished), finished.history
    model = ScoreModel(method.setup, len(history))
    assert model(history.states).tolist() == pytest.approx(history.scores, abs=0.02)
    states = method.env.initial_states(1)
    states.node_attr[:] = 1
    assert history.position(int(method.env.identify(states))) is None
    assert float(model(states)) == pytest.approx(0.57, abs=0.05)


@pytest.mark.slow
def test_predicted_scores_have_no_noise_of_one_evaluation(macro):
    loop, _ = run_search(build_components([*macro, "search.surrogate.name=gaussian_process", "budget.evaluations=12"]))
    method, history = method_of(loop), loop.history
    prediction = method.predicted(history.states)
    assert prediction is not None
    error = (prediction.mean - torch.tensor(history.scores).double()).abs()
    assert float(error.mean()) < 0.1
    assert prediction.noise > 0
    assert bool((prediction.latent_std < prediction.std).all())


def test_first_design_is_spread_and_the_same_in_any_batches():
    components = build("surrogate", RIDGE, "search.batch_size=5", "search.num_initial=10", "budget.evaluations=40")
    method, history = method_of(components.search), components.search.history
    whole = method.propose(1, 10).states
    descriptors = Descriptors(method.env, seed=0)
    random = descriptors(uniform_states(method.env, 10, generator=torch.Generator().manual_seed(0)))
    assert torch.pdist(descriptors(whole)).min() > torch.pdist(random).min()
    first = method.propose(1, 5).states
    history.start(first)
    assert torch.equal(
        method.env.identify(GraphStates.cat([first, method.propose(2, 5).states])), method.env.identify(whole)
    )


def test_pool_has_the_acquisition_of_unknown_candidates(finished):
    method = method_of(finished)
    pool = method.pool(1)
    codes = method.env.identify(pool.states)
    assert len(pool) == len(codes.unique()) > 100
    assert bool(finished.history.is_unknown(codes).all())
    prediction = method.surrogate.predict(method.surrogate.encode(pool.states))
    best = float(method.surrogate.warp(torch.tensor([max(finished.history.scores)])))
    standard = (prediction.mean - best) / prediction.std
    normal = torch.distributions.Normal(0.0, 1.0)
    improvement = prediction.std * (normal.log_prob(standard).exp() + standard * normal.cdf(standard))
    assert torch.allclose(pool.log_values.exp(), improvement, atol=1e-9)


def test_wrong_surrogate_falls_back_and_says_so():
    wrong = "search.surrogate.name=tests.search.toy_surrogates:Reversed"
    loop, steps = run_search(build("surrogate", wrong, "search.batch_size=4", "budget.evaluations=40"))
    assert steps[-1].metrics["fallback"] == 1
    assert steps[-1].metrics["surrogate_explained"] < 0
    pool = method_of(loop).pool(1)
    assert float(pool.log_values.abs().max()) == 0
    assert 0 < len(pool) <= 81 - 40


def test_random_candidates_replace_an_empty_pool(monkeypatch):
    options = ("search.num_initial=4", "search.batch_size=4")
    loop, _ = run_search(build("surrogate", RIDGE, *options, "budget.evaluations=8"))
    method = method_of(loop)
    monkeypatch.setattr(method, "pool", lambda call: Pool(method.env.initial_states(0), torch.empty(0), torch.empty(0)))
    states = method.propose(9, 3).states
    assert len(states) == 3
    assert bool(loop.history.is_unknown(method.env.identify(states)).all())


def test_failed_evaluations_count_with_the_floor_and_refused_ones_do_not(macro):
    components = build_components([*macro, "search.num_initial=2"])
    method, history = method_of(components.search), components.search.history
    states = method.env.initial_states(3)
    for value in range(3):
        states.node_attr[value] = value
    results = zip((0.5, 0.01, 0.01), ("ok", "failed", "refused"), strict=True)
    evaluations = [Evaluation(s, EvaluationStatus(name), 0.0, "", None, {}, False) for s, name in results]
    history.add(states, evaluations)
    method.observe(Results(1, states, [], evaluations))
    positions, observed = method.observations()
    assert (positions.tolist(), observed.tolist()) == ([0, 1], [0.5, 0.01])


def test_search_of_a_space_with_few_architectures_ends():
    components = build_components(
        [
            *("task=hypergrid", "env.name=hypergrid", "env.hypergrid.num_dims=2", "env.hypergrid.side=3"),
            *("evaluation.floor_score=0.01", "search.method=surrogate", "search.batch_size=5"),
            "budget.evaluations=100",
        ]
    )
    loop, _ = run_search(components)
    assert len(loop.history) == 9
    assert loop.end == "the method has no further proposals"
