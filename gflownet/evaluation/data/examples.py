"""Examples of a task, as tensors or a torch Dataset, in shuffled or ordered batches, with random changes by name.

N: examples, B: batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from gflownet.errors import UserError
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.training.random_states import seeded
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.table_columns import TableColumns

Batch = tuple[Tensor, ...]  # inputs [B, ...], targets [B, ...] and, where examples have them, weights [B]

# Input values of one batch of an evaluation: activations of a larger one leave the cache of a core.
_BATCH_ELEMENTS = 2**16
_MIN_BATCH = 32
_DIGEST_EXAMPLES = 64
IGNORED = -100  # class of a position without a target, as in torch.nn.functional.cross_entropy


def batch_sizes(num: int, batch_size: int) -> list[int]:
    """Return the sizes of the batches of `num` examples.

    A single last example joins the batch before: a batch norm cannot normalise one vector.
    """
    sizes = [batch_size] * (num // batch_size)
    remainder = num % batch_size
    if remainder == 1 and sizes:
        sizes[-1] += 1
    elif remainder:
        sizes.append(remainder)
    return sizes


@dataclass(frozen=True)
class Split:
    """Labelled examples in memory."""

    inputs: Tensor  # [N, ...] float, or int64 tokens [N, T]
    # [N] int64 classes, [N, *positions] int64 classes or tokens, [N], [N, O] or [N, *shape of the output] float
    targets: Tensor
    weights: Tensor | None = None  # [N] in loss and metrics; None: all alike

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tensors(self) -> Batch:
        """All examples as one batch."""
        return (self.inputs, self.targets, *(() if self.weights is None else (self.weights,)))

    @property
    def example(self) -> Tensor:
        """The input of one example."""
        return self.inputs[0]

    def to(self, device: torch.device) -> Split:
        """Return the examples on a device."""
        return Split(*(each.to(device) for each in self.tensors))

    def shuffled(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Return the batches of one epoch in a new random order."""
        # One gather per epoch and views of it per batch: a DataLoader takes longer than the steps of a small model.
        order = torch.randperm(len(self), generator=generator).to(self.inputs.device)
        sizes = batch_sizes(len(self), batch_size)
        return zip(*(each.index_select(0, order).split(sizes) for each in self.tensors), strict=True)

    def in_order(self) -> Iterator[Batch]:
        """Return all examples in batches for an evaluation."""
        size = max(_MIN_BATCH, _BATCH_ELEMENTS // max(1, self.example.numel()))
        return zip(*(each.split(size) for each in self.tensors), strict=True)


@dataclass(frozen=True)
class DatasetSplit:
    """Labelled examples of a map-style Dataset of pairs (input, target), loaded item by item in this process."""

    dataset: Dataset[Any]
    device: torch.device | str = "cpu"  # of its batches
    weights: None = None  # see Split

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @cached_property
    def example(self) -> Tensor:
        """The input of the first example."""
        return self.batch([0])[0][0]

    @cached_property
    def targets(self) -> Tensor:
        """The targets of all examples: the attribute `targets` of the dataset, or read from every item."""
        targets = getattr(self.dataset, "targets", None)
        if targets is None:
            targets = default_collate([self.dataset[index][1] for index in range(len(self))])
        return in_columns(torch.as_tensor(targets)).to(self.device)

    def to(self, device: torch.device) -> DatasetSplit:
        """Return the examples with batches on a device."""
        return DatasetSplit(self.dataset, device)

    def shuffled(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Return the batches of one epoch in a new random order."""
        order = torch.randperm(len(self), generator=generator)
        return (self.batch(part.tolist()) for part in order.split(batch_sizes(len(self), batch_size)))

    def in_order(self) -> Iterator[Batch]:
        """Return all examples in batches for an evaluation."""
        size = max(_MIN_BATCH, _BATCH_ELEMENTS // max(1, self.example.numel()))
        starts = range(0, len(self), size)
        return (self.batch(range(start, min(start + size, len(self)))) for start in starts)

    def digest_inputs(self) -> Iterator[Tensor]:
        """Yield evenly spaced inputs for a digest; random augmentation is seeded."""
        with seeded(0):
            for index in range(0, len(self), max(1, len(self) // _DIGEST_EXAMPLES)):
                yield self.batch([index])[0]

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return some examples: bytes are divided by 255, other inputs with two or more axes become float32."""
        inputs, targets = default_collate([tuple(self.dataset[index]) for index in indices])
        is_tokens = inputs.ndim == 2 and not inputs.is_floating_point() and inputs.dtype != torch.bool
        if is_tokens and (inputs.dtype != torch.uint8 or targets.ndim > 1):
            inputs = inputs.long()
        else:
            inputs = inputs / 255 if inputs.dtype == torch.uint8 else inputs.float()
        return inputs.to(self.device), in_columns(targets).to(self.device)


Examples = Split | DatasetSplit


def num_steps(examples: Examples, batch_size: int) -> int:
    """Return the number of batches of an epoch."""
    return len(batch_sizes(len(examples), batch_size))


@dataclass(frozen=True)
class Splits:
    """Three disjoint sets of labelled examples; classes are numbered from 0."""

    train: Any  # Examples, as the others: Split, or DatasetSplit
    validation: Any
    test: Any  # used by the final stage only
    # Of an input (gflownet.operations.tensor_shape.Layout); None: by its number of axes.
    layout: str | None = field(default=None, kw_only=True)
    # Classes, tokens or numbers that a model predicts; None: read from `train`.
    num_outputs: int | None = field(default=None, kw_only=True)
    # How raw rows of a table become inputs; None: no table.
    columns: TableColumns | None = field(default=None, kw_only=True)
    # How images or signals in memory become inputs; None: a table, or a Dataset.
    arrays: ArrayInputs | None = field(default=None, kw_only=True)
    # Lines about what was read, converted and left out, and why: printed by the run before a refusal, and kept.
    summary: tuple[str, ...] = field(default=(), kw_only=True)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.train, self.validation, self.test))

    def changed(self, change: Callable[[Split], Split], **fields: Any) -> Splits:
        """Return splits with changed examples in memory, and other fields; Datasets stay."""
        train, validation, test = (change(part) if isinstance(part, Split) else part for part in self)
        return replace(self, train=train, validation=validation, test=test, **fields)


