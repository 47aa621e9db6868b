"""One target per pixel or position: shapes, classes by name, ignored ones, references, predictions and training."""

import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import gflownet
from gflownet.config import load_config, with_task_options
from gflownet.envs.operation_graph import OperationGraphContext
from gflownet.errors import UserError
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.data.examples import IGNORED, Split, Splits
from gflownet.evaluation.presentation import references_of
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.train import main
from gflownet.translation import to_onnx
from gflownet.translation.array_inputs import ArrayInputs
from tasks.images import ImagesConfig, ImagesTask
from tests.evaluation.candidates import config_with
from tests.tiny_run import TINY_RUN, TINY_TASKS

NUM = 60


def make_task(path: Path, *overrides: str, **arrays: np.ndarray) -> ImagesTask:
    np.savez(path / "a.npz", **cast(Any, arrays))
    options = [f"task_options.data={path / 'a.npz'}", "env.operation_graph.max_parameters=4000", *overrides]
    return ImagesTask(with_task_options(load_config("images_small", options), ImagesConfig))


def chain(task: TensorTask, *operations: dict[str, Any]) -> ComputationGraph:
    """Return the network of some operations in a row, with the input and the output of the task's environment."""
    context = OperationGraphContext.from_config(
        task.config.env, input_sizes=task.input_sizes, output_sizes=task.output_sizes, num_cond_dim=1
    )
    env: Any = context.env
    graph = ComputationGraph()
    for place in range(2):
        graph.add_node(place, **env.node_fields(place, 0, {}))
    for place, operation in enumerate(operations, 2):
        fields = {"output_size": None, "activation_function": operation.pop("activation", "relu")}
        graph.add_node(place, "hidden", attributes={"operation": operation, "align": "pad"}, **fields)
        graph.add_edge(place - 1 if place > 2 else 0, place)
    graph.add_edge(len(operations) + 1 if operations else 0, 1)
    return graph


def images(*sizes: int) -> np.ndarray:
    return np.random.default_rng(0).random((NUM, *sizes)).astype(np.float32)


def above(values: np.ndarray) -> np.ndarray:
    """Return whether each pixel is brighter than the one left of it."""
    return (values > np.roll(values, 1, -1)).astype(int)


FLAGS = np.arange(NUM * 54).reshape(NUM, 6, 9) % 2
CONV = {"name": "conv2d", "features": 8, "kernel_size": 3}


@pytest.mark.parametrize(
    ("shape", "targets", "overrides", "output"),
    [
        ((1, 6, 8), (3, 4), ("task_options.per=position",), "image [2, 3, 4]"),
        ((2, 9), (9,), ("task_options.layout=signal",), "signal [2, 9]"),
    ],
)
def test_classes_of_positions_have_the_shape_of_the_output(tmp_path, shape, targets, overrides, output):
    classes = np.random.default_rng(1).integers(0, 2, (NUM, *targets))
    task = make_task(tmp_path, *overrides, x=images(*shape), y=classes)
    assert [str(size) for size in task.output_sizes] == [output]
    assert task.train.targets.shape[1:] == task.output_shape.positions
    assert any(line.startswith("targets: one of 2 classes at each of ") for line in task.summary)
    model = task.build_model(chain(task))
    assert list(model(task.train.inputs[:3]).shape) == [3, *task.output_shape.sizes]
    for reference in references_of(task, seeds=[1]):
        assert 0 < reference.validation[0] < 1


