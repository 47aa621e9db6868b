"""Hard caps on measured metrics: floor score, measured objectives, and the best rows."""

import math

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.evaluator import best_within, evaluation_of, exceeded
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore
from tasks.digits import DigitsTask
from tests.evaluation.candidates import classifier_graph, config_with
from tests.evaluation.stub_rows import record
from tests.toy_tasks import RewardsHiddenNodes

LIMITS = {"latency": 2.0, "energy": 5.0}


def test_exceeded_is_the_first_metric_above_its_limit():
    assert exceeded({"latency": 2.0, "energy": 5.0, "other": 9.0}, LIMITS) is None
    assert exceeded({"latency": 3.0, "energy": 6.0}, LIMITS) == "latency"
    assert exceeded({"latency": 1.0, "energy": math.nan}, LIMITS) == "energy"
    with pytest.raises(UserError, match=r"^evaluation.constraints.energy: expected a metric .* reports, latency$"):
        exceeded({"latency": 1.0}, LIMITS)


def test_best_within_leaves_out_rows_above_a_limit(tmp_path):
    store = EvaluationStore(tmp_path / "rows.sqlite", context="{}")
    for index in range(6):
        store.add([record(f"{index}", score=index / 10, metrics={"latency": float(index), "energy": 1.0})])
    assert [row.score for row in best_within(store, 2, LIMITS)] == [0.2, 0.1]
    assert [row.score for row in best_within(store, 2, {})] == [0.5, 0.4]


def test_evaluation_above_a_limit_has_the_floor_score():
    task = RewardsHiddenNodes(config_with("evaluation.constraints.latency=2"))
    slow, fast = (record("a", metrics={"latency": value}) for value in (2.5, 2.0))
    evaluation = evaluation_of(slow, task=task, cached=False)
    assert (evaluation.score, evaluation.infeasible_score) == (task.config.evaluation.floor_score, 0.5)
    assert evaluation.status is EvaluationStatus.OK
    assert evaluation_of(fast, task=task, cached=False).infeasible_score is None
    failed = record("b", score=0.05, status=EvaluationStatus.FAILED)
    assert evaluation_of(failed, task=task, cached=False).infeasible_score is None


def test_metrics_with_a_limit_are_measured():
    options = ("task=digits", "evaluation.num_epochs=1", "evaluation.constraints.parameters=700")
    task = DigitsTask(config_with(*options))
    assert task.measured_objectives == ("parameters",)
    score = task.evaluate(classifier_graph(), seed=0)
    assert score.metrics["parameters"] == score.num_parameters
    assert task.chosen_objectives == ()


@pytest.mark.parametrize("value", ["[latency]", "{latency: -1}", "{latency: fast}"])
def test_constraints_of_a_wrong_form_raise(value):
    with pytest.raises(ValueError, match=r"^evaluation.constraints: expected"):
        RewardsHiddenNodes(config_with(f"evaluation.constraints={value}"))