def in_columns(targets: Tensor) -> Tensor:
    """Return numbers [N] as float32 [N, 1], as a model predicts them; classes as int64."""
    if not targets.is_floating_point():
        return targets.long()
    targets = targets.float() if targets.dtype == torch.float64 else targets
    return targets.unsqueeze(1) if targets.ndim == 1 else targets


def labelled_classes(targets: Tensor) -> Tensor:
    """Return the classes [M] of all examples and positions, without those that are IGNORED."""
    return targets[targets != IGNORED]


def is_classification(targets: Tensor) -> bool:
    """Return whether targets are classes or tokens."""
    return not targets.is_floating_point()


def num_outputs(splits: Splits) -> int:
    """Return the number of classes, tokens or numbers that a model predicts."""
    if splits.num_outputs is not None:
        return splits.num_outputs
    targets = splits.train.targets
    if not is_classification(targets):
        return math.prod(targets.shape[1:])
    largest = int(targets.max())
    if targets.ndim > 1 and not splits.train.example.is_floating_point():  # tokens of one vocabulary
        largest = max([largest, *(int(inputs.max()) for inputs, *_ in splits.train.in_order())])
    return largest + 1


def input_shape(splits: Splits) -> Shape:
    """Return the shape of one input."""
    example = splits.train.example
    layout = splits.layout if example.is_floating_point() else Layout.TOKENS
    return Shape.of(tuple(example.shape), layout)


