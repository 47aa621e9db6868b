"""Training of one candidate and of several together: equal to a plain loop, reproducible, early end if it diverges."""

from typing import Any

import pytest
import torch
from torch import nn

from gflownet.evaluation.candidates.metrics import METRICS, build_loss
from gflownet.evaluation.candidates.trainer import (
    CandidateDivergedError,
    Length,
    Measure,
    ModelTrainer,
    ModelTraining,
    Split,
    continue_trainings,
)
from gflownet.evaluation.config import EvaluationConfig, TrainingConfig
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import TranslatedModel, to_pytorch_model
from tests.evaluation.candidates import classifier_graph
from tests.oracles.training import train_plainly
from tests.translation.operation_graphs import graph_of, hidden, image_input

NUM_FEATURES, NUM_CLASSES = 6, 3


@pytest.fixture(scope="module")
def data() -> Split:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(101, NUM_FEATURES, generator=generator)
    return Split(inputs, inputs[:, :NUM_CLASSES].argmax(1))


def small_model(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES)).to(dtype)


def train(model: nn.Module, data: Split, *, seed: int = 0, **options) -> float:
    config = EvaluationConfig(**{"num_epochs": 4, "batch_size": 16, "learning_rate": 0.03} | options)
    trainer = ModelTrainer(data, build_loss(config.training, is_classification=True), config)
    training = ModelTraining(model, torch.Generator().manual_seed(seed))
    trainer.continue_training(training, Length(config.num_epochs, config.num_epochs))
    return training.train_loss


def accuracy(model: nn.Module, data: Split) -> float:
    return Measure(METRICS["accuracy"], data).value(model)


