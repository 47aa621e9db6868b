"""Checks of the splits of a data set: one line for each mistake, before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from gflownet.errors import UserError, counted, with_summary
from gflownet.evaluation.data.examples import (
    IGNORED,
    DatasetSplit,
    Split,
    Splits,
    input_shape,
    is_classification,
    labelled_classes,
    num_outputs,
    output_shape,
)
from gflownet.evaluation.data.splits import check_classes_of_splits
from gflownet.operations.tensor_shape import CHANNELS_FIRST
from gflownet.training.random_states import seeded

# More classes than examples are allowed up to here.
_MAX_EMPTY_CLASSES = 1000
# Share of the validation and test examples that may be training examples too; by chance a few are.
MAX_REPEATED = 0.05


def check_splits(splits: Splits, *, key: str) -> None:
    """Raise UserError unless models can be trained on the splits.

    Args:
        splits: training, validation and test examples.
        key: option that names the data, for errors.
    """
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    for name, part in parts.items():
        if isinstance(part, DatasetSplit):
            check_dataset(part.dataset, key=key)
        _check_tensors(part, key=key, name=name)
    for name, part in parts.items():
        expected, got = (_kind(each.example, each.targets) for each in (splits.train, part))
        if expected != got:
            raise UserError(f"{key}: expected {name} examples as in training, {expected}, got {got}")
    if is_classification(splits.train.targets):
        _check_classes(splits, key=key)


def with_shaped_targets(splits: Splits, *, key: str, per: str = "auto") -> Splits:
    """Return splits whose targets are those of examples, or of positions as the models of graphs predict them.

    Args:
        splits: targets [N], [N, K] numbers, [N, *positions], or [N, *shape of the output] numbers.
        key: option that names the data, for errors.
        per: position, example, or auto: classes with axes and numbers with two or more axes are those of positions, as
            many as in the inputs.

    Raises:
        UserError: targets of another shape.
    """
    inputs = input_shape(splits)
    splits = _with_channels_first(splits) if inputs.layout in CHANNELS_FIRST else splits
    targets, positions = splits.train.targets, inputs.positions
    classes, sizes = is_classification(targets), list(targets.shape[1:])
    if not sizes or (not classes and len(sizes) == 1 and per != "position"):
        return splits
    axis = 1 if inputs.layout in CHANNELS_FIRST else -1  # of channels
    has_channels = not classes and len(sizes) == len(positions) + 1
    like = tuple((sizes[:-1] if axis < 0 else sizes[1:]) if has_channels else sizes)
    has_axes = bool(positions) and len(like) == len(positions)
    if not has_axes or per == "example" or (per == "auto" and like != positions):
        _refuse_targets(splits, key=key, is_vector=not has_axes)
    if not (classes or has_channels):
        if any(isinstance(part, DatasetSplit) for part in splits):
            raise UserError(f"{key}: expected numbers with an axis of channels from a Dataset, got targets {sizes}")
        splits = splits.changed(lambda part: replace(part, targets=part.targets.unsqueeze(axis)))
    return replace(splits, summary=(*splits.summary, _target_words(splits)))


def _with_channels_first(splits: Splits) -> Splits:
    """Return splits in memory whose targets [N, *positions, K] have their channels on axis 1."""
    targets, positions = splits.train.targets, input_shape(splits).positions
    if targets.shape[1:-1] != positions or targets.shape[2:] == positions or not isinstance(splits.train, Split):
        return splits
    line = f"targets {list(targets.shape[1:])}: the last axis is that of channels"
    summary = (*splits.summary, line)
    return splits.changed(lambda part: replace(part, targets=part.targets.movedim(-1, 1)), summary=summary)


def _refuse_targets(splits: Splits, *, key: str, is_vector: bool) -> NoReturn:
    """Raise UserError for targets with axes that fit neither examples nor positions."""
    targets, group = splits.train.targets, key.rpartition(".")[0]
    shape = list(targets.shape[1:])
    if not is_classification(targets):
        other = "" if is_vector else f" or {group}.per=position"
        text = f"expected targets [N] or [N, K], got {list(targets.shape)}; targets.reshape(len(targets), -1){other}"
    elif len(shape) == 1 and int(targets.max()) <= 1:
        text = f"expected one class per example, got {shape[0]} labels (multi-label); {group}.kind=numbers"
    else:
        positions = input_shape(splits).positions
        has_labels = is_vector and len(shape) == len(positions) + 1
        other = f"{group}.kind=numbers" if has_labels else "task=choices" if is_vector else f"{group}.per=position"
        words = f" or at each of {' x '.join(map(str, positions))} positions" if positions else ""
        text = f"expected one class per example{words}, got classes {shape}; {other}"
    with with_summary(splits.summary):
        raise UserError(f"{key}: {text} takes them")


def _target_words(splits: Splits) -> str:
    """Return a line about targets of positions: the most frequent class, and positions without one."""
    targets, shape = torch.cat([part.targets for part in splits]), output_shape(splits)
    sizes = " x ".join(map(str, shape.positions))
    if not is_classification(targets):
        return f"targets: {counted(shape.channels, 'number')} at each of {sizes} positions"
    counts = torch.bincount(labelled_classes(targets))
    source = splits.columns or splits.arrays
    names = (source.target.labels if source is not None else ()) or range(len(counts))
    words = f"{100 * int(counts.max()) / int(counts.sum()):.3g} % class {names[int(counts.argmax())]}"
    num_ignored = targets.numel() - int(counts.sum())
    words += f"; {100 * num_ignored / targets.numel():.3g} % without a class" if num_ignored else ""
    return f"targets: one of {shape.channels} classes at each of {sizes} positions; {words}"


def check_present(splits: Splits, *, key: str) -> None:
    """Raise UserError unless two or more targets occur, in each split too, and all class numbers below the largest."""
    group, targets = key.rpartition(".")[0], torch.cat([part.targets for part in splits])
    if targets.ndim > 1 and not is_classification(targets):
        return
    is_class, targets = targets.ndim == 1 and is_classification(targets), labelled_classes(targets)
    is_text = not is_class and not splits.train.example.is_floating_point()
    source, present = splits.columns or splits.arrays, targets.unique().tolist()
    target = None if source is None else source.target
    if len(present) < 2:
        label = (*(target.labels if target is not None else ()), present[0])[0]
        setting = f"; {group}.target takes another column" if target is not None and target.name else ""
        raise UserError(f"{key}: expected different targets, got only {label}{setting}")
    if not is_classification(targets) or is_text:  # tokens of a vocabulary need not all occur
        return
    if missing := sorted(set(range(present[-1])) - set(present)):
        text = f"expected all classes from 0 to {present[-1]}, got none with {missing[0]}"
        text += f"; {group}.kind=classes takes those that occur, numbered from 0"
        is_void = len(missing) == present[-1] - present[-2] - 1 and len(present) > 2
        text += f"; {group}.ignored={present[-1]} leaves out the positions of {present[-1]}" * is_void
        raise UserError(f"{key}: {text}")
    if is_class:
        names = (target is not None and target.labels) or range(present[-1] + 1)
        try:
            check_classes_of_splits([part.targets.numpy() for part in splits], [*map(str, names)])
        except UserError as error:
            raise UserError(f"{key}: {error}") from None


def check_repeated(splits: Splits, *, key: str) -> None:
    """Raise UserError if many validation and test examples are also training examples."""
    training, *later = (
        [x.tobytes() + y.tobytes() for x, y in zip(part.inputs.numpy(), part.targets.numpy(), strict=True)]
        for part in splits
    )
    training, tested = set(training), [row for rows in later for row in rows]
    num = sum(row in training for row in tested)
    if num > MAX_REPEATED * len(tested):
        group = key.rpartition(".")[0]
        raise UserError(
            f"{key}: expected other examples for validation and test than in training, got {num} of {len(tested)} that "
            f"are in both; {group}.duplicates=together keeps equal rows in one split, =keep takes them as they are"
        )


def check_dataset(dataset: Dataset[Any], *, key: str) -> None:
    """Raise UserError unless a Dataset has a length and pairs (input, target) that make batches."""
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{key}: expected a Dataset with __len__ and __getitem__, got {name}")
    split = DatasetSplit(dataset)
    if not len(split):
        raise UserError(f"{key}: expected examples in every split, got an empty Dataset {name}")
    try:
        with seeded(0):
            inputs, _ = split.batch([0, len(split) - 1])
            num_targets = len(split.targets)
    except Exception as error:  # raised by the user's Dataset, or by a batch of its items
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{key}: expected a Dataset of pairs (input, target), tensors of one shape and numbers, got "
            f"{type(error).__name__} from {name}: {reason}"
        ) from error
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise UserError(f"{key}: expected finite numbers, got nan or inf from {name}")
    if num_targets != len(split):
        raise UserError(f"{key}: expected a target per example, got {num_targets} targets of {len(split)} examples")


def _check_tensors(part: Any, *, key: str, name: str) -> None:
    """Raise UserError for a split without examples, with nan or inf, or of unequal lengths."""
    if not len(part):
        raise UserError(f"{key}: expected {name} examples, got none")
    if not isinstance(part, Split):
        return
    if len(part.inputs) != len(part.targets):
        raise UserError(f"{key}: expected one target per {name} example, got {len(part.targets)} of {len(part.inputs)}")
    for values, kind in ((part.inputs, "inputs"), (part.targets, "targets")):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise UserError(f"{key}: expected finite {name} {kind}, got nan or inf")


def _kind(example: Tensor, targets: Tensor) -> str:
    inputs = "numbers" if example.is_floating_point() else "tokens"
    kind = "classes" if is_classification(targets) else "numbers"
    shape = list(targets.shape[1:])
    return f"{inputs} {list(example.shape)} with {kind}" + (f" {shape}" if shape else "")


def check_numbering(classes: Tensor, *, num_examples: int, key: str) -> None:
    """Raise UserError for a class far above the number of examples."""
    largest = int(classes.max()) if len(classes) else 0
    if largest >= max(_MAX_EMPTY_CLASSES, num_examples):
        raise UserError(f"{key}: expected classes numbered from 0, got {largest} in {num_examples} examples")


def _check_classes(splits: Splits, *, key: str) -> None:
    """Raise UserError unless classes are from 0 to one less than their number, or IGNORED at some positions."""
    has_positions, num_classes = splits.train.targets.ndim > 1, num_outputs(splits)
    if not has_positions and splits.num_outputs is None:
        check_numbering(splits.train.targets, num_examples=sum(map(len, splits)), key=key)
    for name, part in zip(("train", "validation", "test"), splits, strict=True):
        has_target = (part.targets != IGNORED).reshape(len(part), -1).any(1)
        if has_positions and not bool(has_target.all()):
            place = int(has_target.int().argmin())
            raise UserError(f"{key}: expected a target in every {name} example, got only {IGNORED} in example {place}")
        classes = labelled_classes(part.targets) if has_positions else part.targets
        wrong = classes[(classes < 0) | (classes >= num_classes)]
        if len(wrong):
            expected = f"classes from 0 to {max(0, num_classes - 1)}, those of the training examples"
            is_mark = has_positions and "." in key and wrong[0] < 0
            group = key.rpartition(".")[0]
            takes = f"; {group}.kind=classes takes those that occur" if wrong[0] < 0 and not has_positions else ""
            takes = f"; {group}.ignored={wrong[0]} takes it for none" if is_mark else takes
            raise UserError(f"{key}: expected {expected}, got {wrong[0]} in the {name} examples{takes}")