@pytest.mark.parametrize(
    ("shape", "targets", "overrides", "output", "units"),
    [
        ((1, 6, 8), (3, 6, 8), (), "image [3, 6, 8]", 3),
        ((9, 3), (9, 2), ("task_options.layout=sequence",), "sequence [9, 2]", 2),
    ],
)
def test_numbers_of_positions_are_predicted_in_their_units(tmp_path, shape, targets, overrides, output, units):
    """Predictions of the standardised targets are the targets of the file."""
    numbers = 5 + 3 * np.random.default_rng(1).random((NUM, *targets))
    task = make_task(tmp_path, *overrides, x=images(*shape), y=numbers)
    assert [str(size) for size in task.output_sizes] == [output]
    arrays = ArrayInputs.from_dict(json.loads(json.dumps(task.description(None)["arrays"])))
    assert len(arrays.target.mean) == units
    assert abs(float(task.train.targets.mean())) < 1e-5
    everything = torch.cat([part.targets for part in task.splits_in_use])
    predicted = arrays.predictions(everything.numpy())
    assert predicted.shape[1:] == targets
    np.testing.assert_allclose(np.sort(predicted.ravel()), np.sort(numbers.ravel()), rtol=1e-5)
    assert [str(cast(Any, task.build_model(chain(task))).plan.outputs[0][1])] == [output]


def test_numbers_of_signals_are_of_examples_by_default(tmp_path):
    numbers = np.random.default_rng(1).random((NUM, 9))
    task = make_task(tmp_path, "task_options.layout=signal", x=images(2, 9), y=numbers)
    assert task.output_sizes == (9,)


def test_tags_of_one_class_and_tables_of_tokens_are_refused(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 5, (NUM, 7))
    with pytest.raises(UserError, match="expected different targets, got only 0"):
        make_task(tmp_path, "task_options.layout=tokens", x=tokens, y=tokens * 0)
    (tmp_path / "tags.csv").write_text("text,tags\n1 2,0 1\n")
    message = r"expected FILE.npz or module:callable with task_options.layout=tokens, got .*tags.csv$"
    with pytest.raises(UserError, match=message):
        make_task(tmp_path, "task_options.layout=tokens", f"task_options.data={tmp_path / 'tags.csv'}", x=tokens)


@pytest.mark.parametrize(
    ("shift", "name", "key", "message"),
    [
        (-1, "embedding", "vocabulary_size", "data: expected tokens from 0, got -1"),
        (
            0,
            "embedding",
            "vocabulary_size",
            "vocabulary_size: expected more than 4, the largest token of the data, got [4, 9]",
        ),
        (
            0,
            "torch.nn:Embedding",
            "num_embeddings",
            "num_embeddings: expected more than 4, the largest token of the data",
        ),
    ],
)
def test_tokens_that_no_embedding_has_are_refused(tmp_path, shift, name, key, message):
    tokens = np.random.default_rng(0).integers(0, 5, (NUM, 7)) + shift
    choices = f"env.operation_graph.choices={{'{name}': {{{key}: [4, 9]}}}}"
    with pytest.raises(UserError, match=re.escape(message)):
        make_task(tmp_path, "task_options.layout=tokens", choices, x=tokens, y=tokens > 2)


def test_classes_by_name_and_positions_without_one(tmp_path):
    names = np.array(["", "noun", "verb"])
    tokens = np.random.default_rng(0).integers(0, 5, (NUM, 7))
    tags = np.where(tokens == 4, 0, 1 + tokens % 2)
    choices = "{embedding: {vocabulary_size: 5, features: 4}}"
    operations = ("env.operation_graph.operations=[embedding]", f"env.operation_graph.choices={choices}")
    task = make_task(tmp_path, "task_options.layout=tokens", *operations, x=tokens, y=names[tags])
    assert [str(size) for size in (*task.input_sizes, *task.output_sizes)] == ["tokens [7]", "sequence [7, 2]"]
    targets = torch.cat([part.targets for part in task.splits_in_use])
    inputs = torch.cat([part.inputs for part in task.splits_in_use])
    assert torch.equal(targets, torch.where(inputs == 4, IGNORED, inputs % 2))
    assert any("% without a class" in line for line in task.summary)
    arrays = ArrayInputs.from_dict(task.description(None)["arrays"])
    logits = torch.eye(2)[(inputs % 2)].numpy()
    assert (arrays.predictions(logits)[inputs < 4] == np.array(["noun", "verb"])[inputs[inputs < 4] % 2]).all()
    assert arrays.encoded(tokens).dtype == np.int64
    constant, linear = references_of(task, seeds=[1])
    assert linear.num_parameters == 5 * 2
    embedding = {"name": "embedding", "vocabulary_size": 5, "features": 4, "activation": "linear"}
    score = task.evaluate(chain(task, embedding), seed=0)
    assert score.value > constant.validation[0]


