"""Successive halving: decisions, continued trainings, rows, resumed and asynchronous runs, options, extrapolation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import optuna
import pytest
from scipy.stats import spearmanr
from torch import nn

from gflownet.errors import UserError
from gflownet.evaluation.config import HalvingConfig
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.halving import (
    EXTRAPOLATED_SCORE,
    CurveExtrapolation,
    HalvingEvaluator,
    SuccessiveHalving,
    build_halving,
    is_stopped,
    power_law,
)
from gflownet.evaluation.job import Request
from gflownet.evaluation.racing import rank_correlation
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, EvaluationStore, Identity
from gflownet.evaluation.task import CandidateTraining, GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with, dispatcher_of, record
from tests.evaluation.test_supervised import build as build_supervised

OK, FAILED = EvaluationStatus.OK, EvaluationStatus.FAILED


class LineTraining(CandidateTraining):
    def __init__(self, slope: float, fidelity: int) -> None:
        self.fidelity, self.model = fidelity, nn.Identity()
        self.curve = tuple(slope * epoch for epoch in range(1, fidelity + 1))

    def score(self) -> Score:
        return Score(self.curve[-1], num_parameters=7)

    def test(self) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"model": {}, "epochs": self.fidelity}


class LineTask(GFNTask):
    """Trains candidates named by their slope, `0.01`, and fails those named `fails at 3`."""

    max_fidelity = 9

    def __init__(self, *overrides: str) -> None:
        super().__init__(cast(Any, config_with(*overrides)))
        self.parts: list[tuple[str, int, int]] = []  # key, first and last epoch

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        training = self._trained(graph.key, 0, self.max_fidelity)
        return training.score()

    def train_many(self, graphs, *, seeds, fidelity, schedule, states) -> Iterator[CandidateTraining | Exception]:
        assert schedule == self.max_fidelity
        for graph, state in zip(graphs, states, strict=True):
            try:
                yield self._trained(graph.key, 0 if state is None else state["epochs"], fidelity)
            except (RuntimeError, ConnectionError) as error:
                yield error

    def _trained(self, key: str, first: int, last: int) -> LineTraining:
        self.parts.append((key, first, last))
        if key.startswith("fails at ") and first < int(key.removeprefix("fails at ")) <= last:
            raise RuntimeError("diverged")
        return LineTraining(0.05 if key.startswith("fails") else float(key), last)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EvaluationStore]:
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        yield store


def evaluator_of(
    task: GFNTask, store: EvaluationStore, *, min_fidelity: int = 1, num_free: int | None = 0, **options: Any
) -> HalvingEvaluator:
    halving = SuccessiveHalving(min_fidelity, max_fidelity=task.max_fidelity, reduction=3, num_free=num_free)
    halving.restore(store)
    return HalvingEvaluator(dispatcher_of(task, store, **options), halving)


def candidates(*keys: object) -> list[Any]:
    return [StubCandidate(str(key)) for key in keys]


# Behind the first, which is the best, except for the last, which is among the best three of ten.
SLOPES = [0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.085]


def test_best_of_each_rung_are_trained_on_and_nothing_is_repeated(store):
    task = LineTask()
    evaluations = evaluator_of(task, store).evaluate(candidates(*SLOPES), step=1)
    first, second, full = ([part for part in task.parts if part[2] == end] for end in (1, 3, 9))
    assert first == [(str(slope), 0, 1) for slope in SLOPES]
    assert second == [("0.09", 1, 3), ("0.085", 1, 3)]
    assert full == [("0.09", 3, 9)]
    assert len(task.parts) == 13
    assert evaluations[0].score == pytest.approx(0.81)
    assert all(evaluation.status is OK and not evaluation.cached for evaluation in evaluations)
    rows = list(store)
    assert sorted(row.fidelity for row in rows) == [0] + [1] * 10 + [3] * 2
    assert [(row.key, row.fidelity) for row in store.top(10)] == [("0.09", 0)]
    assert all(len(row.curve) == (row.fidelity or 9) for row in rows)
    assert all(row.score == pytest.approx(float(row.key) * (row.fidelity or 9)) for row in rows)
    assert sum(map(is_stopped, rows)) == 9


def test_only_full_trainings_return_their_weights(store):
    evaluator, kept = evaluator_of(LineTask(), store), list[tuple[str, int]]()
    weights: Any = SimpleNamespace(keeps=lambda seed: seed == 0)
    weights.add = lambda record, weights: kept.append((record.key, record.fidelity))
    evaluator._dispatcher.weights = weights
    evaluator.evaluate(candidates(*SLOPES), step=1)
    assert kept == [("0.09", 0)]


def test_stopped_candidate_scores_its_extrapolation_also_when_it_comes_again(store):
    task = LineTask()
    evaluator = evaluator_of(task, store)
    first = evaluator.evaluate(candidates(*SLOPES), step=1)
    num_parts = len(task.parts)
    row = store.find_many([Identity.of(cast(Any, StubCandidate("0.05")), fidelity=1)])[0]
    assert row is not None
    assert first[4].score == row.metrics[EXTRAPOLATED_SCORE]
    again = evaluator.evaluate(candidates(*SLOPES, "0.05"), step=2)
    assert [evaluation.score for evaluation in again[:-1]] == [evaluation.score for evaluation in first]
    assert all(evaluation.cached for evaluation in again)
    assert len(task.parts) == num_parts
    assert evaluator._dispatcher.budget.num_evaluated == evaluator._dispatcher.counts["num_ok"] == 10
    assert evaluator.num_in_flight == 0


def test_extrapolated_scores_rise_with_finished_trainings(store):
    task = LineTask()
    evaluator = evaluator_of(task, store, min_fidelity=3)
    _, early = evaluator.evaluate(candidates(0.09, 0.02), step=1)
    (late,) = evaluator.evaluate(candidates(0.021), step=2)
    assert early.score <= 0.27  # the best score at that time
    assert late.score > early.score + 0.1
    assert evaluator.halving.num_stopped == 2


@pytest.mark.parametrize("end", [1, 3, 9])
def test_failure_at_any_rung_is_failed_for_good(store, end):
    task = LineTask()
    evaluator = evaluator_of(task, store)
    failing = f"fails at {end}"
    evaluations = evaluator.evaluate(candidates(failing, 0.01), step=1)
    assert [evaluation.status for evaluation in evaluations] == [FAILED, OK]
    assert evaluations[0].score == config_with().evaluation.floor_score
    num_parts = len(task.parts)
    (again,) = evaluator.evaluate(candidates(failing), step=2)
    assert (again.status, again.error, again.cached) == (FAILED, evaluations[0].error, True)
    assert len(task.parts) == num_parts
    assert store.count(FAILED) == 1


def test_other_runs_take_the_results_of_a_store(store):
    first = evaluator_of(LineTask(), store, run="a").evaluate(candidates(*SLOPES), step=1)
    task = LineTask()
    evaluations = evaluator_of(task, store, run="b").evaluate(candidates(*SLOPES), step=1)
    assert [evaluation.score for evaluation in evaluations] == [evaluation.score for evaluation in first]
    assert all(evaluation.cached for evaluation in evaluations)
    assert task.parts == []


class OfflineTask(LineTask):
    """Loses its connection at the first two rungs, as often as `num_failures`."""

    num_failures = 1

    def _trained(self, key: str, first: int, last: int) -> LineTraining:
        self.parts.append((key, first, last))
        if last < 9 and self.parts.count((key, first, last)) <= self.num_failures:
            raise ConnectionError("offline")
        return LineTraining(float(key), last)


def test_part_is_retried_after_a_transient_failure(store):
    task = OfflineTask()
    (evaluation,) = evaluator_of(task, store).evaluate(candidates(0.05), step=1)
    assert (evaluation.status, evaluation.score) == (OK, pytest.approx(0.45))
    assert task.parts == [("0.05", 0, 1), ("0.05", 0, 1), ("0.05", 1, 3), ("0.05", 1, 3), ("0.05", 3, 9)]


def test_further_seeds_and_given_fidelities_are_not_halved(store):
    task = LineTask()
    evaluator = evaluator_of(task, store)
    (graph,) = candidates(0.01)
    evaluator.complete([Request(graph, repeat=1), Request(graph, fidelity=9, schedule=9)], step=1)
    evaluator.flush()
    assert task.parts == [("0.01", 0, 9), ("0.01", 0, 9)]


def test_submitted_candidates_go_on_without_waiting(store):
    task = LineTask()
    evaluator = evaluator_of(task, store)
    futures = evaluator.submit([Request(graph) for graph in candidates(*SLOPES)], step=1)
    assert evaluator.num_in_flight == 10
    assert evaluator.advance(timeout=0) == 0  # 0.09 is promoted
    num = sum(evaluator.advance(timeout=0) for _ in range(12))
    assert num == 10
    evaluator.flush()
    assert [future.record is not None for future in futures] == [True] * 10
    assert evaluator.num_in_flight == 0


def evaluate_in_steps(evaluator: HalvingEvaluator, slopes: Sequence[float]) -> list[Evaluation]:
    return [
        evaluation
        for step in range(0, len(slopes), 8)
        for evaluation in evaluator.evaluate(candidates(*slopes[step : step + 8]), step=1 + step)
    ]


@pytest.mark.parametrize("num_jobs", [1, 7])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, num_jobs):
    chance = random.Random(num_jobs)
    slopes = [round(chance.uniform(0.001, 0.1), 6) for _ in range(24)]
    with EvaluationStore(tmp_path / "whole.sqlite") as store:
        whole = evaluator_of(LineTask(), store, run="a", num_free=None)
        expected, metrics = evaluate_in_steps(whole, slopes), whole.halving.metrics()
    checks = iter(range(1000))
    with EvaluationStore(tmp_path / "parts.sqlite") as store:
        stopped = evaluator_of(LineTask(), store, run="a", num_free=None, stopped=lambda: next(checks) >= num_jobs)
        with pytest.raises(EvaluationStoppedError):
            evaluate_in_steps(stopped, slopes)
        resumed = evaluator_of(LineTask(), store, run="a", num_free=None)
        evaluations = evaluate_in_steps(resumed, slopes)
        assert [(e.score, e.status, e.cached) for e in evaluations] == [(e.score, e.status, e.cached) for e in expected]
        assert resumed.halving.metrics() == metrics


def test_decisions_equal_optuna():
    """Optuna's pruner, which reports one epoch after the other and has no unjudged candidates."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chance = random.Random(0)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    halving = SuccessiveHalving(2, max_fidelity=54, reduction=3, num_free=0)
    assert halving.rungs == (2, 6, 18)
    num_stopped = dict.fromkeys(halving.rungs, 0)
    for number in range(120):
        trial = study.ask()
        scores = {rung: chance.choice((chance.random(), 0.5)) for rung in halving.rungs}
        for rung, score in scores.items():
            trial.report(score, rung)
            row = halving.revised(record(str(number), score=score, fidelity=rung))
            assert is_stopped(row) == trial.should_prune(), (number, rung)
            if is_stopped(row):
                num_stopped[rung] += 1
                break
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    assert all(num > 3 for num in num_stopped.values())


