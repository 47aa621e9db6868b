"""SupervisedTask: training data, measured objectives, and candidates that cannot be trained."""

import re
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from gflownet.config import load_config
from gflownet.evaluation.candidates.supervised import MAX_GROUP_SIZE, Splits, SupervisedTask
from gflownet.evaluation.candidates.trainer import CandidateDivergedError, Split, continue_trainings
from gflownet.evaluation.execution import restored, run_job
from gflownet.evaluation.job import Job, Outcome
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore
from gflownet.evaluation.task import Score
from gflownet.graphs.canonical import Candidate
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.run.trainer import GFNTrainer
from gflownet.translation import to_pytorch_model
from tests.evaluation.candidates import classifier_graph, config_with, dispatcher_of
from tests.oracles.training import score_one_by_one

NUM_FEATURES, NUM_CLASSES = 6, 3


def examples(num: int, *, seed: int) -> Split:
    inputs = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
    return Split(inputs, inputs[:, :NUM_CLASSES].argmax(1))


class LargestOfThree(SupervisedTask):
    def splits(self) -> Splits:
        return Splits(train=examples(200, seed=1), validation=examples(100, seed=2), test=examples(100, seed=3))


class PoisonedTest(LargestOfThree):
    """The same, but test data with wrong classes."""

    def splits(self) -> Splits:
        splits = super().splits()
        return replace(splits, test=Split(splits.test.inputs, (splits.test.targets + 1) % NUM_CLASSES))


def build(*overrides: str, task_class: type[SupervisedTask] = LargestOfThree) -> SupervisedTask:
    options = ["evaluation.num_epochs=10", "evaluation.batch_size=20", "evaluation.learning_rate=0.03"]
    return task_class(cast(Any, config_with(*options, *(f"evaluation.{override}" for override in overrides))))


def graph_of(*hidden: tuple[int, str]):
    return classifier_graph(*hidden, input_size=NUM_FEATURES, num_classes=NUM_CLASSES)


def with_aggregation(name: str, activation: str = "tanh", **attributes: Any) -> ComputationGraph:
    """A diamond: the output aggregates two hidden nodes and the input."""
    graph = ComputationGraph()
    graph.add_node(0, NodeType.INPUT, output_size=NUM_FEATURES)
    graph.add_node(1, NodeType.OUTPUT, output_size=NUM_CLASSES, attributes={"aggregation": name, **attributes})
    for node in (2, 3):
        graph.add_node(node, NodeType.HIDDEN, output_size=node + 2, activation_function=activation)
        graph.add_edge(0, node)
        graph.add_edge(node, 1)
    graph.add_edge(0, 1)
    return graph


def explosive() -> ComputationGraph:
    """A graph whose first logits are in the millions."""
    graph = ComputationGraph()
    graph.add_node(0, NodeType.INPUT, output_size=NUM_FEATURES)
    graph.add_node(1, NodeType.OUTPUT, output_size=NUM_CLASSES)
    graph.add_edge(0, 1, weight=1e6)
    return graph


def remembering() -> ComputationGraph:
    """A graph with state, which only autograd trains."""
    graph = graph_of((8, "tanh"))
    graph.add_edge(2, 2, attributes={"is_recurrent": True})
    return graph


# Direct and not direct, small and large, one structure twice.
ZOO = [
    graph_of((8, "tanh")),
    with_aggregation("attention"),
    with_aggregation("max", "relu"),
    graph_of((33, "gelu"), (5, "sigmoid")),
    with_aggregation("moe"),
    with_aggregation("concat"),
    remembering(),
    graph_of((8, "tanh")),
    graph_of(),
]


class InDoublePrecision(LargestOfThree):
    def splits(self) -> Splits:
        splits = super().splits()
        parts = (splits.train, splits.validation, splits.test)
        return Splits(*(Split(part.inputs.double(), part.targets) for part in parts))


@pytest.mark.parametrize("task_class", [LargestOfThree, InDoublePrecision])
@pytest.mark.parametrize("projection", ["auto", "always"])
def test_translation_settings_rebuild_the_scored_model(task_class, projection):
    task = build(f"projection={projection}", "num_epochs=1", task_class=task_class)
    graph = graph_of((4, "relu"), (4, "relu"))
    score = task.evaluate(graph, seed=0)
    model = to_pytorch_model(graph.with_translation(task.translation_settings))
    assert sum(parameter.numel() for parameter in model.parameters()) == score.num_parameters
    assert next(model.parameters()).dtype == task.splits().train.inputs.dtype


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
    assert cast(float, poisoned.test(graph, seed=0)) < 0.15


def test_test_measures_the_model_that_evaluate_scored():
    class TestIsValidation(LargestOfThree):
        def splits(self) -> Splits:
            splits = super().splits()
            return replace(splits, test=splits.validation)

    task, graph = build("num_epochs=2", task_class=TestIsValidation), graph_of((8, "tanh"))
    for seed in range(2):
        assert task.test(graph, seed=seed) == task.evaluate(graph, seed=seed).value


