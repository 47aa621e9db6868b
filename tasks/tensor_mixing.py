"""Find a layer that mixes the rows and columns of an image: a tensor program, trained by its own symbolic gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gflownet.autodiff.compilation import compile_value_and_gradient
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.factories import Mean
from gflownet.autodiff.log_softmax import PickNegLogSoftmax
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, TransformNode
from gflownet.envs.tensor_program import TensorProgram, read_inputs
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.randomness import seeded
from gflownet.evaluation.task import GFNTask, Score
from gflownet.evaluation.training import Split

from .digits import digits_splits

IMAGE = "X"  # the input that is an image; all others are parameters
SIDE, NUM_CLASSES = 8, 10


@dataclass
class TensorMixingConfig:
    """How a layer is trained."""

    num_steps: int = field(default=40, metadata={"help": "steps of Adam on all training images"})
    learning_rate: float = field(default=0.03, metadata={"help": "learning rate of Adam"})


@dataclass(frozen=True)
class Classifier:
    """A layer and the linear map to classes that reads it, as nodes on a batch of images."""

    logits: Node  # [examples, classes]
    images: LeafNode  # [examples, 8, 8]
    parameters: tuple[LeafNode, ...]  # the layer's, then weight and bias of the linear map


class TensorMixingTask(GFNTask):
    """Scores a program by the validation accuracy of a linear classifier of what it makes of images, both trained.

    Input `X[8,8]` is an image; the program's other inputs are its parameters. The gradient of the cross entropy is
    derived from the nodes and compiled (gflownet.autodiff); torch differentiates nothing.
    """

    Config = TensorMixingConfig

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        if options.num_steps < 1 or not options.learning_rate > 0:
            raise ValueError(
                f"task_options: expected num_steps >= 1 and learning_rate > 0, "
                f"got {options.num_steps} and {options.learning_rate}"
            )
        self.inputs = read_inputs(config.env.tensor_graph.inputs)
        if self.inputs.get(IMAGE) != (SIDE, SIDE):
            raise ValueError(f"env.tensor_graph.inputs: expected {IMAGE}[{SIDE},{SIDE}] among {[*self.inputs]}")
        self._splits = digits_splits(seed=config.evaluation.split_seed)

    def evaluate(self, graph: TensorProgram, *, seed: int) -> Score:
        """Return the accuracy on validation images after training."""
        found = self._trained(graph)
        if found is None:  # no image in it: one class for all
            return Score(1 / NUM_CLASSES, num_parameters=0, metrics={"train_loss": 0.0})
        values, scale, loss = found
        size = sum(value.numel() for value in values)
        score = self._accuracy(graph, values, scale, self._splits.validation)
        return Score(score, num_parameters=size, metrics={"train_loss": loss})

    def test(self, graph: TensorProgram, *, seed: int) -> float | None:
        """Return the accuracy on test images after the same training."""
        with seeded(seed):
            found = self._trained(graph)
        return None if found is None else self._accuracy(graph, found[0], found[1], self._splits.test)

    def _trained(self, graph: TensorProgram) -> tuple[list[Tensor], float, float] | None:
        """Return the trained parameters, what the layer is scaled by, and the last loss; None if it sees no image."""
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
        chosen = LeafNode(targets.shape, kind=LeafKind.CONSTANT, value=targets)
        loss = Mean(PickNegLogSoftmax(classifier.logits, chosen))
        leaves = classifier.parameters
        program = compile_value_and_gradient(loss, leaves, leaves=[classifier.images, *leaves])
        optimiser = torch.optim.Adam(list(values), lr=options.learning_rate)
        last = torch.zeros(())
        for _ in range(options.num_steps):
            last, *gradients = program(images, *values)
            for value, gradient in zip(values, gradients, strict=True):
                value.grad = gradient
            optimiser.step()
        return float(last)

    def _layer(self, graph: TensorProgram, num_images: int) -> tuple[Node, list[LeafNode]]:
        """Return the program on a batch of images, and its leaves that it depends on, the images first."""
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
        layer, (images, *own) = self._layer(graph, num_images)
        axes = [*range(1, layer.rank + 1)]
        scaled = TransformNode(layer, axes, axes, alpha=scale)
        weight = _parameter("weight", (*layer.shape[1:], NUM_CLASSES))
        bias = _parameter("bias", (NUM_CLASSES,))
        summed, last = [-axis for axis in axes[1:]], layer.rank + 1
        product = LinearNode(scaled, weight, [1, last], [1, *summed], [*summed, last])
        logits = ElementwiseNode(product, bias, [1, 2], [1, 2], [2], operation="+")
        return Classifier(logits, images, (*own, weight, bias))

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
