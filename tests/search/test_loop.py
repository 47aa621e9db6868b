"""The loop of a search: rounds, its end, evaluations in flight, and interrupted rounds."""

from random import Random
from types import SimpleNamespace

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.search import loop as loop_module
from gflownet.search.config import ORIGINS
from gflownet.search.loop import round_size
from tests.search.searches import RIDGE, UnorderedEvaluator, build, dispatcher, run_search

NINE_SETTINGS = "env.choices.places={c: [0], d: [0]}"

TRAINS = "task=tests.search.searches:TrainsPlaces"


def finished(folder, *overrides: str):
    trainer = build("random", *overrides)
    with dispatcher(trainer, folder) as evaluator:
        steps = list(trainer.search.steps(evaluator))
    return trainer.search, steps


def test_rounds_end_with_the_budget(tmp_path):
    options = ("budget.evaluations=12", "search.batch_size=5", "search.options.without_repeats=true")
    loop, steps = finished(tmp_path, *options)
    assert [len(step.evaluations) for step in steps] == [5, 5, 2]
    assert [step.number for step in steps] == [1, 2, 3]
    assert loop.end == "12 evaluations are done"
    assert steps[-1].metrics["num_proposals"] == 12
    assert len(loop.history) == loop.history.num_new == 12


def test_repeated_proposals_are_free(tmp_path):
    loop, steps = finished(tmp_path, NINE_SETTINGS, "budget.evaluations=8")
    assert loop.history.num_new == len(loop.history) == 8
    assert steps[-1].metrics["num_proposals"] == len(steps) > 8
    assert sum(not each.cached for step in steps for each in step.evaluations) == 8


def test_patience_ends_the_search(tmp_path):
    loop, _ = finished(tmp_path, "budget.evaluations=60", "search.patience=7")
    assert loop.end == "no better score in 7 evaluations (search.patience)"
    scores = loop.history.scores
    best = scores.index(max(scores))
    assert len(scores) - 1 - best == 7
    assert all(len(scores[:n]) - 1 - scores.index(max(scores[:n])) < 7 for n in range(1, len(scores)))


def test_patience_is_counted_after_initial_candidates_of_surrogate():
    trainer = build("surrogate", RIDGE, "budget.evaluations=16", "search.num_initial=8", "search.patience=3")
    scores = run_search(trainer)[0].history.scores
    assert len(scores) == max(scores.index(max(scores)) + 1, 8) + 3
    assert scores.index(max(scores[:8])) < 5  # otherwise the initial candidates have no effect


def test_exhausted_space_ends_an_asynchronous_search(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "_MAX_REPEATS", 30)
    loop, _ = finished(tmp_path, NINE_SETTINGS, "budget.evaluations=30", "asynchronous.max_in_flight=4")
    assert loop.end.startswith("no new architecture in ")
    assert loop.history.num_new <= 9


