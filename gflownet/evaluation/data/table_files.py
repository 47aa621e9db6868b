"""Labelled examples from CSV and Parquet files: header, columns by name, and the target as a class or a number."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.errors import UserError
from gflownet.evaluation.data.labelled_arrays import LabelledArrays, class_numbers
from gflownet.evaluation.data.table_fitting import RawTable, is_plain, raw_table
from gflownet.files import read_bytes
from gflownet.translation.table_columns import MISSING, ColumnKind, is_number, text_of

# Columns of whole numbers with at most this many different values are classes.
MAX_CLASSES = 50
# Cells without a value: in the first row they do not make it a header.
_MISSING = MISSING | {"inf", "-inf"}
# A number as it is written where columns are separated by semicolons.
_DECIMAL_COMMA = re.compile(r"(?m)(?<![^;\n])(-?\d+),(\d+)(?=[;\r\n]|$)")


@dataclass(frozen=True)
class Reading:
    """How a file is read, for all of its kinds."""

    target: str = ""  # column; empty: the last
    kind: str = "auto"  # of the target: classes, numbers or auto
    header: str = "auto"  # whether the first row has the names: yes, no or auto
    columns: Mapping[str, Any] = field(default_factory=dict)  # kinds of columns by name, see ColumnKind
    group: str = ""  # column whose equal values stay in one split
    time: str = ""  # column in whose order the rows are split
    duplicates: str = "refuse"  # equal examples in several splits: refuse, together in one split, or keep
    size: int = 0  # side of the images of a folder; 0: as they are


@dataclass(frozen=True)
class _Table:
    """The cells of a file."""

    names: tuple[str, ...]  # of the header, or 0, 1, 2, ...
    columns: tuple[Sequence[Any], ...]
    first_row: int  # number of the first row of cells, from 1


def read_table(path: Path, *, key: str, reading: Reading, train: LabelledArrays | None) -> LabelledArrays:
    """Return the examples of a CSV or Parquet file.

    Args:
        path: with or without .gz.
        key: option that names it, for errors.
        reading: target and kinds of columns.
        train: training examples, whose columns, classes and kinds these have; None: these are the training examples.

    Raises:
        UserError: missing or other columns, values that do not fit, or a class that the training examples lack.
    """
    where = f"{key}: {path}"
    expected = () if train is None or not train.columns else (*train.columns, train.target)
    table = _parquet(path, where=where) if ".parquet" in path.name else _csv(path, where, reading.header, expected)
    if expected and sorted(table.names) != sorted(expected):
        raise UserError(
            f"{where}: expected the columns of the training file, {', '.join(expected)}, got {', '.join(table.names)}"
        )
    target = (train.target if expected and train is not None else reading.target) or table.names[-1]
    for name in filter(None, (target, reading.group, reading.time)):
        if name not in table.names:
            raise UserError(f"{where}: expected a column {name!r}, got {', '.join(table.names)}")
    cells = dict(zip(table.names, table.columns, strict=True))
    names = expected[:-1] or tuple(name for name in table.names if name != target)
    if not names:
        raise UserError(f"{where}: expected two or more columns, got one")
    raw = raw_table(
        {name: cells[name] for name in names},
        kinds=reading.columns if train is None else {},
        train=None if train is None else train.table,
        key=f"{key.rpartition('.')[0]}.columns",
        where=where,
        first_row=table.first_row,
    )
    if train is not None and train.table is None and not is_plain(raw):
        raise UserError(f"{where}: expected numbers without gaps, as in the training examples")
    raw, order = _ordered(raw, reading, where=where) if train is None else (raw, {})
    where = f"{where}: column {target}"
    texts = ["" if cell is None else text_of(cell) for cell in cells[target]]
    targets, labels = _targets(texts, where=where, first_row=table.first_row, kind=reading.kind, train=train)
    numbers = np.stack([*raw.values()], axis=1) if is_plain(raw) else np.zeros((len(targets), 0))
    arrays = LabelledArrays(numbers, targets, columns=names, target=target, labels=labels, table=raw)
    return replace(arrays, groups=order.get("groups"), times=order.get("times"))


def _ordered(table: RawTable, reading: Reading, *, where: str) -> tuple[RawTable, dict[str, np.ndarray]]:
    """Return a table without the columns that split its rows, and the groups and times of the rows.

    Of dates in whose order the rows are split, only the day number is no input.

    Raises:
        UserError: the column is no input, a row without a value, or times that are neither numbers nor dates.
    """
    order, columns = {}, {column.name: column for column in table}
    words = {"groups": "equal values are in one split", "times": "order of the splits"}
    for kind, name in (("groups", reading.group), ("times", reading.time)):
        column = columns.get(name)
        if name and (column is None or column.kind is ColumnKind.IGNORED):
            raise UserError(f"{where}: expected a column of {kind} that is an input, got {name}")
        if column is None:
            continue
        cells, is_text = table[column], column.kind is ColumnKind.TEXT
        if is_text and kind == "times":
            raise UserError(f"{where}: column {name}: expected numbers or dates as times, got texts such as {cells[0]}")
        if (cells == "").any() if is_text else np.isnan(cells).any():
            raise UserError(f"{where}: column {name}: expected a value in every row, to split by its {kind}")
        order[kind] = np.unique(cells.astype(str) if is_text else cells, return_inverse=True)[1]
        is_kept = kind == "times" and column.kind is ColumnKind.DATE
        columns[name] = replace(
            column, kind=column.kind if is_kept else ColumnKind.IGNORED, words=words[kind] + "; " * is_kept
        )
    return dict(zip(columns.values(), table.values(), strict=True)), order


def _parquet(path: Path, *, where: str) -> _Table:
    try:
        from pyarrow.parquet import read_table as read
    except ModuleNotFoundError:
        raise UserError(f"{where}: expected the package pyarrow, got none: pip install 'gflownet[parquet]'") from None
    columns = read(path).to_pydict()
    return _Table(tuple(map(str, columns)), tuple(columns.values()), 1)


def _csv(path: Path, where: str, header: str, expected: Sequence[str]) -> _Table:
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    delimiter = "\t" if ".tsv" in path.name else ";" if text.split("\n", 1)[0].count(";") else ","
    if delimiter == ";":
        text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    if len(rows) < 2:
        raise UserError(f"{where}: expected two or more rows, got {len(rows)}")
    first = tuple(cell.strip() for cell in rows[0])
    has_header = header == "yes" or (header == "auto" and (sorted(first) == sorted(expected) or _is_header(rows)))
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
        and _are_numbers([row[place] for row in rows[1:] if place < len(row)])
        for place, cell in enumerate(rows[0])
    )


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether the cells with a value are numbers, and there are some."""
    values = [cell for cell in cells if is_number(cell) or cell.strip().lower() not in MISSING]
    return bool(values) and all(map(is_number, values))