def test_ignored_class_and_classes_that_occur(tmp_path):
    """Masks of bytes, 0 and 200, with 255 for pixels without a class."""
    bright = images(1, 6, 8)
    masks = np.where(bright > 0.5, 200, 0).astype(np.uint8)
    masks[:, :, :2] = 255
    overrides = ("task_options.ignored=255", "task_options.kind=classes")
    task = make_task(tmp_path, *overrides, x=bright, y=masks[:, 0])
    inputs, targets = (
        torch.cat([getattr(part, name) for part in task.splits_in_use]) for name in ("inputs", "targets")
    )
    assert torch.equal(targets[:, 2:], (inputs[:, 0, 2:] > 0.5).long())
    assert bool((targets[:, :2] == IGNORED).all())
    assert task.description(None)["arrays"]["target"]["labels"] == (0, 200)
    with pytest.raises(UserError, match=r"expected all classes from 0 to 200, got none with 1; .*kind=classes takes"):
        make_task(tmp_path, overrides[0], x=bright, y=masks[:, 0])


@pytest.mark.parametrize(
    ("targets", "overrides", "message"),
    [
        (np.full((NUM, 6, 8), -3), (), "got -3 in the train examples; task_options.ignored=-3 takes it for none"),
        (np.where(images(6, 8) > 0.9, 255, FLAGS[..., :8]), (), "ignored=255 leaves out the positions of 255"),
        ((images(3, 6, 8) > 0.5).astype(int), (), "got classes [3, 6, 8]; task_options.kind=numbers takes them"),
        (np.full((NUM, 6, 8), -100), (), "expected a target in every train example, got only -100 in example 0"),
        (np.zeros((NUM, 6, 8), dtype=int), (), "expected different targets, got only 0"),
        (np.zeros((NUM, 6, 8)) + 0.5, ("task_options.kind=classes",), "expected whole numbers as classes, got 0.5"),
        (FLAGS[..., :8], ("task_options.per=example",), "got classes [6, 8]; task_options.per=position takes them"),
        (FLAGS[..., :7], (), "or at each of 6 x 8 positions, got classes [6, 7]; task_options.per=pos"),
        (np.zeros((NUM, 2, 3, 6, 8)), (), "expected targets [N] or [N, K], got [36, 2, 3, 6, 8]"),
    ],
)
def test_targets_of_positions_that_do_not_fit_raise(tmp_path, targets, overrides, message):
    with pytest.raises(UserError, match=re.escape(message)):
        make_task(tmp_path, *overrides, x=images(1, 6, 8), y=targets)


@pytest.mark.parametrize(
    ("form", "summary"),
    [
        (lambda classes: classes.astype(np.float32), "targets 0.0, 1.0, 2.0 are classes; "),
        (lambda classes: 1.0 * classes[:, None], "targets 0.0, 1.0, 2.0 are classes; "),
        (lambda classes: classes[..., None], "targets: one of 3 classes"),
        (lambda classes: np.eye(3, dtype=np.uint8)[classes], "one-hot targets [6, 8, 3] are classes; "),
        (lambda classes: np.moveaxis(np.eye(3)[classes], -1, 1), "one-hot targets [3, 6, 8] are classes; "),
        (lambda classes: classes + 1, "targets 1, 2, 3 are classes; "),
    ],
)
def test_forms_of_classes_of_pixels(tmp_path, form, summary):
    bright = images(1, 6, 8)
    metric = "evaluation.training.metric=mean_iou"
    task = make_task(tmp_path, metric, x=bright, y=form((bright[:, 0] * 3).astype(int)))
    assert task.measure.metric.name == task.test_measure.metric.name == "mean_iou"
    assert str(task.output_shape) == "image [3, 6, 8]"
    assert any(line.startswith(summary) for line in task.summary)
    for part in task.splits_in_use:
        assert torch.equal(part.targets, (part.inputs[:, 0] * 3).long())