def test_group_scores_equal_single_training():
    task = build("num_epochs=3", task_class=InDoublePrecision)
    seeds = range(3, 3 + len(ZOO))
    for graph, seed, outcome in zip(ZOO, seeds, task.evaluate_many(ZOO, seeds=seeds), strict=True):
        score = cast(Score, outcome)
        expected = score_one_by_one(graph, task.splits(), config=task.config.evaluation, seed=seed)
        assert score.metrics["validation_accuracy"] == expected[0]
        assert score.metrics["train_loss"] == pytest.approx(expected[1], abs=1e-9)


def test_a_candidate_scores_the_same_to_the_bit_in_any_company(monkeypatch):
    task, seeds, state = build("num_epochs=1"), range(5, 5 + len(ZOO)), torch.get_rng_state()
    alone = [task.evaluate(graph, seed=seed) for graph, seed in zip(ZOO, seeds, strict=True)]
    assert task.evaluate_many(ZOO, seeds=seeds) == alone
    assert task.evaluate_many(ZOO[::-1], seeds=seeds[::-1]) == alone[::-1]
    crowd = task.evaluate_many(ZOO * 4, seeds=[*seeds] * 4)  # more than are trained together
    assert len(crowd) > 2 * MAX_GROUP_SIZE
    assert crowd == alone * 4
    monkeypatch.setattr("gflownet.evaluation.candidates.supervised.MAX_GROUP_BYTES", 1)
    assert task.evaluate_many(ZOO, seeds=seeds) == alone
    assert task.evaluate_many([], seeds=[]) == []
    assert torch.equal(state, torch.get_rng_state())


def test_failures_keep_their_place_and_do_not_affect_others():
    task = build("num_epochs=2")
    narrow = classifier_graph((8, "tanh"), input_size=NUM_FEATURES - 1, num_classes=NUM_CLASSES)
    invalid = graph_of((8, "wiggle"))
    graphs = [invalid, ZOO[0], explosive(), narrow, ZOO[1]]
    outcomes = task.evaluate_many(graphs, seeds=range(5))
    assert [type(outcome) for outcome in outcomes] == [ValueError, Score, CandidateDivergedError, ValueError, Score]
    assert str(outcomes[3]) == "expected a graph from 6 features to 3 classes, got 5 to 3"
    assert outcomes[1] == task.evaluate(ZOO[0], seed=1)
    assert outcomes[4] == task.evaluate(ZOO[1], seed=4)
    for place in (0, 2, 3):
        failure = cast(Exception, outcomes[place])
        for method in (task.evaluate, task.test):
            with pytest.raises(type(failure), match=re.escape(str(failure))):
                method(graphs[place], seed=place)


def test_one_that_breaks_the_training_of_its_group_fails_alone(monkeypatch):
    def train(trainings, *args, **kwargs):
        if any(isinstance(getattr(each.model, "proj_2_3", None), nn.Module) for each in trainings):
            raise MemoryError("too large")
        return continue_trainings(trainings, *args, **kwargs)

    task = build("num_epochs=1")
    graphs = [graph_of((8, "tanh")), graph_of((8, "tanh"), (4, "relu")), graph_of((5, "tanh"))]
    expected = task.evaluate_many(graphs, seeds=range(3))
    monkeypatch.setattr("gflownet.evaluation.candidates.supervised.continue_trainings", train)
    outcomes = task.evaluate_many(graphs, seeds=range(3))
    assert isinstance(outcomes[1], MemoryError)
    assert (outcomes[0], outcomes[2]) == (expected[0], expected[2])


