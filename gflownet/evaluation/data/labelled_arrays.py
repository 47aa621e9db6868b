"""Arrays of labelled examples: their checks, class numbers and scales, the same for files and callables.

N: examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gflownet.errors import UserError
from gflownet.evaluation.data.examples import IGNORED
from gflownet.evaluation.data.table_fitting import RawTable
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.table_columns import code_width, is_number, with_width

_BYTE = 255.0


@dataclass(frozen=True)
class LabelledArrays:
    """Examples of a file or callable, and the test examples in it."""

    inputs: np.ndarray  # [N, ...] float, or integers that are tokens
    targets: np.ndarray  # [N] integers: classes; floats: numbers
    test: LabelledArrays | None = None
    validation: LabelledArrays | None = field(default=None, kw_only=True)
    arrays: ArrayInputs | None = field(default=None, kw_only=True)  # of files of a folder
    is_padded: bool = field(default=False, kw_only=True)  # signals of several lengths, with their mask, see `padded`
    columns: tuple[str, ...] = ()  # names of the inputs of a CSV file
    target: str = ""  # name of the target of a table, or names of several with commas
    labels: tuple[str, ...] | None = None  # texts of classes, by class number; None: the data numbers them
    scale: float | None = None  # by which integer inputs were divided
    table: RawTable | None = None  # cells of the inputs of a CSV or Parquet file
    groups: np.ndarray | None = None  # [N] integers: rows of a group are in one split
    times: np.ndarray | None = None  # [N] integers: order in which the rows are split
    weights: np.ndarray | None = None  # [N] of the examples in loss and metrics
    layout: str | None = None  # of the inputs; None: by their shape
    target_formats: tuple[str, ...] = ()  # of numbers in a file, see Column.format
    summary: tuple[str, ...] = ()  # see Splits

    @property
    def target_names(self) -> list[str]:
        """The columns of the targets of a table."""
        return self.target.split(",") if self.targets.ndim > 1 else [self.target]

    @property
    def has_classes(self) -> bool:
        """Whether the targets are classes or tokens."""
        return not np.issubdtype(self.targets.dtype, np.floating)


def labelled(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    where: str,
    kind: str = "auto",
    train: LabelledArrays | None = None,
    ignored: int = IGNORED,
) -> LabelledArrays:
    """Return arrays of equal length as examples.

    Bytes, and integers with three or more axes, are pixels: bytes are divided by 255, others by their largest value.
    Texts and one-hot rows become classes.

    Args:
        inputs: [N, ...].
        targets: [N] or [N, ...].
        where: option and source, for errors.
        kind: of the targets: numbers, classes (those that occur, numbered in their order) or auto.
        train: training examples, with their classes and scale; None: these are the training examples.
        ignored: class, next to empty texts, of positions without a target.

    Raises:
        UserError: arrays of other lengths or types, or a class that the training examples do not have.
    """
    if inputs.ndim < 2 or targets.ndim < 1 or len(inputs) != len(targets):
        raise UserError(
            f"{where}: expected inputs [N, ...] and targets [N], got {list(inputs.shape)} and {list(targets.shape)}"
        )
    if inputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biufUS":
        raise UserError(
            f"{where}: expected numbers, and classes or numbers as targets, got {inputs.dtype} and {targets.dtype}"
        )
    targets = plain_targets(inputs, targets, kind=kind)
    if kind == "numbers":
        if targets.dtype.kind in "US":
            raise UserError(f"{where}: expected numbers as targets, got texts such as {targets.flat[0]}")
        targets = targets.astype(np.float64)
    if kind == "classes" and targets.ndim == 1 and (train is None or train.labels is not None):
        targets = targets.astype(str)
    if targets.ndim > 1 and (targets.dtype.kind in "biuUS" or kind == "classes"):
        targets, labels = _numbered_positions(targets, where=where, kind=kind, train=train, ignored=ignored)
    else:
        targets, labels = _numbered(targets, where=where, train=train)
    if train is not None and np.issubdtype(targets.dtype, np.floating) == train.has_classes:
        kinds = ("classes", "numbers") if train.has_classes else ("numbers", "classes")
        raise UserError(f"{where}: expected {kinds[0]} as in the training examples, got {kinds[1]}")
    inputs = inputs.astype(np.float32) if inputs.dtype.kind == "b" else inputs
    scale = (train.scale if train is not None else None) or _scale(inputs, targets)
    inputs = inputs / scale if scale is not None and inputs.dtype.kind != "f" else inputs
    check_finite(inputs, where=where)
    return LabelledArrays(inputs, targets, labels=labels, scale=scale)


def plain_targets(inputs: np.ndarray, targets: np.ndarray, *, kind: str) -> np.ndarray:
    """Return targets without an axis of one channel, and the classes of one-hot ones, of examples or of positions.

    Numbers [N, 1, T] and [N, T, 1] keep their axis. Bits in the shape of tokens or of grey images are not one-hot.
    """
    is_shaped = targets.shape == inputs.shape and (targets.ndim == 3 or inputs.dtype.kind != "f")
    has_bits = kind != "numbers" and not is_shaped and targets.dtype.kind in "biuf" and _are_bits(targets)
    for axis, rest in ((1, targets.shape[2:]), (-1, targets.shape[1:-1])):
        if targets.ndim < 2 or (rest and rest not in positions_of(inputs)):
            continue
        if targets.shape[axis] == 1 and (targets.ndim != 3 or targets.dtype.kind != "f"):
            return targets.squeeze(axis)
        if has_bits and targets.shape[axis] > 1 and bool((targets.sum(axis) == 1).all()):
            return targets.argmax(axis)
    return targets


def positions_of(inputs: np.ndarray) -> set[tuple[int, ...]]:
    """Return the shapes that targets of the positions of an input may have, by the axis of its channels."""
    return {inputs.shape[1:], inputs.shape[2:], inputs.shape[1:-1]}


def _are_bits(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def check_finite(values: np.ndarray, *, where: str) -> None:
    """Raise UserError for nan or inf."""
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        raise UserError(f"{where}: expected finite numbers, got nan or inf")


def checked_weights(weights: Any, *, where: str, num: int | None = None) -> np.ndarray:
    """Return the weights [N] of examples. Raises UserError for another number of them, or one below 0."""
    weights = np.asarray(weights, dtype=np.float64)
    if num is not None and weights.shape != (num,):
        raise UserError(f"{where}: expected {num:,} weights, one per example, got {list(weights.shape)}")
    if not (np.isfinite(weights).all() and weights.min(initial=0) >= 0 and weights.any()):
        wrong = next((each for each in weights if not (np.isfinite(each) and each >= 0)), "only 0")
        raise UserError(f"{where}: expected weights of 0 or more, got {wrong}")
    return weights


def class_numbers(
    cells: Sequence[str], *, where: str, labels: tuple[str, ...] | None = None, rows: Sequence[int] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class of each text, and the texts of all classes in their order: numbers, then other texts.

    Raises:
        UserError: an empty text, or one that is not out of `labels`.
    """
    names = [_label(cell) for cell in cells]
    if labels is None:
        labels = tuple(
            sorted(set(names), key=lambda label: (0, float(label), label) if is_number(label) else (1, 0.0, label))
        )
    places, width = {label: place for place, label in enumerate(labels)}, code_width(labels)
    names = [name if name in places else with_width(name, width) for name in names]
    for row, name in zip(range(1, len(names) + 1) if rows is None else rows, names, strict=True):
        if not name:
            raise UserError(f"{where}: row {row}: expected a class, got nothing")
        if name not in places:
            shown = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
            raise UserError(f"{where}: row {row}: expected a class of the training examples ({shown}), got {name}")
    return np.array([places[name] for name in names], dtype=np.int64), labels