def _targets(
    cells: Sequence[str], *, where: str, first_row: int, kind: str, train: LabelledArrays | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return a column as classes, with their texts, or as numbers.

    With `kind` auto: text is classes; whole numbers are classes if at most MAX_CLASSES different ones occur.
    """
    if train is not None:
        kind = "classes" if train.has_classes else "numbers"
    is_text = not _are_numbers(cells)
    if kind == "numbers" or (kind == "auto" and not is_text and not _are_classes(cells)):
        return _numbers(cells, where=where, first_row=first_row), None
    if train is None or train.labels is not None:
        return class_numbers(cells, where=where, first_row=first_row, labels=train.labels if train else None)
    numbers = _numbers(cells, where=where, first_row=first_row)  # the classes of other data than CSV files
    if (numbers % 1).any():
        raise UserError(f"{where}: expected classes as whole numbers, as in the training examples")
    return numbers.astype(np.int64), None


def _are_classes(cells: Sequence[str]) -> bool:
    numbers = {float(cell) for cell in cells if is_number(cell)}
    return all(number.is_integer() for number in numbers) and len(numbers) <= MAX_CLASSES


def _numbers(cells: Sequence[str], *, where: str, first_row: int) -> np.ndarray:
    for number, cell in enumerate(cells, start=first_row):
        if not is_number(cell) or not np.isfinite(float(cell)):
            raise UserError(f"{where}: row {number}: expected a finite number, got {cell.strip() or 'nothing'}")
    return np.array([float(cell) for cell in cells])