def output_shape(splits: Splits) -> Shape:
    """Return the shape of one output: a vector, or the positions of the targets with a channel per class or number."""
    inputs, targets, num = input_shape(splits), splits.train.targets, num_outputs(splits)
    like = Shape((*inputs.positions, 1), Layout.SEQUENCE) if inputs.layout is Layout.TOKENS else inputs
    sizes = tuple(targets.shape[1:])
    if is_classification(targets) and like.positions and len(sizes) == len(like.positions):
        return like.with_positions(sizes).with_channels(num)
    if not is_classification(targets) and like.positions and len(sizes) == len(like.sizes):
        return Shape(sizes, like.layout)
    return Shape((num,), Layout.VECTOR)


AUGMENTATIONS = ("crop", "flip", "noise", "mixup")
_MARGIN = 1 / 8  # crop: share of a side that is added at both ends
_NOISE = 0.1  # noise: deviations of the batch


def check_augmentation(names: Sequence[str], train: Examples, *, loss: str, output: Shape) -> None:
    """Raise UserError for an unknown name, or one that the examples do not allow.

    Targets of positions move with their inputs; a crop has no number there.
    """
    allowed = AUGMENTATIONS if train.example.ndim > 1 else ("noise", "mixup")
    if output.positions:
        is_moved = output.channel_axis == 0 and output.positions == tuple(train.example.shape[1:])
        num = 0 if not is_moved else 3 if is_classification(train.targets) else 2
        allowed = ("noise", "flip", "crop")[: max(1, num)]
    allowed = allowed if ":" not in loss else tuple(name for name in allowed if name != "mixup")
    for name in names:
        if name not in allowed or not train.example.is_floating_point():
            words = f"some of {', '.join(allowed)}" if train.example.is_floating_point() else "none for tokens"
            raise UserError(f"evaluation.training.augment: expected {words}, got {name!r}")


def augmented(batch: Batch, names: Sequence[str], *, num_outputs: int, generator: torch.Generator) -> Batch:
    """Return a batch changed at random by the generator; targets are probabilities after mixup (Zhang et al. 2018).

    Crop and flip move the targets of positions, too, which are channels meanwhile; without one they are IGNORED.
    """
    inputs, targets, *weights = batch
    is_moved = targets.ndim >= inputs.ndim - is_classification(targets) > 1 and not {"crop", "flip"}.isdisjoint(names)
    if is_moved:
        planes = targets.unsqueeze(1) - IGNORED if is_classification(targets) else targets
        inputs, num_channels = torch.cat([inputs, planes.to(inputs)], 1), inputs.shape[1]
    if "crop" in names:
        for axis in range(2, inputs.ndim):
            inputs = _cropped(inputs, axis, generator)
    if "flip" in names:
        is_flipped = (torch.rand(len(inputs), generator=generator) < 0.5).to(inputs.device)
        inputs = torch.where(is_flipped.reshape(-1, *[1] * (inputs.ndim - 1)), inputs.flip(-1), inputs)
    if is_moved:
        inputs, planes = inputs[:, :num_channels], inputs[:, num_channels:]
        targets = planes[:, 0].long() + IGNORED if is_classification(targets) else planes
    if "noise" in names:
        inputs = inputs + _NOISE * inputs.std() * torch.randn(inputs.shape, generator=generator).to(inputs.device)
    if "mixup" in names:
        order, share = torch.randperm(len(inputs), generator=generator), torch.rand(1, generator=generator)
        order, share = order.to(inputs.device), share.to(inputs.device)
        targets = F.one_hot(targets, num_outputs).to(inputs) if is_classification(targets) else targets
        inputs, targets, *weights = (share * x + (1 - share) * x[order] for x in (inputs, targets, *weights))
    return inputs, targets, *weights


def _cropped(inputs: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Return inputs shifted at random along an axis, each by its own number of places, with zeros at the end."""
    size = inputs.shape[axis]
    margin = max(1, round(size * _MARGIN))
    places = (torch.randint(2 * margin + 1, (len(inputs), 1), generator=generator) + torch.arange(size)).to(
        inputs.device
    )
    shape = [len(inputs) if each == 0 else size if each == axis else 1 for each in range(inputs.ndim)]
    padded = F.pad(inputs, [0, 0] * (inputs.ndim - 1 - axis) + [margin, margin])
    return padded.gather(axis, places.reshape(shape).expand(inputs.shape))
