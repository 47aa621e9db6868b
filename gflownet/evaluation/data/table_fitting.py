"""Columns of a table fitted on its training rows by scikit-learn's ColumnTransformer. N: rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gflownet.errors import UserError, counted
from gflownet.translation.table_columns import (
    DATE_FORMATS,
    Column,
    ColumnKind,
    TableColumns,
    Target,
    date_parts,
    days_of,
    is_missing,
    is_number,
    number_of,
    parsed,
    text_of,
)

# Values of a text column that are inputs; the others, and values in fewer than MIN_ROWS training rows, share one.
MAX_VALUES, MIN_ROWS = 20, 3
# A column with this share of numbers is taken for a damaged column of numbers, not for text.
_MOSTLY = 0.9

# The cells [N] of each input column, see `parsed`, before anything is fitted.
RawTable = Mapping[Column, np.ndarray]


def is_plain(table: RawTable) -> bool:
    """Return whether all columns are numbers without gaps."""
    return all(column.kind is ColumnKind.NUMBER and not np.isnan(cells).any() for column, cells in table.items())


def raw_table(
    cells: Mapping[str, Sequence[Any]],
    *,
    kinds: Mapping[str, Any],
    train: RawTable | None,
    key: str,
    where: str,
    first_row: int,
) -> RawTable:
    """Return the parsed columns of a file, with the named kinds, else the kinds of the training table or of the cells.

    Raises:
        UserError: an unknown column or kind under the option `key`, or a cell that does not fit its column.
    """
    for name, kind in kinds.items():
        if name not in cells or str(kind) not in [*ColumnKind]:
            expected, got = ("kind", kind) if name in cells else ("column", name)
            names = ", ".join(ColumnKind if name in cells else cells)
            raise UserError(f"{key}.{name}: expected a {expected} out of {names}, got {got}")
    try:
        columns = train or [_column(n, each, kinds.get(n), key, first_row) for n, each in cells.items()]
        return {c: parsed(cells[c.name], c, where=where, first_row=first_row) for c in columns}
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.startswith(where) else f"{where}: {text}") from None


def _column(name: str, cells: Sequence[Any], kind: Any, key: str, first_row: int) -> Column:
    """Return the kind of a column: the named one, else the kind of its cells. Raises ValueError for damaged numbers."""
    values = [cell for cell in cells if not is_missing(cell)]
    if kind is not None:
        return Column(name, ColumnKind(str(kind)), format=(*_formats(values), DATE_FORMATS[0])[0])
    if not values:
        return Column(name, ColumnKind.IGNORED, words="no value in any row")
    wrong = [cell for cell in values if number_of(cell) is None]
    if not wrong:
        return Column(name, ColumnKind.NUMBER)
    if formats := _formats(values):
        return Column(name, ColumnKind.DATE, format=formats[0])
    num = sum(is_number(str(cell)) for cell in values)
    if num >= _MOSTLY * len(values):
        row = first_row + next(place for place, cell in enumerate(cells) if cell is wrong[0])
        raise ValueError(
            f"column {name}: row {row}: expected a number, as in {num} of {len(values)} rows, got {text_of(wrong[0])}; "
            f"{key}.{name}=text takes texts, ={ColumnKind.IGNORED} leaves the column out"
        )
    return Column(name, ColumnKind.TEXT)


def _formats(values: Sequence[Any]) -> list[str]:
    """Return the formats in which all values are dates; numbers are no dates."""
    if not values or is_number(str(values[0])):
        return []
    return [each for each in DATE_FORMATS if all(days_of(value, each) is not None for value in values)]


def table_of_numbers(inputs: np.ndarray) -> RawTable | None:
    """Return vectors [N, F] as columns with numbers as names, None for other inputs."""
    if inputs.ndim != 2 or inputs.dtype.kind != "f" or not inputs.shape[1]:
        return None
    return {Column(str(place), ColumnKind.NUMBER): cells for place, cells in enumerate(inputs.T)}


def fitted(table: RawTable, rows: np.ndarray, target: Target) -> TableColumns:
    """Return the columns of a table, fitted on some of its rows. Raises UserError if no column holds a value."""
    training = {column.name: cells[rows] for column, cells in table.items()}
    columns = {column.name: _useful(column, training[column.name]) for column in table}
    used = [name for name, column in columns.items() if column.kind is not ColumnKind.IGNORED]
    texts = [name for name in used if columns[name].kind is ColumnKind.TEXT]
    numbers = [name for name in used if name not in texts]
    if not used:
        raise UserError(f"expected a column of inputs with values, got {', '.join(columns)}")
    if not texts and not any(np.isnan(training[name]).any() for name in numbers):
        # Without scikit-learn, whose import takes over a CPU second.
        fills, marked = [np.median(training[name]) for name in numbers], set[int]()
    else:
        names = list(columns)
        transformer = column_transformer([names.index(each) for each in numbers], [names.index(each) for each in texts])
        transformer.fit(np.stack([each.astype(object) for each in training.values()], axis=1))
        steps = transformer.named_transformers_
        fills, marked = (steps["numbers"].statistics_, steps["numbers"].indicator_.features_) if numbers else ((), ())
        encoder = steps.get("texts")
        for place, name in enumerate(texts):
            values = encoder.categories_[place], encoder.infrequent_categories_[place]
            columns[name] = _of_texts(columns[name], training[name], *values)
    for place, (name, fill) in enumerate(zip(numbers, fills, strict=True)):
        columns[name] = _of_numbers(columns[name], training[name], float(fill), place in marked)
    return TableColumns(tuple(columns.values()), target)


def column_transformer(numbers: Sequence[int], texts: Sequence[int]) -> Any:
    """Return an unfitted ColumnTransformer for columns of numbers and of texts, by position."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    how = {"handle_unknown": "infrequent_if_exist", "sparse_output": False}
    encoder = OneHotEncoder(max_categories=MAX_VALUES + 1, min_frequency=MIN_ROWS, **how)
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    steps = [("numbers", imputer, list(numbers)), ("texts", encoder, list(texts))]
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=0)


