"""Labelled examples from CSV files: header, columns by name, and the target as a class or a number."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gflownet.errors import UserError
from gflownet.evaluation.labelled_arrays import LabelledArrays, class_numbers, is_number

# Columns of whole numbers with at most this many different values are classes.
MAX_CLASSES = 50
# Cells without a value: in the first row they do not make it a header.
_MISSING = {"", "na", "n/a", "nan", "inf", "-inf", "null", "none", "?", "-"}


@dataclass(frozen=True)
class _Table:
    """The cells of a file."""

    names: tuple[str, ...]  # of the header, or 0, 1, 2, ...
    columns: tuple[tuple[str, ...], ...]
    first_row: int  # number of the first row of cells, from 1


def read_csv(path: Path, *, key: str, target: str, kind: str, train: LabelledArrays | None) -> LabelledArrays:
    """Return the examples of a CSV file.

    Args:
        path: with or without .gz.
        key: option that names it, for errors.
        target: column of the target; empty: the last.
        kind: of the target: classes, numbers or auto.
        train: training examples, whose columns, classes and kind these have; None: these are the training examples.

    Raises:
        UserError: missing or other columns, values that are no numbers, or a class that the training examples lack.
    """
    where = f"{key}: {path}"
    expected = () if train is None or not train.columns else (*train.columns, train.target)
    table = _table(path, where=where, expected=expected)
    if expected and sorted(table.names) != sorted(expected):
        raise UserError(
            f"{where}: expected the columns of the training file, {', '.join(expected)}, got {', '.join(table.names)}"
        )
    target = (train.target if expected and train is not None else target) or table.names[-1]
    if target not in table.names:
        raise UserError(f"{where}: expected a column {target!r}, got {', '.join(table.names)}")
    columns = dict(zip(table.names, table.columns, strict=True))
    names = expected[:-1] or tuple(name for name in table.names if name != target)
    if not names:
        raise UserError(f"{where}: expected two or more columns, got one")
    inputs = [_numbers(columns[name], where=f"{where}: column {name}", first_row=table.first_row) for name in names]
    where = f"{where}: column {target}"
    targets, labels = _targets(columns[target], where=where, first_row=table.first_row, kind=kind, train=train)
    return LabelledArrays(np.stack(inputs, axis=1), targets, columns=names, target=target, labels=labels)


def _table(path: Path, *, where: str, expected: Sequence[str]) -> _Table:
    """Return the cells of a file."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig", errors="replace")
    delimiter = "\t" if ".tsv" in path.name else ";" if text.split("\n", 1)[0].count(";") else ","
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    if len(rows) < 2:
        raise UserError(f"{where}: expected two or more rows, got {len(rows)}")
    first = tuple(cell.strip() for cell in rows[0])
    has_header = sorted(first) == sorted(expected) or _is_header(rows)
    names = first if has_header else tuple(str(index) for index in range(len(first)))
    for number, row in enumerate(rows[has_header:], start=1 + has_header):
        if len(row) != len(names):
            raise UserError(f"{where}: row {number}: expected {len(names)} columns, got {len(row)}")
    repeated = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if repeated is not None:
        raise UserError(f"{where}: expected different names of columns, got {repeated!r} twice")
    return _Table(names, tuple(zip(*rows[has_header:], strict=True)), 1 + has_header)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row holds names: no number, or a text above a column of numbers."""
    if not any(is_number(cell) for cell in rows[0]):
        return True
    return any(
        not is_number(cell)
        and cell.strip().lower() not in _MISSING
        and all(is_number(row[place]) for row in rows[1:] if place < len(row))
        for place, cell in enumerate(rows[0])
    )


def _targets(
    cells: Sequence[str], *, where: str, first_row: int, kind: str, train: LabelledArrays | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return a column as classes, with their texts, or as numbers.

    With `kind` auto: text is classes; whole numbers are classes if at most MAX_CLASSES different ones occur.
    """
    if train is not None:
        kind = "classes" if train.has_classes else "numbers"
    is_text = not all(is_number(cell) for cell in cells)
    if kind == "numbers" or (kind == "auto" and not is_text and not _are_classes(cells)):
        return _numbers(cells, where=where, first_row=first_row), None
    if train is None or train.labels is not None:
        return class_numbers(cells, where=where, first_row=first_row, labels=train.labels if train else None)
    numbers = _numbers(cells, where=where, first_row=first_row)  # the classes of other data than CSV files
    if (numbers % 1).any():
        raise UserError(f"{where}: expected classes as whole numbers, as in the training examples")
    return numbers.astype(np.int64), None


def _are_classes(cells: Sequence[str]) -> bool:
    return all(float(cell).is_integer() for cell in cells) and len({float(cell) for cell in cells}) <= MAX_CLASSES


def _numbers(cells: Sequence[str], *, where: str, first_row: int) -> np.ndarray:
    for number, cell in enumerate(cells, start=first_row):
        if not is_number(cell) or not np.isfinite(float(cell)):
            raise UserError(f"{where}: row {number}: expected a finite number, got {cell.strip() or 'nothing'}")
    return np.array([float(cell) for cell in cells])
