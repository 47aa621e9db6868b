"""Columns of a table fitted on its training rows by scikit-learn's ColumnTransformer.

N: rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gflownet.errors import UserError
from gflownet.translation.table_columns import (
    DATE_FORMATS,
    FALSE,
    TRUE,
    Column,
    ColumnKind,
    TableColumns,
    Target,
    date_parts,
    days_of,
    is_missing,
    is_number,
    parsed,
    text_of,
)

# Values of a text column that are inputs; the others share one, as do those in fewer than MIN_ROWS training rows.
MAX_VALUES = 20
MIN_ROWS = 3
# A column with this share of numbers is taken for a damaged column of numbers, not for text.
_MOSTLY = 0.9
_KINDS = [str(kind) for kind in ColumnKind]


@dataclass(frozen=True)
class RawTable:
    """The cells of the input columns of a file, before anything is fitted."""

    columns: tuple[Column, ...]  # name, kind and format
    cells: tuple[np.ndarray, ...]  # [N] of each column, see `parsed`

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers without gaps."""
        return all(
            column.kind is ColumnKind.NUMBER and not np.isnan(cells).any()
            for column, cells in zip(self.columns, self.cells, strict=True)
        )

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """The cells of each column."""
        return {column.name: cells for column, cells in zip(self.columns, self.cells, strict=True)}

    def column(self, name: str) -> tuple[Column | None, np.ndarray]:
        """Return a column by name and its cells; None for the target."""
        places = {column.name: place for place, column in enumerate(self.columns)}
        return (self.columns[places[name]], self.cells[places[name]]) if name in places else (None, np.zeros(0))


def raw_table(
    cells: Mapping[str, Sequence[Any]], kinds: Mapping[str, Any], *, key: str, where: str, first_row: int
) -> RawTable:
    """Return the parsed columns of a file.

    Args:
        cells: of each input column.
        kinds: by name, of columns whose kind is not found from their cells.
        key: group of options with the kinds, for errors.
        where: option and file, for errors.
        first_row: number of the first row of cells.

    Raises:
        UserError: an unknown column or kind, or a cell that does not fit its column.
    """
    for name, kind in kinds.items():
        if name not in cells or str(kind) not in _KINDS:
            expected, got = ("a column", name) if name not in cells else ("the kind", kind)
            names = ", ".join(cells if name not in cells else _KINDS)
            raise UserError(f"{key}.{name}: expected {expected} out of {names}, got {got}")
    columns, values = [], []
    for name, each in cells.items():
        column = _column(name, each, kinds.get(name), key=key, where=where, first_row=first_row)
        is_used = column.kind is not ColumnKind.IGNORED
        columns.append(column)
        values.append(_parsed(each, column, where=where, first_row=first_row) if is_used else np.zeros(len(each)))
    return RawTable(tuple(columns), tuple(values))


def read_with(table: RawTable, cells: Mapping[str, Sequence[Any]], *, where: str, first_row: int) -> RawTable:
    """Return the columns of a test file, read as those of the training file."""
    values = [
        np.zeros(len(cells[c.name]))
        if c.kind is ColumnKind.IGNORED
        else _parsed(cells[c.name], c, where=where, first_row=first_row)
        for c in table.columns
    ]
    return replace(table, cells=tuple(values))


def without_leaks(table: RawTable, *, group: str, time: str) -> RawTable:
    """Return a table without its column of groups, and without the day number or number of its column of times."""
    columns = []
    for column in table.columns:
        if column.name == group:
            column = replace(column, kind=ColumnKind.IGNORED, words="rows with equal values are in one split")
        elif column.name == time and column.kind is ColumnKind.DATE:
            column = replace(column, words="order of the splits; ")
        elif column.name == time:
            column = replace(column, kind=ColumnKind.IGNORED, words="order of the splits")
        columns.append(column)
    return replace(table, columns=tuple(columns))


def _parsed(cells: Sequence[Any], column: Column, *, where: str, first_row: int) -> np.ndarray:
    try:
        return parsed(cells, column, where=f"{where}: ", first_row=first_row)
    except ValueError as error:
        raise UserError(str(error)) from None


