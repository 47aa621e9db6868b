"""Contract of every search method, on a space of 81 settings and on computation graphs."""

import io
from typing import Any

import pytest
import torch

from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.mdp.action import GraphActionType
from gflownet.run.trainer import GFNTrainer
from gflownet.search import loop as loop_module
from gflownet.search.config import GFLOWNET, SEARCH_METHODS
from gflownet.search.loop import SearchLoop
from gflownet.search.method import Candidates
from tests.fast_cases import slow_except
from tests.search.searches import (
    RIDGE,
    FailsOrRefuses,
    UnorderedEvaluator,
    build,
    dispatcher,
    method_of,
    proposals,
    run_search,
)
from tests.toy_tasks import RewardsHiddenNodes

# Small populations, so that each method does more than propose random architectures.
OPTIONS = {"evolution": ["search.options.population=4", "search.options.tournament=2"]}
SHARED = ("search.num_initial=4", "search.proposals.updates_per_evaluation=0.5", "search.proposals.num_mutations=8")
GRAPHS = (
    f"task=tests.toy_tasks:{RewardsHiddenNodes.__name__}",
    "env.name=computation_graph",
    "env.max_hidden_nodes=2",
    "env.max_edges=4",
    "model.name=graph_transformer",
)
STATUSES = (f"task=tests.search.searches:{FailsOrRefuses.__name__}",)


METHODS = [name for name in SEARCH_METHODS if name != GFLOWNET]


@pytest.fixture(params=METHODS)
def method(request) -> str:
    return request.param


def searching(method: str, *overrides: str) -> GFNTrainer:
    return build(method, *SHARED, *OPTIONS.get(method, ()), *overrides)


def proposed(loop: SearchLoop) -> list[tuple[str, float]]:
    return [(proposal.hash, proposal.score) for proposal in loop.history.proposals]


def stored(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def comparable(state: Any) -> Any:
    if isinstance(state, dict):
        times = {key for key in state if "seconds" in str(key) or key == "training_s"}
        return {key: comparable(value) for key, value in state.items() if key not in times}
    if isinstance(state, list | tuple):
        return [comparable(value) for value in state]
    return state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.mark.parametrize("space", [(), pytest.param(GRAPHS, marks=pytest.mark.slow)], ids=["places", "graphs"])
def test_proposals_are_terminal_and_repeatable(method, space):
    trainer, twin, other = (searching(method, f"seed={seed}", RIDGE, *space) for seed in (0, 0, 1))
    first, second = (Candidates.of(each.search.method.propose(1, 4)).states for each in (trainer, other))
    assert not first.equals(second).all()
    for states, same in zip(proposals(trainer, 4, batch_size=2), proposals(twin, 4, batch_size=2), strict=True):
        assert 1 <= len(states) <= 2
        assert bool(trainer.env.forward_masks(states).masks[GraphActionType.Stop].all())
        assert bool(states.equals(same).all()), "the seed decides"
    first = Candidates.of(method_of(trainer)[0].propose(5, 2)).states
    state = comparable(method_of(trainer)[0].state_dict())
    assert bool(first.equals(Candidates.of(method_of(trainer)[0].propose(5, 2)).states).all())
    assert comparable(method_of(trainer)[0].state_dict()) == state, "a repeated proposal leaves the same state"


def state_of(trainer: GFNTrainer) -> Any:
    state = comparable(trainer.state_dict())
    return {key: value for key, value in state.items() if key not in ("run_id", "random_state")}


@pytest.mark.parametrize("name", SEARCH_METHODS)
def test_candidates_in_order_depend_on_no_timing(name):
    options = ("budget.evaluations=8", "search.batch_size=2", "search.width=4", "algo.num_from_policy=2", RIDGE)
    run, interrupted, resumed = (searching(name, *options, *STATUSES) for _ in range(3))
    run_search(run, UnorderedEvaluator(run.task, seed=0))
    stopped = UnorderedEvaluator(interrupted.task, seed=2, num_until_stop=5)
    with pytest.raises(EvaluationStoppedError):
        list(interrupted.search.steps(stopped))
    resumed.load_state_dict(stored(interrupted.state_dict()))
    stopped.num_until_stop = 10**6  # it knows what is evaluated, as a store does
    run_search(resumed, stopped)
    assert state_of(resumed) == state_of(run)


# The policy of the slow one proposes in the other tests of its method.
@pytest.mark.parametrize("method", slow_except(["random", "evolution", "local_search", "surrogate"], METHODS))
def test_search_ends_when_the_space_is_exhausted(method, monkeypatch):
    monkeypatch.setattr(loop_module, "_MAX_REPEATS", 10)
    places = "env.choices.places={c: [0], d: [0]}"  # 9 settings are left
    loop, _ = run_search(searching(method, places, "budget.evaluations=200", "search.batch_size=3", RIDGE))
    assert loop.end
    assert 1 <= loop.history.num_new <= 9
    assert not loop.history.in_flight


@pytest.mark.parametrize("method", slow_except(["random"], METHODS))
def test_asynchronous_search_spends_its_budget_on_candidates_that_are_not_refused(method, tmp_path):
    options = (
        "asynchronous.max_in_flight=4",
        "search.batch_size=2",
        "budget.evaluations=12",
        "search.train_sampler=false",
        RIDGE,
    )
    trainer = searching(method, *options, *STATUSES)
    loop = trainer.search
    with dispatcher(trainer, tmp_path) as evaluator:
        list(loop.steps(evaluator))
    statuses = loop.history.statuses
    assert loop.history.num_new == 12
    assert not loop.history.in_flight
    assert loop.end == "12 evaluations are done"
    assert EvaluationStatus.REFUSED not in statuses
    assert {EvaluationStatus.OK, EvaluationStatus.FAILED} == set(statuses)