def test_same_numbers_as_the_plain_loop(data):
    data = Split(data.inputs.double(), data.targets)
    fast, slow = small_model(dtype=torch.float64), small_model(dtype=torch.float64)
    fast_loss = train(fast, data, seed=5)
    slow_loss = train_plainly(slow, data.inputs, data.targets, num_epochs=4, batch_size=16, learning_rate=0.03, seed=5)
    assert fast_loss == pytest.approx(slow_loss, abs=1e-12)
    for ours, theirs in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_one_seed_one_result(data):
    models = [small_model() for _ in range(3)]
    losses = [train(model, data, seed=seed) for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_explosion_ends_training_early(data):
    calls = []
    model = small_model()
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(CandidateDivergedError, match=r"^epoch 1: expected a training loss <= 1000, got \d"):
        train(model, data, learning_rate=1e6, num_epochs=50)
    assert len(calls) == 7  # one epoch of ceil(101 / 16) batches


def translated(*hidden: tuple[int, str], seed: int, dtype: torch.dtype = torch.float32) -> TranslatedModel:
    graph = classifier_graph(*hidden, input_size=NUM_FEATURES, num_classes=NUM_CLASSES, skip=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return to_pytorch_model(graph, {"dtype": dtype, "projection": "always"})


def three_models(dtype: torch.dtype = torch.float32) -> list[TranslatedModel]:
    shapes = [[(8, "tanh")], [(5, "relu"), (7, "gelu")], [(8, "tanh")]]
    return [translated(*hidden, seed=seed, dtype=dtype) for seed, hidden in enumerate(shapes)]


def train_together(models: list[TranslatedModel], data: Split, *, seeds=(5, 6, 7), **options):
    config = EvaluationConfig(**{"num_epochs": 4, "batch_size": 16, "learning_rate": 0.03} | options)
    trainings = [ModelTraining(m, torch.Generator().manual_seed(s)) for m, s in zip(models, seeds, strict=True)]
    errors = continue_trainings(trainings, data, Length(config.num_epochs, config.num_epochs), config=config)
    return [error or training.train_loss for training, error in zip(trainings, errors, strict=True)]


def test_together_as_the_plain_loop_one_by_one(data):
    data = Split(data.inputs.double(), data.targets)
    fast, slow = three_models(torch.float64), three_models(torch.float64)
    losses = train_together(fast, data)
    for seed, model, twin, loss in zip((5, 6, 7), fast, slow, losses, strict=True):
        expected = train_plainly(
            twin, data.inputs, data.targets, num_epochs=4, batch_size=16, learning_rate=0.03, seed=seed
        )
        assert loss == pytest.approx(expected, abs=1e-9)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


REGULARISED: dict[str, Any] = {"weight_decay": 0.2, "label_smoothing": 0.1}


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow), REGULARISED], ids=["plain", "regularised"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_together_as_one_by_one_with_each_optimiser(data, optimizer, more):
    data = Split(data.inputs.double(), data.targets)
    options = {"training": TrainingConfig(optimizer=optimizer, schedule="one_cycle", **more)}
    together, alone = three_models(torch.float64), three_models(torch.float64)
    losses = train_together(together, data, **options)
    for seed, model, twin, loss in zip((5, 6, 7), together, alone, losses, strict=True):
        assert train(twin, data, seed=seed, **options) == pytest.approx(loss, abs=1e-9)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_group_continues_as_one_by_one(data, optimizer):
    """Weights after two epochs together and two alone, or two alone and two together."""
    data = Split(data.inputs.double(), data.targets)
    training = TrainingConfig(optimizer=optimizer, **REGULARISED)
    config = EvaluationConfig(num_epochs=4, batch_size=16, learning_rate=0.03, training=training)
    trainer = ModelTrainer(data, build_loss(training, is_classification=True), config)
    results = []
    for order in ("together alone", "alone together", "alone alone"):
        trainings = [
            ModelTraining(m, torch.Generator().manual_seed(k)) for k, m in enumerate(three_models(torch.float64))
        ]
        for way, end in zip(order.split(), (2, 4), strict=True):
            if way == "together":
                assert continue_trainings(trainings, data, Length(end, 4), config=config) == [None] * 3
            for each in trainings if way == "alone" else ():
                trainer.continue_training(each, Length(end, 4))
        results.append([each.model.state_dict() for each in trainings])
    for other in results[:2]:
        torch.testing.assert_close(other, results[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("more", [{}, REGULARISED], ids=["plain", "regularised"])
def test_together_to_the_bit_as_alone_and_in_any_order(data, more):
    together, backwards, alone = three_models(), three_models(), three_models()
    options = {"training": TrainingConfig(**more)}
    losses = train_together(together, data, **options)
    assert train_together(backwards[::-1], data, seeds=(7, 6, 5), **options) == losses[::-1]
    assert [
        train_together([m], data, seeds=(s,), **options)[0] for m, s in zip(alone, (5, 6, 7), strict=True)
    ] == losses
    for models in zip(together, backwards, alone, strict=True):
        for first, *others in zip(*(model.parameters() for model in models), strict=True):
            assert all(torch.equal(first, other) for other in others)


def test_diverged_candidate_keeps_its_first_error_and_does_not_affect_others(data):
    models = three_models()
    with torch.no_grad():
        models[1].get_parameter("weight_0_1").fill_(1e7)
    losses = train_together(models, data)
    assert isinstance(losses[1], CandidateDivergedError)
    assert str(losses[1]).startswith("epoch 1: expected a training loss <= 1000, got ")
    assert losses[1].__traceback__ is not None
    calm = train_together(three_models(), data)
    assert (losses[0], losses[2]) == (calm[0], calm[2])


def test_a_kept_error_keeps_no_tensors(data):
    (error,) = train_together([translated((8, "tanh"), seed=0)], data, seeds=(5,), learning_rate=1e6)
    assert isinstance(error, CandidateDivergedError)
    frame = error.__traceback__
    while frame is not None:
        assert not any(isinstance(value, torch.Tensor | Split) for value in frame.tb_frame.f_locals.values())
        frame = frame.tb_next


def image_graph() -> ComputationGraph:
    nodes = [
        image_input(1, 4, 4),
        hidden(1, "conv_bn_relu", features=5),
        hidden(2, "head", kind="output", features=3, aggregation="sum", align="pad"),
    ]
    return graph_of(nodes, [(0, 1), (0, 2), (1, 2)])


def seeds_of(dtype: torch.dtype = torch.float64) -> list[ModelTraining]:
    trainings = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = to_pytorch_model(image_graph(), {"dtype": dtype})
        trainings.append(ModelTraining(model, torch.Generator().manual_seed(10 + seed)))
    return trainings


def image_trainer(**options) -> tuple[ModelTrainer, Measure]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(45, 1, 4, 4, generator=generator, dtype=torch.float64)
    data = Split(inputs, inputs.flatten(1)[:, :3].argmax(1))
    values = {"num_epochs": 4, "batch_size": 16, "learning_rate": 0.03, "memory_format": "channels_last"}
    config = EvaluationConfig(**values, training=TrainingConfig(**options))
    trainer = ModelTrainer(data, build_loss(config.training, is_classification=True), config, num_outputs=3)
    return trainer, Measure(METRICS["cross_entropy"], data)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"optimizer": "sgd", "schedule": "one_cycle"},
        {"optimizer": "adamw", "weight_decay": 0.3, "label_smoothing": 0.2},
        pytest.param({"augment": ["crop", "noise", "mixup"], "loss": "cross_entropy"}, marks=pytest.mark.slow),
    ],
    ids=["adam", "sgd", "adamw", "augment"],
)
def test_side_by_side_equals_one_by_one_and_continues(options):
    """Losses, metrics, weights and statistics, also after each training goes on alone."""
    trainer, measure = image_trainer(**options)
    fast, slow = seeds_of(), seeds_of()
    assert trainer.continue_side_by_side(fast, Length(2, 3), validation=measure) == [None] * 3
    for end in (2, 3):
        for together, alone in zip(fast, slow, strict=True):
            trainer.continue_training(alone, Length(end, 3), validation=measure)
            if end == 3:
                trainer.continue_training(together, Length(3, 3), validation=measure)
            assert together.train_loss == pytest.approx(alone.train_loss, abs=1e-9)
            assert together.values == pytest.approx(alone.values, abs=1e-9)
            torch.testing.assert_close(together.model.state_dict(), alone.model.state_dict(), rtol=0, atol=1e-8)


def test_diverged_copy_leaves_others_alone():
    trainer, measure = image_trainer()
    fast, slow = seeds_of(), seeds_of()
    with torch.no_grad():
        next(fast[1].model.parameters()).fill_(torch.inf)
    errors = trainer.continue_side_by_side(fast, Length(2, 2), validation=measure)
    assert [error is None for error in errors] == [True, False, True]
    for position in (0, 2):
        trainer.continue_training(slow[position], Length(2, 2), validation=measure)
        assert fast[position].values == pytest.approx(slow[position].values, abs=1e-9)
    assert (fast[1].num_epochs, fast[1].values) == (0, [])