def _useful(column: Column, cells: np.ndarray) -> Column:
    """Return a column, ignored where its training rows hold no value, or no text often enough."""
    words = ""
    if column.kind is ColumnKind.IGNORED:
        words = column.words or "by the options"
    elif column.kind is ColumnKind.TEXT:
        values, counts = np.unique(cells.astype(str), return_counts=True)
        words = "" if counts.max() >= MIN_ROWS else f"{len(values)} different texts, none of them in {MIN_ROWS} rows"
    elif np.isnan(cells).all():
        words = "no value in the training rows"
    return replace(column, kind=ColumnKind.IGNORED, words=words) if words else column


def _of_numbers(column: Column, cells: np.ndarray, fill: float, has_mark: bool) -> Column:
    """Return a column of numbers or dates with its median; `has_mark`: whether values are missing."""
    # A time that orders the splits is always later than in training.
    parts = date_parts(cells)[bool(column.words) :] if column.kind is ColumnKind.DATE else ()
    words = column.words + (f"date: {', '.join(parts)}" if parts else "number")
    words += ", constant" if len(np.unique(cells)) == 1 else ""
    median = str(np.datetime64(int(fill), "D")) if parts else f"{fill:.6g}"
    words += f", {_percent(np.isnan(cells))} missing: median {median} and a mark" if has_mark else ""
    return replace(column, fill=fill, has_mark=has_mark, parts=parts, words=words)


def _of_texts(column: Column, cells: np.ndarray, values: np.ndarray, infrequent: np.ndarray | None) -> Column:
    rare = set() if infrequent is None else set(infrequent)
    frequent = tuple(value for value in values.tolist() if value not in rare)
    words = f"text, {counted(len(frequent), 'value')}"
    words += f" and {len(rare)} rarer ones together" if rare else ""
    words += ", constant" if len(values) == 1 else ""
    words += f", {_percent(cells == '')} missing" if "" in values else ""
    return replace(column, values=frequent, has_others=bool(rare), words=words)


def _percent(is_true: np.ndarray) -> str:
    return f"{100 * float(np.mean(is_true)):.3g} %"