def _column(name: str, cells: Sequence[Any], kind: Any, *, key: str, where: str, first_row: int) -> Column:
    """Return the kind of a column: the named one, or that of its cells."""
    values = [cell for cell in cells if not is_missing(cell)]
    formats = _formats(values) if kind in (None, ColumnKind.DATE) else []
    if kind is not None:
        return Column(name, ColumnKind(str(kind)), format=next(iter(formats), DATE_FORMATS[0]))
    if not values:
        return Column(name, ColumnKind.IGNORED, words="no value in any row")
    if all(str(cell).strip().lower() in TRUE | FALSE for cell in values):
        return Column(name, ColumnKind.BOOLEAN)
    wrong = [cell for cell in values if not is_number(str(cell))]
    if not wrong:
        return Column(name, ColumnKind.NUMBER)
    if formats:
        return Column(name, ColumnKind.DATE, format=formats[0])
    if len(wrong) <= (1 - _MOSTLY) * len(values):
        row = first_row + next(place for place, cell in enumerate(cells) if cell is wrong[0])
        raise UserError(
            f"{where}: column {name}: row {row}: expected a number, as in {len(values) - len(wrong)} of {len(values)} "
            f"rows, got {text_of(wrong[0])}; {key}.{name}=text takes texts, ={ColumnKind.IGNORED} leaves the column out"
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
    return RawTable(tuple(Column(str(place), ColumnKind.NUMBER) for place in range(inputs.shape[1])), tuple(inputs.T))


def fitted(table: RawTable, rows: np.ndarray, target: Target) -> TableColumns:
    """Return the columns of a table, fitted on some of its rows. Raises UserError if no column holds a value."""
    training = [cells[rows] for cells in table.cells]
    columns = [_useful(*each) for each in zip(table.columns, training, strict=True)]
    used = [place for place, column in enumerate(columns) if column.kind is not ColumnKind.IGNORED]
    texts = [place for place in used if columns[place].kind is ColumnKind.TEXT]
    numbers = [place for place in used if place not in texts]
    if not used:
        raise UserError(f"expected a column of inputs with values, got {', '.join(c.name for c in columns)}")
    has_gaps = any(np.isnan(training[place]).any() for place in numbers)
    if not texts and not has_gaps:  # without scikit-learn, whose import takes over a CPU second
        fills, marked = [float(np.median(training[place])) for place in numbers], set[int]()
    else:
        transformer = column_transformer(numbers, texts)
        transformer.fit(np.stack([each.astype(object) for each in training], axis=1))
        steps = transformer.named_transformers_
        fills = steps["numbers"].statistics_.tolist() if numbers else []
        marked = set(steps["numbers"].indicator_.features_.tolist()) if numbers else set()
        values = zip(steps["texts"].categories_, steps["texts"].infrequent_categories_, strict=True) if texts else ()
        for place, each in zip(texts, values, strict=True):
            columns[place] = _of_texts(columns[place], training[place], *each)
    for position, (place, fill) in enumerate(zip(numbers, fills, strict=True)):
        columns[place] = _of_numbers(columns[place], training[place], fill, position in marked)
    return TableColumns(tuple(columns), target)


def column_transformer(numbers: Sequence[int], texts: Sequence[int]) -> Any:
    """Return an unfitted ColumnTransformer for columns of numbers and of texts, by position."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(
        max_categories=MAX_VALUES + 1, min_frequency=MIN_ROWS, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    steps = [("numbers", imputer, list(numbers)), ("texts", encoder, list(texts))]
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=0)


def _useful(column: Column, cells: np.ndarray) -> Column:
    """Return a column, ignored where its training rows hold no value, or no text often enough."""
    if column.kind is ColumnKind.IGNORED:
        return replace(column, words=column.words or "left out by the options")
    if column.kind is ColumnKind.TEXT:
        values, counts = np.unique(cells.astype(str), return_counts=True)
        if counts.max() < MIN_ROWS:
            words = f"{len(values)} different texts, none of them in {MIN_ROWS} rows"
            return replace(column, kind=ColumnKind.IGNORED, words=words)
        return column
    if np.isnan(cells).all():
        return replace(column, kind=ColumnKind.IGNORED, words="no value in the training rows")
    return column


def _of_numbers(column: Column, cells: np.ndarray, fill: float, has_mark: bool) -> Column:
    """Return a column of numbers or dates with its median; `has_mark`: whether values are missing."""
    # A time that orders the splits is always later than in training.
    parts = date_parts(cells)[bool(column.words) :] if column.kind is ColumnKind.DATE else ()
    words = column.words + {"number": "number", "boolean": "0 or 1", "date": f"date: {', '.join(parts)}"}[column.kind]
    known = cells[~np.isnan(cells)]
    if (known == known[0]).all() and not has_mark:
        words += ", constant"
    gaps = f", {_percent(np.isnan(cells))} missing: median {fill:.6g} and a mark" if has_mark else ""
    return replace(column, fill=fill, has_mark=has_mark, parts=parts, words=words + gaps)


def _of_texts(column: Column, cells: np.ndarray, values: np.ndarray, infrequent: Any) -> Column:
    others = set() if infrequent is None else set(infrequent)
    frequent = tuple(value for value in values if value not in others)
    words = f"one of {len(frequent)} values" + (f", {len(others)} rarer ones together" if others else "")
    words += ", constant" if len(values) == 1 else ""
    gaps = f", {_percent(cells == '')} missing" if "" in values else ""
    return replace(column, values=frequent, has_others=bool(others), words=words + gaps)


def _percent(is_true: np.ndarray) -> str:
    return f"{100 * float(np.mean(is_true)):.3g} %"
