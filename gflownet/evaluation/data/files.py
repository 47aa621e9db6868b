"""Labelled examples from files: IDX (the format of MNIST), npz, tables, UCR's signals, images, sounds, scans."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gflownet.errors import UserError, counted, with_summary
from gflownet.evaluation.data.examples import IGNORED
from gflownet.evaluation.data.labelled_arrays import (
    LabelledArrays,
    checked_weights,
    class_values,
    labelled,
    plain_targets,
    positions_of,
)
from gflownet.evaluation.data.table_files import MAX_CLASSES, Reading, read_table
from gflownet.files import read_bytes
from gflownet.translation.array_inputs import ArrayInputs, padded
from gflownet.translation.example_files import (
    SPLITS,
    example_files,
    names_of_codes,
    read_example,
    read_mask,
    with_masks,
)
from gflownet.translation.table_columns import Target

_MAX_SHOWN = 5  # names per reason in the summary
_MAX_ABOUT = 12  # remarks about files in the summary, such as sizes of voxels
_VALUE_BYTES = 12  # in memory at once: as read, as an array, as tensors of the splits
# Type codes of the IDX format (LeCun, Cortes and Burges 1998).
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# Names of inputs and targets in an npz file, alone or with the word of a split before or after: x_train, val_images.
_NPZ_PAIRS = (("x", "y"), ("inputs", "targets"), ("images", "labels"), ("signals", "labels"), ("data", "labels"))
_NPZ_PAIRS += (("images", "masks"), ("tokens", "tags"))
_LENGTHS = ("lengths",)  # of padded signals
# Files of the UCR archive of time series: a class and then the values of a signal per row, without a header.
_UCR = re.compile(r"(.+_)(train|test)((?:\.tsv|\.txt)(?:\.gz)?)", re.IGNORECASE)

_MAX_MASK_CLASSES = 256
_VOID = "255"  # value of pixels without a class next to classes from 0 (Everingham et al. 2010)

Pair = tuple[np.ndarray, ...]  # inputs, targets and, of padded signals, lengths
Named = tuple[str, str, str]  # split, class and name of a file
Read = tuple[str, Any, np.ndarray, str]  # split, class or mask, values [C, ...] and name of a file


def read_file(
    path: str, *, key: str, reading: Reading | None = None, train: LabelledArrays | None = None
) -> LabelledArrays:
    """Return the examples of a CSV, Parquet or npz file, signals of UCR, an IDX file, or a folder of files.

    Args:
        path: its ending names the format: .csv, .tsv, .parquet, .npz, idx3-ubyte; .gz is unpacked.
        key: option that names it, for errors.
        reading: options of files; None: the defaults.
        train: training examples of which these are the test examples: columns, classes and scale are theirs.

    Raises:
        UserError: a missing or damaged file, missing columns or arrays, or values that are no numbers.
    """
    file = Path(path)
    if not file.exists():
        raise UserError(f"{key}: no such file: {path}")
    reading, where, summary = reading or Reading(), f"{key}: {path}", list[str]()
    try:
        with with_summary(summary):
            if reading.weights and not re.search(r"\.(npz|csv|tsv|parquet)", file.name):
                raise UserError(f"{where}: expected weights with a table or an npz file, got {reading.weights}")
            if file.is_dir() and not _idx_folder(file):
                return _read_folder(file, summary, key=key, reading=reading, train=train)
            if not (pairs := _pairs(file, summary, key=key, reading=reading)):
                return read_table(file, key=key, reading=reading, train=train)
            is_padded = any(len(pair) > 2 for pair in pairs.values())
            pairs = {split: _without_lengths(pair, where=where) if is_padded else pair for split, pair in pairs.items()}
            layout = "signal" if is_padded or _UCR.fullmatch(file.name) else None
            options: Any = {"key": key, "where": where, "kind": reading.kind, "layout": layout}
            options["ignored"] = reading.ignored
            arrays = _labelled(pairs.pop("train"), summary, train=train, **options)
            num = len(arrays.targets)
            if train is None and (groups := _array_of_npz(file, "groups", reading.group, where=where)) is not None:
                arrays = replace(arrays, groups=numbered_groups(groups, num=num, where=where))
            if (weights := _array_of_npz(file, "weights", reading.weights, where=where)) is not None:
                arrays = replace(arrays, weights=checked_weights(weights, num=num, where=where))
                summary.append(f"array {reading.weights or 'weights'}: weights of the examples in loss and metrics")
            given = {split: _labelled(pair, summary, train=arrays, **options) for split, pair in pairs.items()}
            given = {split: replace(part, is_padded=is_padded) for split, part in given.items()}
            return replace(arrays, **given, is_padded=is_padded, summary=tuple(summary))
    except UserError:
        raise
    except Exception as error:  # a damaged file: readers raise errors of many kinds
        text = " ".join(str(error).split())
        raise UserError(f"{where}: expected a readable file, got {type(error).__name__}: {text}") from None


def _without_lengths(pair: Pair, *, where: str) -> Pair:
    """Return padded signals [N, T] or [N, C, T], with their mask, and targets. Raises UserError for other lengths."""
    inputs, targets, *rest = pair
    lengths = rest[0] if rest else np.full(len(inputs), inputs.shape[-1])
    fits = lengths.shape == (len(inputs),) and lengths.dtype.kind in "iu" and inputs.ndim in (2, 3)
    if not (fits and 1 <= lengths.min() <= lengths.max() <= inputs.shape[-1]):
        got = f"{list(lengths.shape)} of {lengths.dtype} up to {lengths.max(initial=0)} for {list(inputs.shape)}"
        raise UserError(f"{where}: expected lengths [N] from 1 to T of signals [N, T] or [N, C, T], got {got}")
    try:
        return padded([each[..., :length] for each, length in zip(inputs, lengths, strict=True)]), targets
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _labelled(
    pair: Pair, summary: list[str], *, key: str, kind: str, layout: Any, train: LabelledArrays | None, **options: Any
) -> LabelledArrays:
    """Return arrays as examples, see `labelled`. Images [N, H, W] and signals [N, T] of a layout get a channel.

    Up to MAX_CLASSES different whole numbers are classes, also as floats, one-hot, or counted from 1.
    """
    inputs, targets, setting = pair[0], plain_targets(*pair, kind=kind), f"{key.rpartition('.')[0]}.kind=numbers"
    if targets.size < pair[1].size:
        summary.append(f"one-hot targets {list(pair[1].shape[1:])} are classes; {setting} takes them as numbers")
    has_classes = targets.ndim == 1 or (targets.ndim > 2 and targets.shape[1:] in positions_of(inputs))
    is_whole = has_classes and targets.dtype.kind == "f" and bool((targets == np.floor(targets)).all())
    values = np.unique(targets) if has_classes and targets.dtype.kind in "iuf" and targets.size else np.zeros(1)
    is_counted = targets.dtype.kind in "iu" and values[0] == 1 and values[-1] == len(values)
    if train is None and kind == "auto" and (is_whole or is_counted) and len(values) <= MAX_CLASSES:
        kind = "classes"
        summary.append(f"targets {_shown(map(str, values))} are classes; {setting} takes them as numbers")
    elif is_whole and train is not None and train.has_classes:
        kind, targets = ("classes", targets) if train.labels else (kind, targets.astype(np.int64))
    arrays = replace(labelled(inputs, targets, kind=kind, train=train, **options), layout=layout)
    has_no_channel = arrays.inputs.ndim == (2 if layout else 3) and np.issubdtype(arrays.inputs.dtype, np.floating)
    return replace(arrays, inputs=arrays.inputs[:, None]) if has_no_channel else arrays


def _pairs(file: Path, summary: list[str], *, key: str, reading: Reading) -> dict[str, Pair]:
    """Return the inputs and targets of the splits of a file; empty for a table."""
    name = file.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return _npz(file, summary, key=key)
    if name.endswith((".csv", ".tsv", ".txt", ".data", ".parquet")):
        return {} if reading.target or reading.header == "yes" else _ucr(file, summary)
    if "idx" not in name and not file.is_dir():
        raise UserError(
            f"{key}: expected .csv, .parquet, .npz or idx3-ubyte, or a folder of idx, images, sounds, scans, got {file}"
        )
    labels = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    pairs = _idx_folder(file) if file.is_dir() else {"train": (file, labels)}
    if not pairs["train"][1].is_file():
        raise UserError(f"{key}: {file}: expected labels in {labels.name}, got no such file")
    return {split: (_idx(images, key=key), _idx(labels, key=key)) for split, (images, labels) in pairs.items()}


def _read_folder(
    folder: Path, summary: list[str], *, key: str, reading: Reading, train: LabelledArrays | None
) -> LabelledArrays:
    """Return the files of class folders, or images with a mask, by split; with `train` all are test examples.

    Raises:
        UserError: no files, files of different sizes, rates or channels, more than fit into memory, or other classes.
    """
    where, has_classes = f"{key}: {folder}", reading.kind != "numbers"
    noun, files, left_out = example_files(folder)
    nouns = f"{noun}s"
    (with_mask, masks), is_image = with_masks(files, left_out), nouns == "images"
    if masks and not is_image:
        raise UserError(f"{where}: expected {nouns} in a folder per class, got masks; an npz file takes both")
    files = [("train", label, name) for _, label, name in with_mask] if train else with_mask
    read, rate = _read_all(noun, files, masks, summary, left_out, where=where, reading=reading, train=train)
    if not (has_classes or masks):
        raise UserError(f"{where}: expected numbers as targets, got folders of {nouns}, whose names are classes")
    if not any(split == "train" for split, *_ in (read if masks else files)):
        layout = "in a folder per class, or folders images and masks, also in train, val and test, or IDX files such as"
        words = "and masks that can be read" if masks else f"{layout} {_IDX['train'][0]}"
        raise UserError(f"{where}: expected {nouns} {words}, got none for training")
    channels = sorted({len(values) for *_, values, _ in read})
    if len(channels) > 1 and not is_image:
        names = (f"{num} ({next(name for *_, each, name in read if len(each) == num)})" for num in channels)
        raise UserError(f"{where}: expected {nouns} of one number of channels, got {', '.join(names)}")
    sizes = {values.shape[1:]: name for *_, values, name in read[::-1]}
    is_padded = nouns == "sounds" and (len(sizes) > 1 if train is None else train.is_padded)
    if len(sizes) > 1 and not is_padded:
        got = _shown(f"{' x '.join(map(str, size))} ({name})" for size, name in reversed(sizes.items()))
        hint = f"; {key.rpartition('.')[0]}.size=32 resizes them" if all(len(size) == 2 for size in sizes) else ""
        raise UserError(f"{where}: expected {nouns} of one size, got {got}{hint}")
    if nouns == "scans":
        low, high = min(each[2].min() for each in read), max(each[2].max() for each in read)
        words = f"values from {low:,.6g} to {high:,.6g}"
        summary.append(f"{words}; {key.rpartition('.')[0]}.normalise=channel standardises them")
    if masks:
        targets, labels = _classes_of_masks(read, summary, key=key, reading=reading, train=train)
    else:
        targets, labels = _classes_of_folders(files, read, where=where, train=train)
    target = Target("", has_classes, class_values(labels) if masks else labels)
    scale = 255.0 if is_image else None
    arrays = ArrayInputs(target, scale, size=reading.size, alpha=reading.alpha, rate=rate)
    layout, parts = {1: "signal", 2: "image", 3: "volume"}[read[0][2].ndim - 1], dict[str, LabelledArrays]()
    for part in {split for split, *_ in read}:
        places = [place for place, (split, *_) in enumerate(read) if split == part]
        values = [read[place][2].repeat(channels[-1] // len(read[place][2]), 0) for place in places]  # grey as RGB
        inputs = padded(values) if is_padded else np.stack(values)
        of_part = np.stack([targets[place] for place in places])
        options: Any = {"layout": None if is_image else layout, "is_padded": is_padded}
        parts[part] = LabelledArrays(inputs, of_part, labels=labels or None, scale=scale, arrays=arrays, **options)
        if part == "train" and train is None and reading.group:
            names = groups_of_files([read[place][3] for place in places], reading.group, key=key)
            parts[part] = replace(parts[part], groups=numbered_groups(names, num=len(names), where=where))
    return replace(parts.pop("train"), **parts, summary=tuple(summary))


def _read_all(
    noun: str,
    files: Sequence[Named],
    masks: Mapping[str, str],
    summary: list[str],
    left_out: dict[str, list[str]],
    *,
    where: str,
    reading: Reading,
    train: LabelledArrays | None,
) -> tuple[list[Read], int]:
    """Return the files that can be read, with their class or mask, and the rate of sounds.

    The summary gets those that were changed and left out.

    Raises:
        UserError: more than fit into memory, sounds of several rates, or an unknown colour.
    """
    key, _, folder = where.partition(": ")
    group, about, rates, read = key.rpartition(".")[0], Counter[str](), dict[int, list[str]](), list[Read]()
    channels = train.inputs.shape[1] if train is not None and train.arrays is not None else 0
    options: Any = {"size": reading.size, "alpha": reading.alpha}
    for split, label, name in files:
        path = Path(folder, name)
        try:
            values, made, rate = read_example(path, channels=channels, **options)
            if masks and reading.kind == "numbers":
                label = read_example(Path(folder, masks[name]), **options).values
            elif masks:
                label = read_mask(Path(folder, masks[name]), image=path, size=reading.size)
        except UserError as error:
            raise UserError(f"{group}.{error}") from None
        except Exception as error:  # libraries raise errors of many kinds
            text = " ".join(str(error).split()).partition(" '")[0]  # without the path
            left_out.setdefault("damaged", []).append(f"{name}: {type(error).__name__} {text}".strip())
            continue
        needed = _VALUE_BYTES * len(files) * (values.size + bool(masks) * values[0].size)
        if not read and needed > psutil.virtual_memory().available:
            got = f"{len(files):,} of {' x '.join(map(str, values.shape[1:]))} ({needed / 1e9:.0f} GB)"
            hint = f"; {group}.size=64 resizes them" * (values.ndim == 3)
            raise UserError(f"{where}: expected {noun}s that fit into memory, got {got}{hint}")
        about.update(made)
        rates.setdefault(rate, []).append(name)
        read.append((split, label, values, name))
    counts = [Counter(each[column] for each in read).items() for column in range(1 if masks else 2)]  # split, class
    words = "".join(f"; {number:,} {change}" for change, number in about.most_common(_MAX_ABOUT))
    words += f"; {len(about) - _MAX_ABOUT:,} more remarks" * (len(about) > _MAX_ABOUT) + "; left out: "
    words += ", ".join(f"{len(names):,} {reason} ({_shown(names)})" for reason, names in left_out.items()) or "none"
    shares = "; ".join(_shown(f"{name}: {number:,}" for name, number in each) for each in counts if each) or "none"
    summary.append(f"{counted(len(read), noun)}{' with a mask' * bool(masks)} read ({shares}){words}")
    if train is not None and train.arrays is not None and rates.keys() - {train.arrays.rate}:
        rates.setdefault(train.arrays.rate, [])
    if len(rates) > 1:
        got = ", ".join(f"{rate:,} Hz: {len(names):,} ({_shown(names[:1])})" for rate, names in sorted(rates.items()))
        raise UserError(f"{where}: expected sounds at one rate, got {got}; resample them, nothing is resampled here")
    return read, next(iter(rates), 0)


def _classes_of_folders(
    files: Sequence[Named], read: Sequence[Read], *, where: str, train: LabelledArrays | None
) -> tuple[Sequence[Any], tuple[str, ...]]:
    """Return the class of each image, and the classes of the training images.

    Raises:
        UserError: a class without an image that can be read, or without training images.
    """
    listed = {label for split, label, _ in files if split == "train"}
    labels = sorted(listed, key=lambda label: (0, int(label), label) if label.isdecimal() else (1, 0, label))
    if train is not None:
        labels = train.labels or [str(number) for number in range(int(train.targets.max()) + 1)]
    others = {label for _, label, *_ in read} - {*labels}
    if lost := others or listed - {label for split, label, *_ in read if split == "train"}:
        got = f"{'some' if others else 'none that can be read'} of {_shown(sorted(lost))}"
        raise UserError(f"{where}: expected images of the classes {_shown(labels)}, got {got}")
    return [labels.index(label) for _, label, *_ in read], tuple(labels)


def _classes_of_masks(
    read: Sequence[Read], summary: list[str], *, key: str, reading: Reading, train: LabelledArrays | None
) -> tuple[Sequence[Any], tuple[str, ...]]:
    """Return the classes [H, W] of the pixels of each mask, and the training classes; of numbers, no classes.

    255 next to classes that are counted from 0 is no class, unless the options take classes.

    Raises:
        UserError: more than _MAX_MASK_CLASSES classes, or one that the training masks do not have.
    """
    masks, group = [mask for _, mask, *_ in read], key.rpartition(".")[0]
    if reading.kind == "numbers":
        return masks, ()
    codes = np.unique(np.concatenate([each for each, _ in masks]))
    name_of = dict(zip(codes.tolist(), names_of_codes(codes), strict=True))
    names = [[name_of[code] for code in each.tolist()] for each, _ in masks]
    used = {name for part, (split, *_) in zip(names, read, strict=True) if split == "train" for name in part}
    ignored = {str(reading.ignored)}
    labels = sorted(used - ignored, key=lambda label: (len(label), label))
    if train is not None and train.labels is not None:
        labels = [*train.labels]
    numbers = [label for label in labels if label != _VOID]
    if reading.kind == "auto" and len(numbers) > 1 and numbers == [*map(str, range(len(numbers)))]:
        labels, ignored = numbers, {*ignored, _VOID}
    if len(labels) > _MAX_MASK_CLASSES:
        got = f"{len(labels):,} such as {_shown(labels)}"
        raise UserError(f"{key}: expected masks of at most {_MAX_MASK_CLASSES} classes, got {got}")
    if others := {name for part in names for name in part} - {*labels} - ignored:
        file = next(name for part, (*_, name) in zip(names, read, strict=True) if others & {*part})
        got = f"{_shown(sorted(others))} in that of {file}"
        raise UserError(f"{key}: expected the classes of the training masks ({_shown(labels)}), got {got}")
    skipped = [name for name in dict.fromkeys(name_of.values()) if name in ignored]
    words = f"; pixels of {', '.join(skipped)} have no class" if skipped else ""
    if _VOID in skipped and str(reading.ignored) != _VOID:
        words += f", {group}.kind=classes takes {_VOID} as one"
    summary.append(f"classes of the masks: {_shown(labels)}{words}")
    places = {label: place for place, label in enumerate(labels)}
    numbered = (np.array([places.get(name, IGNORED) for name in part]) for part in names)
    return [each[pixels] for each, (_, pixels) in zip(numbered, masks, strict=True)], tuple(labels)


def _shown(names: Iterable[str]) -> str:
    """Return the first of some names."""
    names = list(names)
    return ", ".join(names[:_MAX_SHOWN]) + ", ..." * (len(names) > _MAX_SHOWN)


def _npz(path: Path, summary: list[str], *, key: str) -> dict[str, Pair]:
    forms = [(form.format(word), split) for word, split in SPLITS.items() for form in ("{{}}_{}", "{}_{{}}")]
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        names = {name.lower(): name for name in arrays.files}
        pairs = {
            split: tuple(form.format(each) for each in (*pair, *_LENGTHS) if form.format(each) in names)
            for pair in _NPZ_PAIRS[::-1]
            for form, split in (("{}", "train"), *forms[::-1])
            if names.keys() >= set(map(form.format, pair))
        }
        if "train" not in pairs:
            expected = ", ".join(" and ".join(pair) for pair in _NPZ_PAIRS)
            got = ", ".join(sorted(arrays.files)) or "none"
            raise UserError(f"{key}: {path}: expected the arrays {expected}, also as x_train or val_images, got {got}")
        read: Any = {split: tuple(arrays[names[each]] for each in pair) for split, pair in pairs.items()}
    words = ", ".join(
        f"{' and '.join(names[each] for each in pair)} {list(read[split][0].shape)}" for split, pair in pairs.items()
    )
    others = sorted(names[each] for each in names.keys() - {each for pair in pairs.values() for each in pair})
    summary.append(f"arrays read: {words}; left out: {', '.join(others) or 'none'}")
    return read


def _array_of_npz(path: Path, default: str, name: str, *, where: str) -> np.ndarray | None:
    """Return the array of groups or weights of an npz file, by the name of the options; None without one."""
    if not path.name.endswith(".npz"):
        if name:
            raise UserError(f"{where}: expected {default} with an npz file or a folder of images, got {name}")
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if (name or default) in arrays.files:
            return arrays[name or default]
        if name:
            raise UserError(f"{where}: expected an array {name} of {default}, got {', '.join(sorted(arrays.files))}")
    return None


def groups_of_files(names: Sequence[str], source: str, *, key: str) -> list[str]:
    """Return the group of each file of a folder.

    Args:
        names: relative to the folder.
        source: a CSV file of file and group, or a pattern (of `re`) whose parentheses hold the group, such as
            `(patient\\d+)_`.
        key: option that names the folder.

    Raises:
        UserError: a pattern without parentheses, or a file without a group.
    """
    option = f"{key.rpartition('.')[0]}.group"
    if source.endswith(".csv"):
        if not Path(source).is_file():
            raise UserError(f"{option}: no such file: {source}")
        rows = csv.reader(io.StringIO(read_bytes(Path(source)).decode("utf-8-sig")))
        group_of = {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}
        found = [group_of.get(name) or group_of.get(Path(name).name) for name in names]
    else:
        try:
            pattern = re.compile(source)
        except re.error as error:
            raise UserError(f"{option}: expected FILE.csv or a pattern of files, got {source} ({error})") from None
        if not pattern.groups:
            raise UserError(f"{option}: expected FILE.csv, or a pattern with the group in parentheses, got {source}")
        matches = [pattern.search(name) for name in names]
        found = [match and "|".join(part or "" for part in match.groups()) for match in matches]
    if missing := [name for name, group in zip(names, found, strict=True) if not group]:
        raise UserError(f"{option}: expected a group of every file, got none of {_shown(missing)} by {source}")
    return [group for group in found if group]


def numbered_groups(groups: Any, *, num: int, where: str) -> np.ndarray:
    """Return groups [N] as integers. Raises UserError for another number of them."""
    array = np.asarray(groups)
    if array.shape != (num,):
        raise UserError(f"{where}: expected {num:,} groups, one per example, got {list(array.shape)}")
    return np.unique(array, return_inverse=True)[1]


def _ucr(path: Path, summary: list[str]) -> dict[str, Pair]:
    """Return the signals [N, T] and classes of a file of the UCR archive and of its test file; empty for a table."""
    if (match := _UCR.fullmatch(path.name)) is None:
        return {}
    test = path.with_name(f"{match[1]}{'TEST' if match[2].isupper() else 'test'}{match[3]}")
    files = {"train": path} if test == path or not test.is_file() else {"train": path, "test": test}
    try:
        rows = {split: np.loadtxt(file, ndmin=2) for split, file in files.items()}
    except ValueError:  # texts
        return {}
    for split, each in rows.items():
        read = f"{counted(len(each), 'signal')} of {each.shape[1] - 1} values read, the first column is the target"
        summary.append(f"{files[split].name}: {read}; left out: none")
    return {split: (each[:, 1:], each[:, 0]) for split, each in rows.items()}


def _idx_folder(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the images and labels by split of a folder; empty without those of training examples."""
    files = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir(), reverse=True) if path.is_file()}
    pairs = {split: (files[a], files[b]) for split, (a, b) in _IDX.items() if files.keys() >= {a, b}}
    return pairs if "train" in pairs else {}


def _idx(path: Path, *, key: str) -> np.ndarray:
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise UserError(f"{key}: {path}: expected an IDX file, got another format")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4)) if len(content) >= start else ()
    kind = np.dtype(_IDX_TYPES[content[2]])
    expected = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if not shape or len(content) != expected:
        raise UserError(f"{key}: {path}: expected {expected} bytes for the shape {list(shape)}, got {len(content)}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