def class_values(labels: Sequence[str]) -> tuple[Any, ...]:
    """Return the texts of classes, as integers where all are."""
    is_whole = all(is_number(label) and label.lstrip("-").isdecimal() for label in labels)
    return tuple(int(label) for label in labels) if is_whole else tuple(labels)


def _numbered(
    targets: np.ndarray, *, where: str, train: LabelledArrays | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return classes as int64 and numbers as they are, and the texts of the classes."""
    if targets.dtype.kind == "f":
        return targets, None
    labels = None if train is None else train.labels
    if targets.dtype.kind not in "US" and labels is None:
        return targets.astype(np.int64), None
    if targets.ndim > 1 or (train is not None and labels is None):
        raise UserError(f"{where}: expected targets as in the training examples, or texts [N], got {targets.dtype}")
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in targets.tolist()]
    return class_numbers(texts, where=where, labels=labels)


def _numbered_positions(
    targets: np.ndarray, *, where: str, kind: str, train: LabelledArrays | None, ignored: int
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return the classes [N, *positions] of numbers or texts as int64, IGNORED where there is none, and their texts."""
    is_text = targets.dtype.kind in "US"
    labels = None if train is None else train.labels
    values: np.ndarray = targets.astype(str) if is_text else targets.astype(np.int64)
    if not is_text and (values != targets).any():
        raise UserError(f"{where}: expected whole numbers as classes, got {targets[values != targets][0]}")
    has_target = values != ("" if is_text else ignored)
    values = values.astype(str) if labels else values  # as long as its longest text, never cut to that of others
    if not (is_text or labels or (kind == "classes" and train is None)):
        return np.where(has_target, values, IGNORED), None
    names = np.unique(values[has_target]) if labels is None else np.array(labels)
    order = np.argsort(names)
    places = order[np.searchsorted(names, values, sorter=order).clip(max=len(names) - 1)]
    if (is_new := has_target & (names[places] != values)).any():
        shown = ", ".join(map(str, names[:10]))
        raise UserError(f"{where}: expected a class of the training examples ({shown}), got {values[is_new][0]}")
    return np.where(has_target, places, IGNORED), tuple(map(str, names))


def _scale(inputs: np.ndarray, targets: np.ndarray) -> float | None:
    """Return the number by which pixels are divided; None for floats and for tokens [N, T]."""
    if inputs.dtype.kind == "f" or not inputs.size:
        return None
    if inputs.ndim == 2 and (inputs.dtype != np.uint8 or targets.ndim > 1):
        return None
    return _BYTE if inputs.dtype == np.uint8 else max(1.0, float(np.abs(inputs.astype(np.float64)).max()))


def _label(cell: str) -> str:
    """Return the text of a class; equal numbers have one text."""
    text = cell.strip()
    if not is_number(text):
        return text
    return str(int(float(text))) if float(text).is_integer() else str(float(text))