def test_bits_of_grey_images_and_tokens_are_not_one_hot(tmp_path):
    """Masks with one pixel per row, and tags with one 1 per sequence."""
    places = np.random.default_rng(0).integers(0, 8, (NUM, 6))
    task = make_task(tmp_path, x=images(6, 8), y=np.eye(8, dtype=int)[places])
    assert str(task.output_shape) == "image [2, 6, 8]"
    choices = "env.operation_graph.choices={embedding: {vocabulary_size: 8, features: 4}}"
    options = ("task_options.layout=tokens", "env.operation_graph.operations=[embedding]", choices)
    task = make_task(tmp_path, *options, x=places, y=np.eye(6, dtype=int)[places[:, 0] % 6])
    assert str(task.output_shape) == "sequence [6, 2]"


def test_numbers_with_their_channels_on_the_last_axis(tmp_path):
    values = images(3, 6, 8)
    task = make_task(tmp_path, x=values, y=np.moveaxis(values, 1, -1)[..., :2])
    assert "targets [6, 8, 2]: the last axis is that of channels" in task.summary
    for part in task.splits_in_use:
        assert np.corrcoef(part.targets[:, 1].flatten(), part.inputs[:, 1].flatten())[0, 1] > 0.999


def test_examples_without_any_target_are_left_out(tmp_path):
    values = images(1, 6, 8)
    task = make_task(
        tmp_path, x=values, y=np.where(np.arange(NUM)[:, None, None] % 20 == 3, IGNORED, above(values[:, 0]))
    )
    assert sum(map(len, task.splits_in_use)) == NUM - 3
    assert "3 examples without a class at any position left out" in task.summary


def test_graph_of_another_output_is_refused(tmp_path):
    values = images(1, 6, 8)
    task = make_task(tmp_path, x=values, y=above(values[:, 0]))
    data = chain(task, dict(CONV)).to_dict()
    data["nodes"][1]["positions"] = [3, 4]
    with pytest.raises(ValueError, match=r"to image \[2, 6, 8\], got image \[1, 6, 8\] to image \[2, 3, 4\]"):
        task.evaluate(ComputationGraph.from_dict(data), seed=0)


@pytest.mark.slow
def test_network_learns_the_class_of_each_pixel_and_not_shifted_ones(tmp_path):
    """A 3 x 3 convolution sees the pixel on the left; with targets of other pixels it is no better than a constant."""
    values, options = images(1, 6, 8), ("evaluation.num_epochs=20", "evaluation.batch_size=8")
    scores = {}
    for name, targets in {"own": above(values[:, 0]), "shifted": np.roll(above(values[:, 0]), 3, 1)}.items():
        task = make_task(tmp_path, *options, "evaluation.training.label_smoothing=0", x=values, y=targets)
        scores[name] = task.evaluate(chain(task, dict(CONV)), seed=0).metrics["validation_accuracy"]
        if name == "own":
            assert scores[name] > 0.9
            assert max(reference.test[0] for reference in references_of(task, seeds=[0])) < 0.8
    assert scores["shifted"] < 0.6


class Masks(Dataset[Any]):
    channels: Any = 0

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.from_numpy(images(1, 6, 8)[index])
        return image, (image[self.channels] > 0.5).long()


def masks(channels: Any = 0) -> Masks:
    dataset = Masks()
    dataset.channels = channels
    return dataset


def masks_with_channels() -> Masks:
    return masks(slice(None))


