"""TensorTask: scores, costs, trainings in parts, and candidates of a wrong shape."""

import math
import pickle
import re
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.candidates import trainer as training_module
from gflownet.evaluation.candidates.references import model_method
from gflownet.evaluation.candidates.tensor_task import TensorTask, automatic_batch_size
from gflownet.evaluation.candidates.trainer import CandidateDivergedError, ModelTrainer
from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Split, Splits
from gflownet.evaluation.execution import restored, run_job
from gflownet.evaluation.job import Job, Outcome
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.translation import StackedModel, to_pytorch_model
from tasks.images import lenet5
from tests.device_with_values import device_with_values
from tests.evaluation.candidates import classifier_graph, config_with
from tests.evaluation.data_sources import LENGTH, NUM_TOKENS

TASK = "images"
SOURCES = "tests.evaluation.data_sources"
OPTIONS = (
    "evaluation.learning_rate=0.03",
    "evaluation.batch_size=32",
    "evaluation.training.optimizer=adamw",
    "evaluation.training.weight_decay=0.01",
    "evaluation.training.schedule=one_cycle",
    f"task_options.data={SOURCES}:stripes",
)


def build(*overrides: str) -> TensorTask:
    task_class = TASKS.load(TASK)
    return task_class(with_task_options(config_with(f"task={TASK}", *OPTIONS, *overrides), task_class.Config))


CONVOLUTIONS = (
    ({"name": "conv2d", "features": 8, "kernel_size": 3, "bias": False}, "linear"),
    ({"name": "batch_norm"}, "relu"),
    ({"name": "max_pool2d", "kernel_size": 2, "stride": 2}, "linear"),
    ({"name": "conv2d", "features": 16, "kernel_size": 3, "bias": False}, "linear"),
    ({"name": "batch_norm"}, "relu"),
)


def chain(*operations: tuple[dict[str, Any], str], shape: list[int], num_outputs: int, **attributes: Any):
    """Return input -> operations (operation, activation) -> head."""
    graph = ComputationGraph()
    graph.add_node(0, NodeType.INPUT, output_size=None, attributes={"shape": shape, **attributes})
    previous = 0
    for node, (operation, activation) in enumerate(operations, start=2):
        attributes = {"operation": operation}
        graph.add_node(node, NodeType.HIDDEN, output_size=None, activation_function=activation, attributes=attributes)
        graph.add_edge(previous, node)
        previous = node
    head = {"operation": {"name": "head", "features": num_outputs}}
    graph.add_node(1, NodeType.OUTPUT, output_size=None, attributes=head)
    graph.add_edge(previous, 1)
    return graph


def network(num_outputs: int = 2, shape: tuple[int, ...] = (1, 6, 6)):
    return chain(*CONVOLUTIONS, shape=list(shape), num_outputs=num_outputs)


@pytest.fixture(scope="module")
def task() -> TensorTask:
    return build("evaluation.num_epochs=3")


def trained(task: TensorTask, graph: Any, *fidelities: int, schedule: int | None = None) -> Outcome:
    """Return the outcome of a training up to each fidelity in turn, saved and restored in between."""
    outcomes: list[Outcome] = []
    for fidelity in fidelities:
        saved = tuple(outcome.training for outcome in outcomes)
        options: Any = {"fidelity": fidelity, "schedule": schedule or fidelities[-1], "trainings": saved}
        outcomes = run_job(task, Job((graph,), (7,), saves_training=True, tests=True, **options))
    return outcomes[0]


@pytest.mark.slow
def test_convolutions_learn_the_digits():
    task, graph = build("evaluation.num_epochs=3", "task_options.data=digits"), network(10, (1, 8, 8))
    score, cost = task.evaluate(graph, seed=0), cast(Any, task.cost(graph))
    assert score.value == score.metrics["validation_accuracy"] > 0.8
    assert score.num_parameters == cost.num_parameters == 8 * 9 + 2 * 8 + 16 * 72 + 2 * 16 + 16 * 10 + 10
    assert cost.flops == 2 * (8 * 9 * 64 + 16 * 72 * 16 + 16 * 10)
    assert cast(float, task.test(graph, seed=0)) > 0.8


def test_metric_is_an_objective_by_its_own_name():
    loss = "evaluation.training.metric=log_loss"
    task = build(loss, "evaluation.num_epochs=1", "evaluation.objectives=[log_loss,parameters]")
    score = task.evaluate(network(), seed=1)
    assert score.metrics["log_loss"] == score.metrics["validation_log_loss"] > 0
    assert task.utilities(score) == (score.value, 1 / (1 + score.metrics["parameters"] / 5_000))
    assert task.directions() == {"log_loss": "min", "parameters": "min"}
    assert task.score_name == "score of log_loss"
    assert build("evaluation.size_weight=0.1").score_name == "accuracy, scaled by size"
    with pytest.raises(ValueError, match=r"expected some of log_loss, parameters, flops, latency, got 'accuracy'"):
        build(loss, "evaluation.objectives=[accuracy,parameters]")


