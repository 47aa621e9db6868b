"""Columns of a table as inputs of a model, and its outputs as classes or numbers; stored as JSON, never as a pickle.

N: rows, F: inputs of the model, O: outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

import numpy as np

# Texts of a cell without a value.
MISSING = {"", "na", "n/a", "nan", "nat", "<na>", "null", "none", "?", "-"}
TRUE, FALSE = {"true", "yes", "t", "y"}, {"false", "no", "f", "n"}
ISO = "iso"
DATE_FORMATS = (ISO, "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M")
# Periods of a date in days, each of which is two inputs, sine and cosine.
_PERIODS = {"year": 365.2425, "week": 7.0, "hour": 1.0}
_MAX_SHOWN = 10  # classes in the table of columns
_EPOCH = datetime(1970, 1, 1)


class ColumnKind(StrEnum):
    """How the cells of a column are read."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    TEXT = "text"
    IGNORED = "ignored"


@dataclass(frozen=True)
class Column:
    """A column, as fitted on the training rows."""

    name: str
    kind: ColumnKind
    fill: float = 0.0  # number, boolean, date in days since 1970: median, in place of a missing value
    has_mark: bool = False  # whether one more input marks missing values
    values: tuple[str, ...] = ()  # text: each is one input; the empty text is a missing value
    has_others: bool = False  # text: whether one more input marks all other values
    parts: tuple[str, ...] = ()  # date: `day` (its number) and names of periods
    format: str = ""  # date
    words: str = ""  # for the table of columns

    def features(self, cells: np.ndarray) -> np.ndarray:
        """Return the inputs [N, f] of cells [N], the result of `parsed`."""
        if self.kind is ColumnKind.TEXT:
            places = {value: place for place, value in enumerate(self.values)}
            codes = np.array([places.get(cell, len(places)) for cell in cells], dtype=np.int64)
            return np.eye(len(places) + 1)[codes][:, : len(places) + self.has_others]
        is_missing = np.isnan(cells)
        filled = np.where(is_missing, self.fill, cells)
        values = (
            [filled] if self.kind is not ColumnKind.DATE else [each for p in self.parts for each in _part(filled, p)]
        )
        return np.stack([*values, is_missing] if self.has_mark else values, axis=1).astype(float)

    @property
    def is_indicator(self) -> list[bool]:
        """Whether each input is 0 or 1 and therefore not standardised."""
        if self.kind is ColumnKind.TEXT:
            return [True] * (len(self.values) + self.has_others)
        num = 1 if self.kind is not ColumnKind.DATE else sum(1 if part == "day" else 2 for part in self.parts)
        return [False] * num + [True] * self.has_mark


