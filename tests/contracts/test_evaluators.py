"""Contract of every evaluator backend: exact deduplication, recorded failures, seeds, the meaning of `cached`."""

import math
import re
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import Evaluator
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore
from gflownet.evaluation.task import Score
from gflownet.training.random_states import candidate_seed
from tests.evaluation.candidates import StubCandidate, StubTask, config_with

RUN_SEED = 5
OK, FAILED = EvaluationStatus.OK, EvaluationStatus.FAILED
AnyScore: Any = Score  # filled in as tasks do, with values of any type


class TwoArgumentError(Exception):
    """An exception that its args cannot rebuild."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.fixture
def store(tmp_path):
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        yield store


@pytest.fixture
def build(store):
    def build_evaluator(task: StubTask, run: str = "") -> Evaluator:
        config = config_with().evaluation
        evaluator = Dispatcher(task, store, InlineExecutor(task), config=config, seed=RUN_SEED, run=run)
        return stack.enter_context(closing(evaluator))

    with ExitStack() as stack:
        yield build_evaluator


def candidates(*keys: str) -> list[StubCandidate]:
    return [StubCandidate(key) for key in keys]


def test_results_come_in_order_and_are_stored(build, store):
    task = StubTask({"a": 0.25, "b": 0.75})
    evaluations = build(task).evaluate(candidates("b", "a"), step=3)
    assert [(e.score, e.status, e.error, e.cached) for e in evaluations] == [
        (0.75, OK, None, False),
        (0.25, OK, None, False),
    ]
    assert all(e.num_parameters == 7 and e.metrics == {"validation_accuracy": e.score} for e in evaluations)
    assert all(0 <= e.seconds < 60 for e in evaluations)
    row = store.find(StubCandidate("b"))
    assert (row.score, row.step, row.graph, row.hash) == (0.75, 3, '{"nodes": ["b"]}', "hash of b")


def test_twins_are_scored_once(build, store):
    task = StubTask({"a": 0.25, "b": 0.75})
    evaluator = build(task)
    first = evaluator.evaluate(candidates("a", "b", "a", "a"), step=1)
    again = evaluator.evaluate(candidates("b", "a"), step=2)
    assert [e.score for e in first + again] == [0.25, 0.75, 0.25, 0.25, 0.75, 0.25]
    assert [e.cached for e in first + again] == [False, False, True, True, True, True]
    assert ([key for key, _ in task.calls], store.count()) == (["a", "b"], 2)


def test_equal_hashes_are_no_twins(build):
    task = StubTask({"hexagon": 0.25, "two triangles": 0.75})
    pair = [StubCandidate("hexagon", "same"), StubCandidate("two triangles", "same")]
    evaluations = build(task).evaluate(pair, step=1)
    assert [(e.score, e.cached) for e in evaluations] == [(0.25, False), (0.75, False)]


def test_resumed_step_reports_the_same_as_the_interrupted_one(build):
    outcomes = {"old": 0.1, "a": 0.25, "b": 0.75, "later": 0.9}
    build(StubTask(outcomes)).evaluate(candidates("old"), step=1)
    batch = candidates("a", "old", "b", "a")
    before = build(StubTask(outcomes)).evaluate(batch, step=2)
    build(StubTask(outcomes)).evaluate(candidates("later"), step=3)
    task = StubTask(outcomes)
    resumed = build(task)
    assert resumed.evaluate(batch, step=2) == before
    assert [e.cached for e in before] == [False, True, False, True]
    # The checkpoint was older than the store: a score of step 3 counts as new in steps 2 and 3.
    assert [resumed.evaluate(candidates("later"), step=step)[0].cached for step in (2, 3, 4)] == [False, False, True]
    assert task.calls == []


def test_scores_of_another_run_are_cached_at_any_step(build, store):
    outcomes = {"a": 0.25, "b": 0.75}
    build(StubTask(outcomes), run="first").evaluate(candidates("a"), step=5)
    task = StubTask(outcomes)
    second = build(task, run="second")
    assert [[e.cached for e in second.evaluate(candidates("a", "b"), step=step)] for step in (1, 5, 9)] == [
        [True, False],
        [True, True],
        [True, True],
    ]
    assert [key for key, _ in task.calls] == ["b"]
    assert [row.run for row in map(store.find, candidates("a", "b"))] == ["first", "second"]


FAILURES: list[tuple[Any, str]] = [
    (math.nan, "expected a finite score, got nan"),
    (1e300, r"expected a score in \[0, 1e\+06\], got 1e\+300"),
    (-math.inf, "expected a finite score, got -inf"),
    (-0.25, r"expected a score in \[0, 1e\+06\], got -0\.25"),
    (np.float32(np.nan), "expected a finite score, got nan"),
    ("good", "score: expected a number, got 'good'"),
    ("0.5", "score: expected a number, got '0.5'"),
    (True, "score: expected a number, got True"),
    (np.bool_(True), r"score: expected a number, got .*True.*"),
    (None, "score: expected a number, got None"),
    (torch.zeros(2), "score: expected a number, got Tensor"),
    (10**400, r"score: expected a number, got 1000+\.\.\.0+"),
    (RuntimeError("no\nluck"), r"RuntimeError: no luck \(candidates\.py:\d+\)"),
    (ValueError(), r"ValueError: \(candidates\.py:\d+\)"),
    (TwoArgumentError("a", "b"), r"TwoArgumentError: a b \(candidates\.py:\d+\)"),
]


def test_failure_is_recorded_with_its_reason_and_the_run_goes_on(build, store):
    bad = {f"bad {number}": outcome for number, (outcome, _) in enumerate(FAILURES)}
    task, floor = StubTask({**bad, "good": 0.75}), config_with().evaluation.floor_score
    *failed, good = build(task).evaluate(candidates(*bad, "good"), step=1)
    assert (good.score, good.status) == (0.75, OK)
    for key, evaluation, (_, reason) in zip(bad, failed, FAILURES, strict=True):
        row = store.find(StubCandidate(key))
        assert (evaluation.score, evaluation.status) == (row.score, row.status) == (floor, FAILED)
        assert row.error == evaluation.error
        assert re.fullmatch(reason, row.error)
    assert [row.key for row in store.top(5)] == ["good"]
    for again in build(task).evaluate(candidates(*bad), step=2):
        assert (again.status, again.score, again.cached) == (FAILED, floor, True)


def test_failed_score_keeps_metrics_and_size(build):
    (evaluation,) = build(StubTask({"bad": math.nan})).evaluate(candidates("bad"), step=1)
    assert evaluation.num_parameters == 7
    assert math.isnan(evaluation.metrics["validation_accuracy"])


def test_size_out_of_range_fails_alone(build, store):
    wrong: tuple[Any, ...] = (2**63, -1, True, 1.5, math.inf)
    sizes = {str(size): Score(0.5, size) for size in wrong} | {"'7'": AnyScore(0.5, "7")}
    task = ScoresTask({**sizes, "good": Score(0.75, 2**63 - 1)})
    *failed, good = build(task).evaluate(candidates(*sizes, "good"), step=1)
    assert ({each.status for each in failed}, good.status) == ({FAILED}, OK)
    assert all(store.find(StubCandidate(got)).error.endswith(f"got {got}") for got in sizes)
    assert store.find(StubCandidate("good")).num_parameters == 2**63 - 1


def test_interrupt_passes_and_keeps_finished_records(build, store):
    task = StubTask({"a": 0.25, "b": KeyboardInterrupt(), "c": 0.75})
    with pytest.raises(KeyboardInterrupt):
        build(task).evaluate(candidates("a", "b", "c"), step=1)
    assert (store.count(), store.find(StubCandidate("a")).score) == (1, 0.25)


def test_seed_belongs_to_the_graph(build):
    task = StubTask({"a": 0.25, "b": 0.75, "c": 0.5})
    build(task).evaluate(candidates("c", "a", "b"), step=1)
    assert task.calls == [(key, candidate_seed(RUN_SEED, f"hash of {key}")) for key in "cab"]


def test_no_candidates_are_no_work(build):
    assert build(StubTask({})).evaluate([], step=1) == []


class TogetherTask(StubTask):
    def evaluate_many(self, graphs, *, seeds):
        self.calls.append(("+".join(graph.key for graph in graphs), len(seeds)))
        return [
            Score(self.outcomes[graph.key]) if graph.key in self.outcomes else KeyError(graph.key) for graph in graphs
        ]


def test_task_may_score_all_fresh_candidates_together(build):
    task = TogetherTask({"a": 0.25, "b": 0.75})
    evaluations = build(task).evaluate(candidates("a", "gone", "a", "b"), step=1)
    assert [(e.score, e.status) for e in evaluations] == [(0.25, OK), (0.05, FAILED), (0.25, OK), (0.75, OK)]
    assert evaluations[1].error == "KeyError: 'gone'"
    assert task.calls == [("a+gone+b", 3)]


def test_numbers_of_any_make_are_stored_as_python_s_own(build, store):
    values = dict(zip("abcd", (0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5)), strict=True))
    loss = np.float32(np.inf)
    task = ScoresTask({k: AnyScore(v, np.int64(7), {"accuracy": v, "loss": loss}) for k, v in values.items()})
    evaluations = build(task).evaluate(candidates(*values), step=1)
    for kept in (*evaluations, *map(store.find, candidates(*values))):
        assert (kept.score, kept.status, kept.num_parameters) == (0.5, OK, 7)
        assert kept.metrics["accuracy"] == 0.5
        assert [type(x) for x in (kept.score, kept.num_parameters, *kept.metrics.values())] == [
            float,
            int,
            float,
            float,
        ]


class FailsInWords(StubTask):
    def words(self, candidate):
        raise KeyError("words")


@pytest.mark.parametrize("kind", [StubTask, FailsInWords])
def test_scores_of_zero_and_candidates_without_words_are_no_failures(kind, build):
    (evaluation,) = build(kind({"a": 0})).evaluate(candidates("a"), step=1)
    assert (evaluation.score, evaluation.status, evaluation.error) == (0.0, OK, None)


class ScoresTask(StubTask):
    """Returns the outcome in the table, of any type."""

    def evaluate(self, graph, *, seed):
        return self.outcomes[graph.key]


INVALID: list[tuple[Any, str]] = [
    (0.5, "ScoresTask.evaluate: expected a Score, got float"),
    (None, "ScoresTask.evaluate: expected a Score, got NoneType"),
    (AnyScore(0.5, metrics={"loss": "low"}), "metric 'loss': expected a number, got 'low'"),
    (AnyScore(0.5, metrics=[0.5]), "metrics: expected a mapping, got list"),
    (AnyScore(0.5, num_parameters="many"), "num_parameters: expected a number, got 'many'"),
]


def test_invalid_score_fails_only_its_candidate(build, store):
    bad = {f"bad {number}": outcome for number, (outcome, _) in enumerate(INVALID)}
    *failed, good = build(ScoresTask({**bad, "good": Score(0.75)})).evaluate(candidates(*bad, "good"), step=1)
    assert [(e.score, e.status, e.error) for e in failed] == [(0.05, FAILED, reason) for _, reason in INVALID]
    assert (good.score, good.status, store.count()) == (0.75, OK, len(bad) + 1)


class ForgetfulTask(StubTask):
    def evaluate_many(self, graphs, *, seeds):
        return [Score(0.5) for _ in graphs[1:]]


def test_a_task_that_forgets_a_candidate_is_an_error(build):
    with pytest.raises(ValueError, match=r"ForgetfulTask\.evaluate_many: expected 2 outcomes, got 1"):
        build(ForgetfulTask({})).evaluate(candidates("a", "b"), step=1)
