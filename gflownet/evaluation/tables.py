"""Tables of recorded results: CSV files, gzipped or not, checked when they are read.

R: rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gflownet.errors import UserError
from gflownet.files import read_text

_MOST_LISTED = 30  # names in an error


class Table:
    """The columns of a CSV file with a header, as text."""

    def __init__(self, path: str, *, key: str) -> None:
        """Read the file.

        Args:
            path: of the file.
            key: option that names the file, for errors.

        Raises:
            UserError: an unreadable file, no rows, a repeated name of a column, or a row of another length.
        """
        self.path, self.key = path, key
        try:
            reader = csv.reader(io.StringIO(read_text(path, key=key)), strict=True)
            numbered = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:
            raise UserError(f"{key}: expected a CSV file, got {path}: {error}") from None
        self._lines, rows = [line for line, _ in numbered[1:]], [row for _, row in numbered]
        if len(rows) < 2:
            raise UserError(f"{key}: expected a header and rows in {path}, got {len(rows)} lines")
        self.names = tuple(name.strip() for name in rows[0])
        repeated = [name for place, name in enumerate(self.names) if name in self.names[:place]]
        if repeated:
            raise UserError(f"{key}: expected different names of columns in {path}, got {repeated[0]!r} twice")
        for line, row in numbered[1:]:
            if len(row) != len(self.names):
                raise UserError(f"{key}: {path}, line {line}: expected {len(self.names)} columns, got {len(row)}")
        self._columns = dict(zip(self.names, zip(*rows[1:], strict=True), strict=True))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a required column, [R]. Raises UserError if the table has none of this name."""
        if name not in self._columns:
            raise UserError(f"{self.key}: expected a column {name} in {self.path}, got {listed(self.names)}")
        return self._columns[name]

    def numbers(self, name: str, *, key: str, low: float = 0.0, high: float = math.inf) -> list[float | None]:
        """Return a column of numbers, [R], None for empty cells.

        Args:
            name: of the column.
            key: option that names the column, for errors.
            low: smallest valid number.
            high: largest valid number.

        Raises:
            UserError: a missing column, or a cell that is no number from `low` to `high`.
        """
        if name not in self._columns:
            raise UserError(f"{key}: expected one of {listed(self.names)}, got {name!r}")
        numbers = []
        for line, text in zip(self._lines, self._columns[name], strict=True):
            try:
                value = float(text) if text.strip() else None
                value = math.nan if "_" in text else value  # float accepts 8_4.5
            except ValueError:
                value = math.nan
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                bounds = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
                raise UserError(
                    f"{key}: {self.path}, line {line}, column {name}: expected a number {bounds}, got {text!r}"
                )
            numbers.append(value)
        return numbers

    def named(self, name: str, *, prefix: str, key: str) -> str:
        """Return the column that a short name stands for.

        A short name leaves out the data set before the first or after the last underscore: edgegpu_latency for
        c10_edgegpu_latency, params for params_c10. With several such columns the one of the data set `prefix` is meant.

        Raises:
            UserError: no such column, or several.
        """
        if name in self._columns:
            return name
        fitting = [each for each in self.names if each.endswith(f"_{name}") or each.startswith(f"{name}_")]
        if len(fitting) > 1:
            fitting = [each for each in fitting if prefix in each.split("_")] or fitting
        if len(fitting) != 1:
            candidates = fitting or self.names
            raise UserError(f"{key}: expected one of {listed(candidates)}, got {name!r}")
        return fitting[0]

    def line_of(self, row: int) -> int:
        """Return the last line of a row in the file."""
        return self._lines[row]


def means(keys: Sequence[str], values: Sequence[float | None]) -> dict[str, float]:
    """Return the mean value of every key, of rows with keys [R] and values [R]; None is left out."""
    groups: dict[str, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            groups.setdefault(key, []).append(value)
    return {key: math.fsum(group) / len(group) for key, group in groups.items()}


def limits_of(values: Any, *, key: str) -> dict[str, float]:
    """Return an option that maps columns to positive numbers. Raises UserError for other values."""
    if not isinstance(values, Mapping) or not all(_is_positive(limit) for limit in values.values()):
        raise UserError(f"{key}: expected positive numbers by column, such as {{edgegpu_latency: 5.0}}, got {values}")
    return {str(name): float(limit) for name, limit in values.items()}


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, the first ones of very many."""
    every = list(names)
    rest = f" and {len(every) - _MOST_LISTED} more" if len(every) > _MOST_LISTED else ""
    return ", ".join(every[:_MOST_LISTED]) + rest


def _is_positive(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # an integer above the largest float
        return False
