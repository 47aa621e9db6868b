"""Layers that mix the rows and columns of an image: tensor programs, trained with symbolic gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.autodiff.compilation import compile
from gflownet.autodiff.derivatives import gradient
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.factories import Mean, PickNegLogSoftmax
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, TransformNode
from gflownet.envs.tensor_program import TensorProgram, read_inputs
from gflownet.evaluation.candidates.trainer import Split
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import GFNTask, Score
from gflownet.options import AT_LEAST_ONE, POSITIVE, option
from gflownet.training.random_states import seeded

from .digits import digits_splits, mlp_reference

IMAGE = "X"  # the input that is an image; all others are parameters
SIDE, NUM_CLASSES = 8, 10


@dataclass
class TensorMixingConfig:
    """The training of a layer."""

    num_steps: int = option(40, "steps of Adam on all training images", AT_LEAST_ONE)
    learning_rate: float = option(0.03, "learning rate of Adam", POSITIVE)


@dataclass(frozen=True)
class Classifier:
    """A layer followed by a linear map to classes, as nodes on a batch of images."""

    logits: Node  # [examples, classes]
    images: LeafNode  # [examples, 8, 8]
    parameters: tuple[LeafNode, ...]  # the layer's, then weight and bias of the linear map


class TensorMixingTask(GFNTask):
    """Scores a program by the validation accuracy of a linear classifier on its output, both trained.

    Input `X[8,8]` is an image; the program's other inputs are its parameters. The gradient of the cross entropy is
    derived symbolically and compiled (gflownet.autodiff); torch.autograd is not used.
    """

    Config = TensorMixingConfig

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self.inputs = read_inputs(config.env.tensor_graph.inputs)
        if self.inputs.get(IMAGE) != (SIDE, SIDE):
            raise ValueError(f"env.tensor_graph.inputs: expected {IMAGE}[{SIDE},{SIDE}] among {[*self.inputs]}")
        self._splits = digits_splits(seed=config.evaluation.split_seed)

    def fingerprint(self) -> str:
        """Return a digest of the images."""
        splits = (self._splits.train, self._splits.validation, self._splits.test)
        return data_digest(values for split in splits for values in (split.inputs, split.targets))

    def evaluate(self, graph: TensorProgram, *, seed: int) -> Score:
        """Return the accuracy on validation images after training."""
        trained = self._trained(graph)
        if trained is None:  # the program does not read the image: one class for all
            return Score(1 / NUM_CLASSES, num_parameters=0, metrics={"train_loss": 0.0})
        values, scale, loss = trained
        size = sum(value.numel() for value in values)
        score = self._accuracy(graph, values, scale, self._splits.validation)
        return Score(score, num_parameters=size, metrics={"train_loss": loss})

    def test(self, graph: TensorProgram, *, seed: int) -> float | None:
        """Return the accuracy on test images after the same training."""
        with seeded(seed):
            trained = self._trained(graph)
        return None if trained is None else self._accuracy(graph, trained[0], trained[1], self._splits.test)

    def reference(self, *, seeds: Sequence[int]) -> Reference:
        """Return the accuracies of scikit-learn's MLPClassifier on the same images."""
        return mlp_reference(self._splits, seeds=seeds)

    def _trained(self, graph: TensorProgram) -> tuple[list[Tensor], float, float] | None:
        """Return the trained parameters, the scale of the layer, and the last loss; None if no image is read."""
        images, targets = self._arrays(self._splits.train)
        layer, leaves = self._layer(graph, len(images))
        if layer.rank == 0 or IMAGE not in _names(layer):
            return None
        values = [torch.randn(leaf.shape) / SIDE**0.5 for leaf in leaves[1:]]
        bound = dict(zip(leaves, [images, *values], strict=True))
        spread = float(evaluate([layer], bound)[0].std())
        scale = 1 / spread if 0 < spread < float("inf") else 1.0
        classifier = self._classifier(graph, len(images), scale)
        values += [torch.zeros(leaf.shape) for leaf in classifier.parameters[len(values) :]]
        return values, scale, self._descend(classifier, images, targets, values)

    def _descend(self, classifier: Classifier, images: Tensor, targets: Tensor, values: Sequence[Tensor]) -> float:
        """Train the values in place by Adam with the compiled symbolic gradient, and return the last loss."""
        options = self.config.task_options
        labels = LeafNode(targets.shape, kind=LeafKind.CONSTANT, value=targets)
        loss = Mean(PickNegLogSoftmax(classifier.logits, labels))
        leaves = classifier.parameters
        program = compile([loss, *gradient(loss, leaves)], leaves=[classifier.images, *leaves])
        optimiser = torch.optim.Adam(list(values), lr=options.learning_rate)
        last = torch.zeros(())
        for _ in range(options.num_steps):
            last, *gradients = program(images, *values)
            for value, by_value in zip(values, gradients, strict=True):
                value.grad = by_value
            optimiser.step()
        return float(last)

    def _layer(self, graph: TensorProgram, num_images: int) -> tuple[Node, list[LeafNode]]:
        """Return the program on a batch of images and the leaves it depends on, the images first."""
        images = LeafNode((num_images, SIDE, SIDE), name=IMAGE, requires_grad=False, dtype=torch.float32)
        leaves = {
            name: LeafNode(shape, kind=LeafKind.PARAMETER, name=name, dtype=torch.float32)
            for name, shape in self.inputs.items()
            if name != IMAGE
        }
        layer = graph.node({IMAGE: images, **leaves})
        used = _names(layer)
        return layer, [images, *(leaf for name, leaf in leaves.items() if name in used)]

    def _classifier(self, graph: TensorProgram, num_images: int, scale: float) -> Classifier:
        layer, (images, *parameters) = self._layer(graph, num_images)
        axes = [*range(1, layer.rank + 1)]
        scaled = TransformNode(layer, axes, axes, alpha=scale)
        weight = _parameter("weight", (*layer.shape[1:], NUM_CLASSES))
        bias = _parameter("bias", (NUM_CLASSES,))
        summed, last = [-axis for axis in axes[1:]], layer.rank + 1
        product = LinearNode(scaled, weight, [1, last], [1, *summed], [*summed, last])
        logits = ElementwiseNode(product, bias, [1, 2], [1, 2], [2], operation="+")
        return Classifier(logits, images, (*parameters, weight, bias))

    def _accuracy(self, graph: TensorProgram, values: Sequence[Tensor], scale: float, split: Split) -> float:
        images, targets = self._arrays(split)
        classifier = self._classifier(graph, len(images), scale)
        bound = dict(zip([classifier.images, *classifier.parameters], [images, *values], strict=True))
        logits = evaluate([classifier.logits], bound)[0]
        return float((logits.argmax(1) == targets.argmax(1)).float().mean())

    def _arrays(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return images [examples, 8, 8] and their classes, one-hot."""
        targets = torch.nn.functional.one_hot(split.targets, NUM_CLASSES).float()
        return split.inputs.reshape(-1, SIDE, SIDE), targets


def _parameter(name: str, shape: Sequence[int]) -> LeafNode:
    return LeafNode(shape, kind=LeafKind.PARAMETER, name=name, dtype=torch.float32)


def _names(node: Node) -> set[str]:
    """Return the names of the leaves that a node depends on."""
    return {leaf.name or "" for leaf in topological_order([node]) if isinstance(leaf, LeafNode)}