@dataclass(frozen=True)
class Target:
    """The target of a table."""

    name: str
    has_classes: bool
    labels: tuple[Any, ...] = ()  # of the classes; empty: their numbers
    mean: tuple[float, ...] = ()  # [O] of numbers; empty: predicted as they are
    deviation: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        """The kind of the target for the table of columns."""
        if not self.has_classes:
            return "target: number" + (", standardised" if self.mean else "")
        shown = ", ".join(map(str, self.labels[:_MAX_SHOWN])) + (", ..." if len(self.labels) > _MAX_SHOWN else "")
        return "target: classes" + (f" {shown}" if shown else "")


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table in the order of its file, without the target."""

    columns: tuple[Column, ...]
    target: Target
    mean: tuple[float, ...] = ()  # [F] of the training rows; empty: inputs are not standardised
    deviation: tuple[float, ...] = ()  # [F], 0 for a constant input

    @property
    def inputs(self) -> list[Column]:
        """The columns that are inputs of the model."""
        return [column for column in self.columns if column.kind is not ColumnKind.IGNORED]

    def encoded(self, rows: Any) -> np.ndarray:
        """Return raw rows as inputs [N, F] of the model, float32.

        Args:
            rows: mappings by column name (csv.DictReader), sequences in the order of the columns, or a mapping of
                columns.

        Raises:
            ValueError: a missing column, or a cell that its column cannot hold.
        """
        cells = cells_of(rows, [column.name for column in self.columns], needed=[c.name for c in self.inputs])
        return self.features({c.name: parsed(cells[c.name], c, where="rows: ", first_row=0) for c in self.inputs})

    def features(self, cells: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parsed cells of columns by name as inputs [N, F], float32."""
        inputs = np.concatenate([column.features(cells[column.name]) for column in self.inputs], axis=1)
        inputs = inputs.astype(np.float32)
        if not self.mean:
            return inputs
        deviation = np.array(self.deviation, dtype=np.float32)
        return (inputs - np.array(self.mean, dtype=np.float32)) / np.where(deviation > 0, deviation, np.float32("inf"))

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the classes [N] of logits [N, O], or the numbers [N] or [N, O], in the units of the table."""
        target = self.target
        if target.has_classes:
            classes = outputs.argmax(axis=1)
            return np.array(target.labels)[classes] if target.labels else classes
        numbers = outputs * np.array(target.deviation) + np.array(target.mean) if target.mean else outputs
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers

    def lines(self, limit: int = 25) -> list[str]:
        """Return the table of columns as text, at most `limit` columns; one line for columns of plain numbers."""
        others = [column for column in self.columns if column.words != "number"]
        num_plain = len(self.columns) - len(others)
        rows = [(column.name, column.words) for column in others[:limit]]
        rows += [("...", f"{len(others) - limit} more columns, see the report")] if len(others) > limit else []
        rows += [(f"{num_plain} more" if others else f"{num_plain} columns", "numbers")] if num_plain else []
        rows.append((self.target.name, self.target.words))
        width = max(len(name) for name, _ in rows)
        return ["columns, fitted on the training rows; numbers are standardised:"] + [
            f"  {name:<{width}}  {words}" for name, words in rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data of which `from_dict` makes the same columns."""
        empty: tuple[Any, ...] = ("", 0.0, False, ())
        columns = [{k: v for k, v in asdict(column).items() if v not in empty} for column in self.columns]
        return {**asdict(self), "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableColumns:
        """Return the columns of JSON data. Raises ValueError for other data."""
        try:
            columns = [_of(Column, {**each, "kind": ColumnKind(each["kind"])}) for each in data["columns"]]
            result = _of(cls, {**data, "columns": columns, "target": _of(Target, data["target"])})
            num = sum(len(column.is_indicator) for column in result.inputs)
            if any(len(values) not in (0, num) for values in (result.mean, result.deviation)):
                raise ValueError(f"{num} inputs, {len(result.mean)} means and {len(result.deviation)} deviations")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected the columns of a table, got {type(error).__name__}: {error}") from None
        return result

    def standardised(self, mean: Iterable[float], deviation: Iterable[float]) -> TableColumns:
        """Return the columns with the mean and the deviation of each input."""
        return replace(self, mean=tuple(mean), deviation=tuple(deviation))


def _of(kind: type, data: Mapping[str, Any]) -> Any:
    """Return a dataclass of JSON data, with tuples for lists."""
    unknown = set(data) - {item.name for item in fields(kind)}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def cells_of(rows: Any, names: Sequence[str], *, needed: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    """Return the cells of raw rows by column. Raises ValueError for rows without a needed column."""
    if isinstance(rows, Mapping):
        columns = {str(name): list(cells) for name, cells in rows.items() if not isinstance(cells, str)}
        if len({len(columns.get(name, ())) for name in needed}) > 1:
            raise ValueError("rows: expected columns of equal length")
    else:
        rows = list(rows)
        if rows and all(isinstance(row, Mapping) for row in rows):
            known = set().union(*rows)
            columns = {name: [row.get(name) for row in rows] for name in needed if name in known}
        elif rows and all(isinstance(row, Sequence | np.ndarray) and len(row) == len(names) for row in rows):
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        else:
            raise ValueError(f"rows: expected mappings, or rows of the {len(names)} columns {', '.join(names)}")
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ValueError(f"rows: expected a column {missing[0]!r}, got {', '.join(map(str, columns)) or 'none'}")
    return columns


def is_number(cell: str) -> bool:
    """Return whether a text is a number; nan and inf are."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds no value."""
    return cell is None or str(cell).strip().lower() in MISSING


def parsed(cells: Sequence[Any], column: Column, *, where: str, first_row: int) -> np.ndarray:
    """Return cells as float64, NaN where missing and dates in days since 1970, or as texts, empty where missing.

    Raises:
        ValueError: a cell of another kind than the column.
    """
    if column.kind is ColumnKind.TEXT:
        return np.array(["" if is_missing(cell) else text_of(cell) for cell in cells], dtype=object)
    values = np.full(len(cells), math.nan)
    for place, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = days_of(cell, column.format) if column.kind is ColumnKind.DATE else number_of(cell)
        if value is None or not math.isfinite(value):
            expected = f"a date ({column.format})" if column.kind is ColumnKind.DATE else "a finite number"
            raise ValueError(
                f"{where}column {column.name}: row {place + first_row}: expected {expected}, got {str(cell).strip()}"
            )
        values[place] = value
    return values


def text_of(cell: Any) -> str:
    """Return the text of a cell; a whole number has no decimal point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def number_of(cell: Any) -> float | None:
    """Return the number of a cell, 1 or 0 for true or false, None for other cells."""
    text = str(cell).strip().lower()
    if text in TRUE or text in FALSE:
        return float(text in TRUE)
    try:
        return float(text)
    except ValueError:
        return None


def days_of(cell: Any, format: str) -> float | None:
    """Return the days since 1970 of a date, None for other cells."""
    if not isinstance(cell, date):
        try:
            text = str(cell).strip()
            cell = datetime.fromisoformat(text) if format == ISO else datetime.strptime(text, format)
        except ValueError:
            return None
    moment = cell if isinstance(cell, datetime) else datetime(cell.year, cell.month, cell.day)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) / timedelta(days=1)


def date_parts(days: np.ndarray) -> tuple[str, ...]:
    """Return the parts of dates: day, year and week, and the hour where not all are at midnight."""
    return ("day", "year", "week", *(("hour",) if (days[~np.isnan(days)] % 1).any() else ()))


def _part(days: np.ndarray, part: str) -> list[np.ndarray]:
    if part == "day":
        return [days]
    angles = 2 * np.pi * days / _PERIODS[part]
    return [np.sin(angles), np.cos(angles)]