_AUGMENT = "evaluation.training.augment=[crop,flip,noise,mixup]"
_SCHEDULE = "evaluation.training.schedule=one_cycle"
_MUON = ("evaluation.training.optimizer=muon", "evaluation.memory_format=channels_last")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            ("evaluation.training.augment=[crop,flip,noise,mixup]", "evaluation.training.label_smoothing=0.1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (_SCHEDULE, "evaluation.training.metric=auc", f"task_options.data={SOURCES}:noisy_stripes"),
            marks=pytest.mark.slow,
        ),
        (*_MUON, "evaluation.training.class_weights=balanced", "evaluation.training.metric=f1"),
        pytest.param(
            ("evaluation.objectives=[log_loss,latency]", "evaluation.training.metric=log_loss"), marks=pytest.mark.slow
        ),
    ],
    ids=["augmentation", "data set", "muon, class weights", "latency"],
)
def test_training_on_a_device_equals_that_on_the_cpu(overrides):
    task = build("evaluation.num_epochs=2", *overrides)
    here = trained(task, network(), 1, 2)
    with device_with_values() as device:
        task.to_device(device)
        there = trained(task, network(), 1, 2)
        assert task.fingerprint() == build("evaluation.num_epochs=2", *overrides).fingerprint()
    assert (here.status, here.error, here.test_error) == (there.status, there.error, there.test_error)
    assert (here.curve, here.test) == (there.curve, there.test)
    one, two = cast(Any, restored(here.training))["model"], cast(Any, restored(there.training))["model"]
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("evaluation.training.optimizer=sgd",), marks=pytest.mark.slow),
        (_AUGMENT,),
        pytest.param((f"task_options.data={SOURCES}:stripes_in_three",), marks=pytest.mark.slow),
        pytest.param((f"task_options.data={SOURCES}:noisy_stripes",), marks=pytest.mark.slow),
    ],
    ids=["adamw", "sgd", "augmentation", "data set of each split", "data set with noise"],
)
def test_training_in_parts_equals_full_training(overrides):
    task = build("evaluation.num_epochs=3", *overrides)
    full, parts = trained(task, network(), 3), trained(task, network(), 1, 2, 3)
    assert full.status is EvaluationStatus.OK
    assert (full.score, full.curve, full.test) == (parts.score, parts.curve, parts.test)
    one, two = cast(Any, restored(full.training)), cast(Any, restored(parts.training))
    assert all(torch.equal(value, two["model"][name]) for name, value in one["model"].items())
    assert full.score == task.evaluate(network(), seed=7)
    assert full.test == task.test(network(), seed=7)
    assert cast(Any, full.score).value > 0.7
    assert task.fingerprint() == build(*overrides).fingerprint()


def test_saved_weights_reproduce_the_test_score(task):
    outcome = trained(task, network(), 2, schedule=3)
    model = to_pytorch_model(network().with_translation(task.translation_settings))
    model.load_state_dict(cast(Any, restored(outcome.training))["model"])
    assert task.test_score(model) == outcome.test


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [(network(num_outputs=3), "image [1, 6, 6] to 3"), (network(shape=(3, 6, 6)), "image [3, 6, 6] to 2")],
)
def test_wrong_sizes_raise(task, graph, sizes):
    message = f"expected a graph from image [1, 6, 6] to 2 outputs, got {sizes}"
    with pytest.raises(ValueError, match=re.escape(message)):
        task.evaluate(graph, seed=0)


def test_task_is_sent_to_another_process(task):
    copied = pickle.loads(pickle.dumps(task))
    assert copied.evaluate(network(), seed=0) == task.evaluate(network(), seed=0)
    assert copied.cost(network()) == task.cost(network())
    assert copied.fingerprint() == task.fingerprint()


def test_score_is_the_last_of_the_curve(task):
    outcome = trained(task, network(), 3)
    assert outcome.curve == pytest.approx(cast(Any, restored(outcome.training))["values"])


@pytest.mark.parametrize(("num", "size"), [(20, 16), (1_000, 16), (12_000, 128), (60_000, 256)])
def test_automatic_batch_size(num, size):
    assert automatic_batch_size(num) == size


def test_divergence_is_reported():
    outcome = trained(build("evaluation.num_epochs=1", "evaluation.learning_rate=1e30"), network(), 1)
    assert outcome.status is EvaluationStatus.FAILED
    assert str(outcome.error).startswith("CandidateDivergedError: epoch 1: expected a training loss <= 1000")


