"""Labelled examples from files: IDX (the format of MNIST), npz and CSV."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gflownet.errors import UserError

# Type codes of the IDX format (LeCun, Cortes and Burges 1998).
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Names of the arrays of an npz file, by the part of the data.
_NPZ_PAIRS = (("x_train", "y_train"), ("x", "y"), ("inputs", "targets"), ("images", "labels"))
_NPZ_TEST_PAIRS = (("x_test", "y_test"),)
# Columns of whole numbers with at most this many different values are classes.
MAX_CLASSES = 50


@dataclass(frozen=True)
class LabelledArrays:
    """Examples of a file, and the test examples in it."""

    inputs: np.ndarray  # [N, ...] float, or integers that are tokens
    targets: np.ndarray  # [N] integers: classes; floats: numbers
    test: LabelledArrays | None = None


def read_file(path: str, *, key: str, target: str = "", kind: str = "auto") -> LabelledArrays:
    """Return the examples of a CSV or npz file, an IDX file of images, or a folder of IDX files.

    Args:
        path: its ending names the format: .csv, .tsv, .npz, idx3-ubyte; .gz is unpacked.
        key: option that names it, for errors.
        target: column of the target; empty: the last.
        kind: of the target of a CSV file: classes, numbers, or auto.

    Raises:
        UserError: a missing or damaged file, missing columns or arrays, or values that are no numbers.
    """
    file = Path(path)
    if not file.exists():
        raise UserError(f"{key}: no such file: {path}")
    name = file.name.removesuffix(".gz")
    try:
        if file.is_dir():
            return _idx_folder(file, key=key)
        if name.endswith((".csv", ".tsv", ".txt")):
            return _csv(file, key=key, target=target, kind=kind)
        if name.endswith(".npz"):
            return _npz(file, key=key)
        if "idx" in name:
            return _idx_pair(file, key=key)
    except UserError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{key}: {path}: expected a readable file, got {type(error).__name__}: {error}") from None
    raise UserError(f"{key}: expected a file .csv, .npz or idx3-ubyte, or a folder of idx files, got {path}")


def _idx_folder(folder: Path, *, key: str) -> LabelledArrays:
    train, test = ([_idx_path(folder, name) for name in names] for names in (_IDX_TRAIN, _IDX_TEST))
    if None in train:
        raise UserError(f"{key}: {folder}: expected the files {' and '.join(_IDX_TRAIN)}, with or without .gz")
    arrays = _labelled(*(_idx(path, key=key) for path in train if path is not None), key=key, where=str(folder))
    if None in test:
        return arrays
    tested = _labelled(*(_idx(path, key=key) for path in test if path is not None), key=key, where=str(folder))
    return replace(arrays, test=tested)


def _idx_path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _idx_pair(images: Path, *, key: str) -> LabelledArrays:
    labels = images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels == images or not labels.is_file():
        raise UserError(f"{key}: {images}: expected labels in {labels.name}, got no such file")
    return _labelled(_idx(images, key=key), _idx(labels, key=key), key=key, where=str(images))


def _idx(path: Path, *, key: str) -> np.ndarray:
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise UserError(f"{key}: {path}: expected an IDX file, got another format")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4)) if len(content) >= start else ()
    kind = np.dtype(_IDX_TYPES[content[2]])
    expected = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if not shape or len(content) != expected:
        raise UserError(f"{key}: {path}: expected {expected} bytes for the shape {list(shape)}, got {len(content)}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _npz(path: Path, *, key: str) -> LabelledArrays:
    with np.load(path, allow_pickle=False) as arrays:
        names = set(arrays.files)
        pair = next((pair for pair in _NPZ_PAIRS if names >= set(pair)), None)
        if pair is None:
            expected = ", ".join(" and ".join(pair) for pair in _NPZ_PAIRS)
            raise UserError(f"{key}: {path}: expected the arrays {expected}, got {', '.join(sorted(names)) or 'none'}")
        result = _labelled(arrays[pair[0]], arrays[pair[1]], key=key, where=str(path))
        tested = next((pair for pair in _NPZ_TEST_PAIRS if names >= set(pair)), None)
        if tested is None:
            return result
        return replace(result, test=_labelled(arrays[tested[0]], arrays[tested[1]], key=key, where=str(path)))


def _labelled(inputs: np.ndarray, targets: np.ndarray, *, key: str, where: str) -> LabelledArrays:
    """Return arrays of equal length as examples; images without a channel get one, bytes are scaled to [0, 1]."""
    if len(inputs) != len(targets) or inputs.ndim < 2:
        raise UserError(
            f"{key}: {where}: expected inputs [N, ...] and targets [N], got {list(inputs.shape)} and "
            f"{list(targets.shape)}"
        )
    if inputs.dtype == np.uint8:
        inputs = inputs / 255.0
    if inputs.ndim == 3 and np.issubdtype(inputs.dtype, np.floating):
        inputs = inputs[:, None]
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    _check_finite(inputs, key=key, where=where)
    return LabelledArrays(inputs, targets.astype(np.int64) if np.issubdtype(targets.dtype, np.integer) else targets)


def _check_finite(values: np.ndarray, *, key: str, where: str) -> None:
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        raise UserError(f"{key}: {where}: expected finite numbers, got nan or inf")


def _csv(path: Path, *, key: str, target: str, kind: str) -> LabelledArrays:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig", errors="replace")
    delimiter = "\t" if ".tsv" in path.name else ";" if text.split("\n", 1)[0].count(";") else ","
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    if len(rows) < 2:
        raise UserError(f"{key}: {path}: expected two or more rows, got {len(rows)}")
    has_header = not any(_is_number(cell) for cell in rows[0])
    names = [cell.strip() for cell in rows[0]] if has_header else [str(index) for index in range(len(rows[0]))]
    rows = rows[has_header:]
    for number, row in enumerate(rows, start=1 + has_header):
        if len(row) != len(names):
            raise UserError(f"{key}: {path}: row {number}: expected {len(names)} columns, got {len(row)}")
    if target and target not in names:
        raise UserError(f"{key}: {path}: expected a column {target!r}, got {', '.join(names)}")
    place = names.index(target) if target else len(names) - 1
    columns = list(zip(*rows, strict=True))
    inputs = [
        _numbers(column, where=f"{key}: {path}: column {name}", first_row=1 + has_header)
        for index, (name, column) in enumerate(zip(names, columns, strict=True))
        if index != place
    ]
    if not inputs:
        raise UserError(f"{key}: {path}: expected two or more columns, got one")
    where = f"{key}: {path}: column {names[place]}"
    targets = csv_targets(columns[place], where=where, first_row=1 + has_header, kind=kind)
    return LabelledArrays(np.stack(inputs, axis=1), targets)


def csv_targets(cells: Sequence[str], *, where: str, first_row: int, kind: str) -> np.ndarray:
    """Return a column as classes (integers from 0 in the order of the sorted values) or numbers.

    With `kind` auto: text is classes; whole numbers are classes if at most MAX_CLASSES different ones occur.
    """
    is_text = not all(_is_number(cell) for cell in cells)
    if kind == "numbers" or (kind == "auto" and not is_text and not _are_labels(cells)):
        return _numbers(cells, where=where, first_row=first_row)
    if any(not cell.strip() for cell in cells):
        row = next(number for number, cell in enumerate(cells, start=first_row) if not cell.strip())
        raise UserError(f"{where}: row {row}: expected a class, got nothing")
    labels = sorted({cell.strip() for cell in cells}, key=lambda label: (not _is_number(label), _order(label), label))
    places = {label: place for place, label in enumerate(labels)}
    return np.array([places[cell.strip()] for cell in cells], dtype=np.int64)


def _order(label: str) -> float:
    return float(label) if _is_number(label) else 0.0


def _are_labels(cells: Sequence[str]) -> bool:
    return all(float(cell).is_integer() for cell in cells) and len({float(cell) for cell in cells}) <= MAX_CLASSES


def _numbers(cells: Sequence[str], *, where: str, first_row: int) -> np.ndarray:
    for number, cell in enumerate(cells, start=first_row):
        if not _is_number(cell) or not np.isfinite(float(cell)):
            raise UserError(f"{where}: row {number}: expected a finite number, got {cell.strip() or 'nothing'}")
    return np.array([float(cell) for cell in cells])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