def test_rows_of_other_rungs_and_seeds_are_left_out():
    def row(key: str, **fields: Any) -> EvaluationRecord:
        return record(key, metrics={EXTRAPOLATED_SCORE: 0.5, "is_stopped": 0.0}, **fields)

    halving = SuccessiveHalving(1, max_fidelity=9, reduction=3, num_free=0)
    halving.restore([row("a", fidelity=2, score=0.9), row("b", fidelity=1, seed=3, score=0.9)])
    assert not is_stopped(halving.revised(record("c", fidelity=1, score=0.1)))
    assert halving.metrics() == {"num_stopped": 0.0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["halving.min_fidelity=4"], "expected less than the 4 epochs of a full training, got 4"),
        (["halving.min_fidelity=1", "objectives=[accuracy,parameters]"], "expected 0 with evaluation.objectives, .*"),
    ],
)
def test_invalid_halving_raises(overrides, message):
    task = build_supervised("num_epochs=4", *overrides)
    with pytest.raises(UserError, match=f"^evaluation.halving.min_fidelity: {message}$"):
        build_halving(task, cast(Any, task.config))


def test_halving_of_a_task_without_fidelity_raises():
    assert HalvingConfig().min_fidelity == 0
    assert build_halving(LineTask(), cast(Any, config_with())) is None
    task = LineTask("evaluation.halving.min_fidelity=1")
    task.max_fidelity = 0
    with pytest.raises(UserError, match=r"^evaluation\.halving\.min_fidelity: expected 0 with task=digits, whose "):
        build_halving(task, cast(Any, task.config))


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0, 2.0])
def test_power_law_is_exact_on_power_laws(exponent):
    curve = [0.9 - 0.5 * place**-exponent for place in (1, 2, 3, 4)]
    assert power_law(curve, 4, 27) == pytest.approx(0.9 - 0.5 * 27**-exponent, abs=1e-9)