def of_data(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str = "float32") -> TensorTask:
    """Return the task on random images, which a function returns as arrays."""
    images = np.random.default_rng(0).integers(0, 9, (20, *shape)).astype(dtype)
    monkeypatch.setitem(sys.modules, "own_images", SimpleNamespace(load=lambda: (images, np.arange(20) % 2)))
    return build("task_options.data=own_images:load")


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((9,), "float32", r"got numbers \[9\] from own_images:load; task=table trains on tables"),
        ((9,), "int64", r"got tokens \[9\] from own_images:load; task=table trains on tables"),
    ],
)
def test_data_without_images_raise(monkeypatch, shape, dtype, message):
    with pytest.raises(UserError, match=f"^task_options.data: .*{message}"):
        of_data(monkeypatch, shape, dtype)


def test_channels_on_the_last_axis_are_moved_with_a_line(monkeypatch):
    task = of_data(monkeypatch, (8, 9, 3))
    assert str(task.input_shape) == "image [3, 8, 9]"
    assert task.summary[-1] == "images [8, 9, 3]: the last axis is that of channels"


class Prices(TensorTask):
    def data(self) -> Splits:
        inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        part = Split(inputs, 300_000 + 50_000 * inputs.sum(1))
        return Splits(part, part, part)

    def build_model(self, candidate: Any) -> nn.Module:
        return nn.Linear(4, 1)


def test_loss_limit_is_relative_to_the_targets():
    task = Prices(cast(Any, config_with("evaluation.num_epochs=1")))
    assert task.evaluate("a", seed=0).value == 0
    task = Prices(cast(Any, config_with("evaluation.num_epochs=9", "evaluation.learning_rate=1e9")))
    with pytest.raises(CandidateDivergedError, match=r"expected a training loss <= \d"):
        task.evaluate("a", seed=0)


class Counting(TensorTask):
    def data(self) -> Splits:
        return load_splits(f"{SOURCES}:counting", key="data", seed=0)

    def build_model(self, candidate: Any) -> nn.Module:
        return nn.Sequential(nn.Embedding(NUM_TOKENS, 8), nn.Linear(8, NUM_TOKENS))


@pytest.mark.slow
def test_sequence_model_learns_the_next_token():
    options = ("evaluation.num_epochs=30", "evaluation.batch_size=10", "evaluation.learning_rate=0.1")
    task = Counting(cast(Any, config_with(*options)))
    assert [str(size) for size in task.input_sizes] == [f"tokens [{LENGTH}]"]
    assert [str(size) for size in task.output_sizes] == [f"sequence [{LENGTH}, {NUM_TOKENS}]"]
    score = task.evaluate("a", seed=0)
    assert score.metrics["validation_bits"] < 0.1
    assert score.value == pytest.approx(1 / (1 + score.metrics["validation_bits"] / math.log2(NUM_TOKENS)), abs=1e-3)
    assert task.test("a", seed=0) == score.value


def test_regression_of_a_table_learns():
    task_class = TASKS.load("table")
    config = load_config("table", ["task_options.data=diabetes", "evaluation.num_epochs=20"])
    task = task_class(with_task_options(config, task_class.Config))
    score = task.evaluate(classifier_graph((8, "relu"), input_size=10, num_classes=1), seed=0)
    assert score.metrics["validation_r2"] == pytest.approx(score.value)
    assert score.value > 0.25


def test_model_method_is_trained_once_for_each_seed_and_length(monkeypatch):
    task, trained = build(), []
    monkeypatch.setattr(ModelTrainer, "continue_training", lambda *arguments, **_: trained.append(arguments))
    monkeypatch.setattr(task, "quality", lambda values: 0.5 + len(trained) / 100)
    monkeypatch.setattr(task, "test_score", lambda model: 0.5)
    method = model_method(task, "LeNet-5", lenet5, 1, 10)
    first, again, further = (cast(Any, method.result(seeds)) for seeds in ([1], [1], [2, 1]))
    assert first == again
    assert further.validation == (0.52, 0.51)
    monkeypatch.setattr(task.config.final, "epochs", 3)
    longer: Any = model_method(task, "LeNet-5", lenet5, 1, 10).result([1])
    assert (len(trained), longer.name, longer.num_parameters) == (3, "LeNet-5, 3 epochs", 61_706)
    names: dict[str, Any] = {}
    exec(longer.code, names)
    assert task.num_parameters(names["model"]) == 61_706


def test_memory_format_auto_is_channels_last_for_images():
    task, named = (build(f"evaluation.memory_format={name}") for name in ("auto", "channels_last"))
    assert task.config.evaluation.memory_format == "channels_last"
    assert context_of(task) == context_of(named)
    assert pickle.loads(pickle.dumps(task)).evaluate(network(), seed=0) == named.evaluate(network(), seed=0)


