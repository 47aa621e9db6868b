"""SupervisedTask: what is trained on, what is measured, and what becomes of candidates that cannot be trained."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from gflownet.evaluation.evaluator import InlineEvaluator
from gflownet.evaluation.store import EvaluationStatus, EvaluationStore
from gflownet.evaluation.supervised import Splits, SupervisedTask
from gflownet.evaluation.training import Split
from gflownet.graphs.computation_graph import NodeType
from tests.evaluation.candidates import classifier_graph, config_with

NUM_FEATURES, NUM_CLASSES = 6, 3


def examples(num: int, *, seed: int) -> Split:
    inputs = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
    return Split(inputs, inputs[:, :NUM_CLASSES].argmax(1))


class LargestOfThree(SupervisedTask):
    """Which of the first three numbers is the largest?"""

    def splits(self) -> Splits:
        return Splits(train=examples(200, seed=1), validation=examples(100, seed=2), test=examples(100, seed=3))


class PoisonedTest(LargestOfThree):
    """The same, but test data on which every model fails."""

    def splits(self) -> Splits:
        splits = super().splits()
        return replace(splits, test=Split(splits.test.inputs * torch.nan, torch.full_like(splits.test.targets, 2)))


def build(*overrides: str, task_class: type[SupervisedTask] = LargestOfThree) -> SupervisedTask:
    options = ["evaluation.num_epochs=10", "evaluation.batch_size=20", "evaluation.learning_rate=0.03"]
    return task_class(cast(Any, config_with(*options, *(f"evaluation.{override}" for override in overrides))))


def graph_of(*hidden: tuple[int, str]):
    return classifier_graph(*hidden, input_size=NUM_FEATURES, num_classes=NUM_CLASSES)


def test_sizes_follow_the_examples():
    task = build()
    assert (task.input_sizes, task.output_sizes) == ((NUM_FEATURES,), (NUM_CLASSES,))


def test_score_is_the_validation_accuracy():
    score = build().evaluate(graph_of((8, "tanh")), seed=0)
    assert score.value == score.metrics["validation_accuracy"] > 0.85
    assert score.value * 100 == pytest.approx(round(score.value * 100))  # of 100 examples
    assert 0 < score.metrics["train_loss"] < 0.5
    # Two matrices, two biases, two edge weights.
    assert score.num_parameters == NUM_FEATURES * 8 + 8 * NUM_CLASSES + 2 + 2


def test_evaluate_never_sees_test_data():
    honest, poisoned, graph = build(), build(task_class=PoisonedTest), graph_of((8, "tanh"))
    assert honest.evaluate(graph, seed=0) == poisoned.evaluate(graph, seed=0)
    assert cast(float, honest.test(graph, seed=0)) > 0.85
    assert poisoned.test(graph, seed=0) == 0.0


def test_test_measures_the_model_that_evaluate_scored():
    class TestIsValidation(LargestOfThree):
        def splits(self) -> Splits:
            splits = super().splits()
            return replace(splits, test=splits.validation)

    task, graph = build("num_epochs=2", task_class=TestIsValidation), graph_of((8, "tanh"))
    for seed in range(4):
        assert task.test(graph, seed=seed) == task.evaluate(graph, seed=seed).value


def test_seed_decides_initial_values_and_order():
    task, graph = build("num_epochs=1"), graph_of((8, "tanh"))
    losses = [task.evaluate(graph, seed=seed).metrics["train_loss"] for seed in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]


def test_order_of_the_examples_belongs_to_the_seed(monkeypatch):
    shuffles: list[int] = []

    def train(model, data, *, config, generator) -> float:
        shuffles.append(generator.initial_seed())
        return 0.0

    monkeypatch.setattr("gflownet.evaluation.supervised.train_classifier", train)
    task, graph = build(), graph_of((8, "tanh"))
    task.evaluate(graph, seed=11)
    task.test(graph, seed=12)
    assert shuffles == [11, 12]


def test_size_enters_the_score_where_asked_for():
    graph = graph_of((8, "tanh"))
    plain = build().evaluate(graph, seed=0)
    sized = build("size_weight=0.5", f"target_parameters={cast(int, plain.num_parameters) * 4}").evaluate(graph, seed=0)
    assert sized.value == pytest.approx(2 * plain.value)
    assert sized.metrics == plain.metrics


def test_projection_option_acts():
    # 3 -> 3 classes: with projection=auto the second edge is one scalar.
    sizes = {
        name: build(f"projection={name}").evaluate(graph_of((3, "tanh")), seed=0).num_parameters
        for name in ("auto", "always")
    }
    assert cast(int, sizes["always"]) - cast(int, sizes["auto"]) == 9


def test_bad_candidates_are_recorded_and_the_run_goes_on(tmp_path):
    task = build()
    invalid = graph_of((8, "tanh"))
    invalid.add_node(9, NodeType.HIDDEN, output_size=4, activation_function="wiggle")
    invalid.add_edge(0, 9)
    invalid.add_edge(9, 1)
    with EvaluationStore(tmp_path / "x.sqlite") as store:
        evaluator = InlineEvaluator(task, store, config=task.config.evaluation, seed=0)
        bad, good = evaluator.evaluate([invalid, graph_of((8, "tanh"))], step=1)
    assert (bad.status, good.status) == (EvaluationStatus.FAILED, EvaluationStatus.OK)
    assert "wiggle" in cast(str, bad.error)
    assert bad.score < good.score


def test_diverging_candidate_is_recorded(tmp_path):
    task = build("learning_rate=1e6")
    with EvaluationStore(tmp_path / "x.sqlite") as store:
        evaluator = InlineEvaluator(task, store, config=task.config.evaluation, seed=0)
        (evaluation,) = evaluator.evaluate([graph_of((8, "tanh"))], step=1)
        assert store.count(EvaluationStatus.FAILED) == 1
    assert (evaluation.score, evaluation.status) == (task.config.evaluation.floor_score, EvaluationStatus.FAILED)
    assert "CandidateDivergedError: epoch 1: expected a training loss <= 1000, got" in cast(str, evaluation.error)