def trained(task: SupervisedTask, graphs: list[ComputationGraph], *fidelities: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for fidelity in fidelities:
        job = Job(
            cast(tuple[Candidate, ...], tuple(graphs)),
            tuple(range(7, 7 + len(graphs))),
            fidelity=fidelity,
            schedule=fidelities[-1],
            trainings=tuple(outcome.training for outcome in outcomes),
            saves_training=True,
            tests=True,
        )
        outcomes = run_job(task, job)
    return outcomes


def assert_same_training(first: Outcome, other: Outcome) -> None:
    assert (first.status, first.error) == (other.status, other.error)
    assert (first.score, first.curve, first.test) == (other.score, other.curve, other.test)
    one, two = restored(first.training), restored(other.training)
    assert one is not None
    assert two is not None
    for name, value in one["model"].items():
        assert torch.equal(value, two["model"][name]), name


def test_trainings_of_different_epochs_share_a_job():
    task = build("num_epochs=4")
    graphs = ZOO[:3]
    states = [restored(trained(task, graphs[:1], 1)[0].training), None]
    states.append(restored(trained(task, [graphs[0], graphs[1], graphs[2]], 3)[2].training))
    results = list(task.train_many(graphs, seeds=(7, 8, 9), fidelity=4, schedule=4, states=states))
    expected = [outcome.score for outcome in trained(task, graphs, 4)]
    assert [result.score() for result in results if not isinstance(result, Exception)] == expected


def test_dropout_continues_with_the_training():
    task = build("num_epochs=4", "learning_rate=0.01")
    graph = with_aggregation("attention", dropout_p=0.5)
    (full,), (parts,), (plain,) = (
        trained(task, [candidate], *fidelities)
        for candidate, fidelities in ((graph, (4,)), (graph, (1, 2, 4)), (with_aggregation("attention"), (4,)))
    )
    assert full.status is EvaluationStatus.OK
    assert_same_training(full, parts)
    assert full.score != plain.score


def test_cost_equals_the_model_and_allocates_nothing():
    task = build("num_epochs=1")
    for graph in ZOO:
        score = task.evaluate(graph, seed=0)
        cost = task.cost(graph)
        assert cost is not None
        assert cost.num_parameters == score.num_parameters
        assert cost.flops > 0
    wide = graph_of((10**6, "tanh"), (10**6, "tanh"))
    cost = task.cost(wide)
    assert cost is not None
    assert cost.num_parameters > 10**12
    with pytest.raises(ValueError, match="wiggle"):
        task.cost(graph_of((8, "wiggle")))


def test_size_weight_scales_the_score():
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


ALL_OBJECTIVES = "objectives=[accuracy,parameters,flops,latency]"


def test_objectives_are_measured_in_their_own_units():
    graph = graph_of((5, "tanh"), (4, "relu"))
    plain = build().evaluate(graph, seed=1)
    several = build(ALL_OBJECTIVES).evaluate(graph, seed=1)
    assert several.value == plain.value
    assert several.metrics["accuracy"] == plain.metrics["validation_accuracy"]
    assert several.metrics["parameters"] == several.num_parameters == plain.num_parameters
    # Multiply-adds of the three matrices count twice; a weight per edge, a bias per node and an activation once each.
    matrices = 2 * (NUM_FEATURES * 5 + 5 * 4 + 4 * NUM_CLASSES)
    assert several.metrics["flops"] == matrices + 2 * (5 + 4 + NUM_CLASSES) + 5 + 4
    assert 1e-7 < several.metrics["latency"] < 10
    assert several.metrics.keys() - plain.metrics.keys() == {"accuracy", "parameters", "flops", "latency"}


def test_target_of_latency_is_the_median_of_random_architectures():
    options = ("task=tests.evaluation.test_supervised:LargestOfThree", "evaluation.objectives=[accuracy,latency]")
    trainer = GFNTrainer(load_config(None, [*options, "log_dir=unused"]))
    target = trainer.config.evaluation.target_latency
    assert trainer.chosen_config.evaluation.target_latency == target
    assert 1e-7 < target < 0.1
    assert trainer.task.utility("latency", target) == 0.5
    given = GFNTrainer(load_config(None, [*options, "log_dir=unused", "evaluation.target_latency=3"]))
    assert given.task.utility("latency", 9.0) == 0.25


def test_latency_is_measured_once_and_kept(tmp_path):
    task, graph = build(ALL_OBJECTIVES), graph_of((4, "relu"))
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        evaluator = dispatcher_of(task, store)
        (first,), (again,) = (evaluator.evaluate([graph.copy()], step=step) for step in (1, 2))
    assert again.cached
    assert first.utilities == again.utilities == task.utilities(Score(first.score, metrics=first.metrics))
    assert len(first.utilities) == 4


class WithoutFlops(LargestOfThree):
    def evaluate_many(self, graphs, *, seeds):
        for outcome in super().evaluate_many(graphs, seeds=seeds):
            assert isinstance(outcome, Score)
            yield replace(outcome, metrics={"accuracy": 0.5})


def test_a_candidate_without_an_objective_is_a_failure_of_no_utility(tmp_path):
    task = build("objectives=[accuracy,flops]", task_class=WithoutFlops)
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        evaluator = dispatcher_of(task, store)
        for step in (1, 2):
            (evaluation,) = evaluator.evaluate([graph_of()], step=step)
            assert evaluation.status is EvaluationStatus.FAILED
            assert evaluation.error == "metrics: expected the objective flops, got accuracy"
            assert evaluation.utilities == (0.0, 0.0)


def test_diverging_training_is_failed_in_its_place():
    task = build("num_epochs=2")
    outcomes = trained(task, [ZOO[0], explosive(), ZOO[1]], 2)
    ok, failed = EvaluationStatus.OK, EvaluationStatus.FAILED
    assert [outcome.status for outcome in outcomes] == [ok, failed, ok]
    assert str(outcomes[1].error).startswith("CandidateDivergedError: epoch 1: expected a training loss <= 1000")