def test_dataset_has_targets_of_positions(tmp_path):
    task = make_task(tmp_path, f"task_options.data={__name__}:masks")
    assert [str(size) for size in task.output_sizes] == ["image [2, 6, 8]"]
    assert 0 < task.evaluate(chain(task, dict(CONV)), seed=0).value < 1
    with pytest.raises(UserError, match=r"or at each of 6 x 8 positions, got classes \[1, 6, 8\]"):
        make_task(tmp_path, f"task_options.data={__name__}:masks_with_channels")


class Edges(TensorTask):
    """A user's task: whether a signal rises, at each step."""

    def data(self) -> Splits:
        values = torch.from_numpy(images(1, 12))
        parts = (
            Split(values[rows], torch.from_numpy(above(values[rows, 0].numpy())))
            for rows in torch.arange(NUM).split(20)
        )
        return Splits(*parts, layout="signal")


def outputs_first(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of torch, which has classes on axis 1."""
    return nn.functional.cross_entropy(outputs, targets)


def test_own_task_and_loss_have_positions():
    options = ["evaluation.num_epochs=40", "evaluation.batch_size=10", "evaluation.learning_rate=0.05"]
    options += ["env.name=operation_graph", f"evaluation.training.loss={__name__}:outputs_first"]
    task = Edges(config_with(*options))
    assert [str(size) for size in task.output_sizes] == ["signal [2, 12]"]
    graph = chain(task, {"name": "conv1d", "features": 8, "kernel_size": 3})
    score = task.evaluate(graph, seed=0)
    assert score.value > 0.85
    assert task.outputs(graph, cast(Any, score.model).state_dict(), split="test").shape == (20, 12, 2)


TOKENS = (
    "task_options.layout=tokens",
    "env.operation_graph.operations=[embedding,linear,gru]",
    "env.operation_graph.choices={embedding: {vocabulary_size: 5, features: [4, 8]}, gru: {features: 8}}",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
@pytest.mark.parametrize("kind", ["segmentation", "tagging", "numbers"])
def test_run_predicts_targets_of_positions_in_its_report_and_from_onnx(tmp_path, kind):
    runtime = pytest.importorskip("onnxruntime")
    inputs: np.ndarray = images(1, 6, 8)
    overrides, targets, labels = (), above(inputs[:, 0]), [0, 1]
    if kind == "numbers":
        targets, labels = 7 + 2 * inputs[:, 0], []
    if kind == "tagging":
        inputs, overrides, labels = np.random.default_rng(0).integers(0, 5, (NUM, 7)), TOKENS, ["high", "low"]
        targets = np.where(inputs > 2, "high", "low")
    np.savez(tmp_path / "a.npz", x_train=inputs, y_train=targets)
    run = tmp_path / "run"
    options = [
        *TINY_RUN,
        "report.every=2",
        *TINY_TASKS["images_small"],
        *overrides,
        f"task_options.data={tmp_path / 'a.npz'}",
    ]
    assert main(["--config", "images_small", *options, f"log_dir={run}", "evaluation.num_epochs=5"]) == 0
    sizes = " x ".join(map(str, targets.shape[1:]))
    words = f"1 number at each of {sizes} positions" if kind == "numbers" else f"one of 2 classes at each of {sizes}"
    assert words in (run / "data.txt").read_text()
    page = (run / "report.html").read_text()
    assert words in page
    assert ("mean at each position" if kind == "numbers" else "most frequent class") in page
    model, several = gflownet.load(run), gflownet.load(run, set=True)
    assert list(model.class_names) == list(several.class_names) == labels
    predicted = model.predict(inputs)
    assert predicted.shape == several.predict(inputs).shape == targets.shape
    to_onnx(model, tmp_path / "model.onnx")
    arrays = ArrayInputs.from_dict(json.loads((tmp_path / "model.arrays.json").read_text()))
    (outputs,) = runtime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": arrays.encoded(inputs)})
    same = (
        np.isclose(arrays.predictions(outputs), predicted) if labels == [] else arrays.predictions(outputs) == predicted
    )
    assert same.all()