@pytest.mark.parametrize("max_in_flight", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_method_without_proposals_ends_after_results_in_flight(tmp_path, max_in_flight):
    options = ("search.options.without_repeats=true", f"asynchronous.max_in_flight={max_in_flight}")
    loop, _ = finished(tmp_path, NINE_SETTINGS, "budget.evaluations=30", "search.batch_size=2", *options)
    assert loop.end == "the method has no further proposals"
    assert loop.history.num_new == 9
    assert not loop.history.in_flight


def test_known_candidates_do_not_hold_back_new_ones(tmp_path):
    """Known ones are finished when they are proposed, and often fill a batch by themselves."""
    options = (TRAINS, "evaluation.executor=inline", "asynchronous.max_in_flight=12", "algo.num_from_policy=2")
    trainer = build("gflownet", *options, "num_training_steps=20")
    with dispatcher(trainer, tmp_path) as evaluator:
        ages = [step.metrics["sample_age"] for step in trainer.search.steps(evaluator)]
    assert len(ages) == 20
    assert max(ages) <= 7  # rounds between proposal and training: 12 are in flight, 2 are learned together


def test_candidates_in_flight_are_not_proposed_again(tmp_path, monkeypatch):
    options = ("budget.evaluations=20", "asynchronous.max_in_flight=2", "search.batch_size=2")
    trainer = build("random", *options)
    calls = []
    propose = trainer.search.method.propose
    monkeypatch.setattr(trainer.search.method, "propose", lambda call, num: (calls.append(call), propose(call, num))[1])
    with dispatcher(trainer, tmp_path) as evaluator:
        monkeypatch.setattr(evaluator, "_stopped", lambda: bool(calls))
        with pytest.raises(EvaluationStoppedError):
            next(trainer.search.steps(evaluator))
    state = trainer.search.state_dict()
    assert calls == [1, 2]
    assert (state["num_calls"], len(state["in_flight"])) == (2, 2)


@pytest.mark.parametrize(
    ("states", "expected"), [pytest.param(None, "GraphStates", marks=pytest.mark.slow), ("initial", "terminal states")]
)
def test_invalid_proposals_name_the_method(tmp_path, monkeypatch, states, expected):
    trainer = build("random")
    result = trainer.env.initial_states(1) if states == "initial" else None
    monkeypatch.setattr(trainer.search.method, "propose", lambda call, num: result)
    with dispatcher(trainer, tmp_path) as evaluator, pytest.raises(UserError, match=expected) as error:
        next(trainer.search.steps(evaluator))
    assert str(error.value).startswith("search.method=random: expected ")


def test_overlapped_rounds_are_proposed_before_the_last_results(monkeypatch):
    options = (RIDGE, "search.num_initial=4", "budget.evaluations=12", "search.batch_size=2", "search.width=4")
    trainer, known = build("surrogate", *options), []
    propose, history = trainer.search.method.propose, trainer.search.history

    def propose_and_note(call: int, num: int):
        known.append((len(history), len(history.in_flight)))
        return propose(call, num)

    monkeypatch.setattr(trainer.search.method, "propose", propose_and_note)
    _, steps = run_search(trainer, UnorderedEvaluator(trainer.task))
    # The first prediction waits for the first design of four; then one round is ahead.
    assert known == [(0, 0), (0, 2), (4, 0), (4, 2), (6, 2), (8, 2)]
    assert [len(step.evaluations) for step in steps] == [2] * 6
    assert [step.number for step in steps] == list(range(1, 7))


@pytest.mark.parametrize(
    ("method", "options", "rule"),
    [
        ("random", (TRAINS,), (3, 6, True)),
        ("random", (TRAINS, "search.width=2"), (3, 3, True)),
        ("random", (TRAINS, "asynchronous.max_in_flight=5"), (1, 5, False)),
        ("gflownet", (TRAINS,), (4, 4, True)),
        ("gflownet", (TRAINS, "search.width=8"), (4, 8, True)),
        ("gflownet", (TRAINS, "asynchronous.max_in_flight=3", "asynchronous.updates_per_reward=0.5"), (2, 3, False)),
    ],
)
def test_default_rule(method, options, rule):
    built = build(method, "budget.evaluations=4", "search.batch_size=3", *options).search.options
    assert (built.batch, built.width, built.in_order) == rule


@pytest.mark.parametrize(
    ("num", "places", "size"), [(75, 2, 4), (75, 1, 4), (20, 4, 4), (600, 3, 6), (600, 2, 8), (10, 16, 16), (0, 1, 1)]
)
def test_round_size_follows_counts(num, places, size):
    assert round_size(num, places=places) == size


def test_size_of_rounds_is_that_of_the_options():
    options = (RIDGE, "search.batch_size=0", "evaluation.capacity=2", "budget.evaluations=96")
    sizes = [build(*each, *options).search.options.batch for each in (("surrogate", TRAINS), ("random", TRAINS))]
    assert sizes == [4, 2]
    assert build("surrogate", *options).search.options.batch == 1, "scores that are looked up: one at a time"


@pytest.mark.parametrize("method", ["surrogate", pytest.param("surrogate_gflownet", marks=pytest.mark.slow)])
def test_times_of_evaluations_decide_no_candidates(method, monkeypatch):
    options = (TRAINS, RIDGE, "search.batch_size=0", "search.num_initial=4")
    options += ("search.proposals.updates_per_evaluation=0.5",)
    names = []
    for seed in range(2):  # of the order in which candidates finish, and of the times that the search measures
        clock = Random(seed)
        times = SimpleNamespace(process_time=lambda clock=clock: 10 * clock.random())
        monkeypatch.setattr(loop_module, "time", times)
        trainer = build(method, *options, "evaluation.capacity=2", "budget.evaluations=18")
        run_search(trainer, UnorderedEvaluator(trainer.task, seed=seed))
        names.append([proposal.hash for proposal in trainer.search.history.proposals])
    assert names[0] == names[1]


def test_metrics_count_the_origins_of_proposals():
    options = (RIDGE, "search.num_initial=4", "budget.evaluations=12", "search.batch_size=4")
    _, steps = run_search(build("surrogate", *options))
    assert [step.metrics["proposed_design"] for step in steps] == [4, 0, 0]
    assert [step.metrics["proposed_mutation"] + step.metrics["proposed_random"] for step in steps] == [0, 4, 4]
    last = steps[-1].metrics
    assert last["proposed_mutation_total"] + last["proposed_random_total"] == 8
    assert sum(last[f"proposed_{name}_best"] for name in ("design", "mutation", "random")) == 10, "of the ten best"
    assert {name.removeprefix("proposed_").removesuffix("_best") for name in last if "_best" in name} == set(ORIGINS)
    trainer = build("surrogate_gflownet", *options, "search.num_initial=8")
    last = run_search(trainer)[1][-1].metrics
    assert sum(last[f"proposed_{name}"] for name in ("mutation", "policy", "random")) == 4
    assert last["policy_updates"] == 48, "six for each of the first eight evaluations"
    assert "proposed_policy" not in run_search(build("random", "budget.evaluations=1"))[1][0].metrics


def test_resumed_search_continues_with_a_larger_budget(tmp_path):
    first, second = build("random", "budget.evaluations=4"), build("random", "budget.evaluations=9")
    for trainer, earlier in ((first, None), (second, first)):
        if earlier is not None:
            trainer.run_id = earlier.run_id
            trainer.search.load_state_dict(earlier.search.state_dict())
        with dispatcher(trainer, tmp_path) as evaluator:
            list(trainer.search.steps(evaluator))
    assert first.search.history.num_new == 4
    assert second.search.history.num_new == 9