def test_finished_trainings_reduce_the_gap_to_the_best():
    extrapolate = CurveExtrapolation(3, 27)
    extrapolate.add(0.5, 0.9)  # the best score seen
    extrapolate.add(0.7, 0.8)  # gaps 0.4 and 0.2 became 0 and 0.1
    assert extrapolate(0.3, [0.3], best=0.7) == pytest.approx((0.3 + 0.9 - 0.6 / 6) / 2)


def test_estimates_do_not_depend_on_the_order_of_finished_trainings():
    pairs = [(float(a), float(b)) for a, b in np.random.default_rng(0).random((50, 2))]
    estimates = []
    for order in (pairs, pairs[::-1], sorted(pairs)):
        extrapolate = CurveExtrapolation(3, 27)
        for pair in order:
            extrapolate.add(*pair)
        estimates.append(extrapolate(0.3, [0.1, 0.2, 0.3], best=1.0))
    assert estimates[0] == estimates[1] == estimates[2]


def test_estimates_are_finite_and_at_most_the_best():
    rng = np.random.default_rng(1)
    for _ in range(200):
        extrapolate = CurveExtrapolation(3, 27)
        scores = rng.integers(0, 4, size=(rng.integers(0, 4), 2)) / 3  # with ties and losses
        for score, final_score in scores.tolist():
            extrapolate.add(score, final_score)
        curve = (rng.integers(0, 4, size=3) / 3).tolist()
        best = max([curve[-1], *scores[:, 0].tolist()])
        assert 0 <= extrapolate(curve[-1], curve, best=best) <= max([best, *scores[:, 1].tolist()]) + 1e-12


def test_rank_correlation_equals_scipy():
    values = np.random.default_rng(2).integers(0, 6, size=(40, 2)).astype(float)
    pairs = [(a, b) for a, b in values.tolist()]
    expected, _ = spearmanr(values[:, 0], values[:, 1])
    assert rank_correlation(pairs) == pytest.approx(expected)
    assert rank_correlation(pairs[::-1]) == rank_correlation(pairs)