SEEDS = (3, 4, 5)


def seeds_of(task: TensorTask, graph: Any, monkeypatch, *, fails: bool = False) -> tuple[list[Outcome], list[int]]:
    """Return the outcomes of a job with several seeds, and the number of models of each training side by side."""
    sizes: list[int] = []

    class Recorded(StackedModel):
        def __init__(self, models):
            sizes.append(len(models))
            super().__init__(models)

        def copy_to(self, models):
            if fails:
                raise torch.OutOfMemoryError("out of memory")
            super().copy_to(models)

    monkeypatch.setattr(training_module, "StackedModel", Recorded)
    job = Job((graph,) * len(SEEDS), SEEDS, fidelity=2, tests=True)
    return run_job(task, job), sizes


def one_by_one(task: TensorTask, graph: Any) -> list[Outcome]:
    return [run_job(task, Job((graph,), (seed,), fidelity=2, tests=True))[0] for seed in SEEDS]


@pytest.mark.slow
def test_seeds_train_side_by_side_in_channels_last(monkeypatch):
    task = build("evaluation.memory_format=channels_last", "task_options.data=digits")
    outcomes, sizes = seeds_of(task, network(10, (1, 8, 8)), monkeypatch)
    assert sizes == [3]
    for together, alone in zip(outcomes, one_by_one(task, network(10, (1, 8, 8))), strict=True):
        assert together.curve == pytest.approx(alone.curve, abs=0.02)  # of 360 images
        assert together.test == pytest.approx(alone.test, abs=0.02)


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("format", marks=pytest.mark.slow),
        pytest.param("dropout", marks=pytest.mark.slow),
        "failure",
        pytest.param("muon", marks=pytest.mark.slow),
        "data set",
    ],
)
def test_seeds_train_one_by_one_where_they_cannot_be_stacked(monkeypatch, reason):
    graph = network()
    if reason == "dropout":
        graph = chain(({"name": "dropout", "dropout": 0.2}, "linear"), *CONVOLUTIONS, shape=[1, 6, 6], num_outputs=2)
    format_ = "contiguous" if reason == "format" else "channels_last"
    optimizer = "evaluation.training.optimizer=muon" if reason == "muon" else "evaluation.training.optimizer=adam"
    data = f"task_options.data={SOURCES}:stripes{'' if reason == 'data set' else '_in_memory'}"
    task = build(f"evaluation.memory_format={format_}", optimizer, data)
    outcomes, sizes = seeds_of(task, graph, monkeypatch, fails=reason == "failure")
    assert sizes == ([3] if reason == "failure" else [])
    expected = one_by_one(task, graph)
    assert [each.score for each in outcomes] == [each.score for each in expected]
    assert all(each.status is EvaluationStatus.OK for each in outcomes)


def test_error_of_seeds_side_by_side_is_theirs(monkeypatch):
    task = build("evaluation.memory_format=channels_last", "task_options.data=digits")
    monkeypatch.setattr(training_module._SideBySide, "save", lambda models: models.unknown)
    outcomes, sizes = seeds_of(task, network(10, (1, 8, 8)), monkeypatch)
    assert sizes == [3]
    assert {each.status for each in outcomes} == {EvaluationStatus.FAILED}
    assert all("unknown" in str(each.error) for each in outcomes)


def test_channels_last_without_images_raises():
    table, options = (
        TASKS.load("table"),
        ("task=table", "task_options.data=iris", "evaluation.memory_format=channels_last"),
    )
    message = r"^evaluation.memory_format: expected contiguous for .*, got channels_last$"
    with pytest.raises(UserError, match=message):
        table(with_task_options(config_with(*options), table.Config))


@pytest.mark.slow
def test_bfloat16_is_as_accurate_as_float32():
    """The mean difference of the accuracy over seeds is within two standard errors plus a tenth of a point."""
    sides = [build("task_options.data=digits", *OPTIONS_OF_SIDE, f"evaluation.precision={name}") for name in PRECISIONS]
    scores = [[task.evaluate(network(10, (1, 8, 8)), seed=seed).value for seed in range(12)] for task in sides]
    difference = np.subtract(scores[0], scores[1])
    assert np.any(difference != 0)
    assert abs(difference.mean()) < 2 * difference.std(ddof=1) / math.sqrt(len(difference)) + 1e-3
    assert min(map(np.mean, scores)) > 0.9


PRECISIONS = ("float32", "bfloat16")
OPTIONS_OF_SIDE = ("evaluation.num_epochs=6", "evaluation.memory_format=channels_last")
