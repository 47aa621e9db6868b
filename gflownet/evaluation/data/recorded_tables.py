"""Recorded results: tables in CSV files, and curves of trainings of listed graphs, checked when read. R: rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from gflownet.errors import UserError
from gflownet.files import read_text
from gflownet.graphs.listed_graphs import ListedGraph
from gflownet.translation.table_columns import number_of

_MOST_LISTED = 30  # names in an error


class Table:
    """The columns of a CSV file with a header, as text."""

    def __init__(self, path: str, *, key: str, name: str, page: str) -> None:
        """Read the file.

        Args:
            path: of the file; empty: none.
            key: option that names the file, for errors.
            name: of the table, for errors.
            page: of the documentation, on where to get it.

        Raises:
            UserError: an unreadable file, no rows, a repeated name of a column, or a row of another length.
        """
        if not path:
            raise UserError(f"{key}: expected the file of the table {name}, got none; docs/{page} says where to get it")
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
            value = None if not text.strip() else math.nan if (number := number_of(text)) is None else number
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
    if not isinstance(values, Mapping) or not all(_is_number(limit) and limit > 0 for limit in values.values()):
        raise UserError(f"{key}: expected positive numbers by column, such as {{edgegpu_latency: 5.0}}, got {values}")
    return {str(name): float(limit) for name, limit in values.items()}


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, the first ones of very many."""
    every = list(names)
    rest = f" and {len(every) - _MOST_LISTED} more" if len(every) > _MOST_LISTED else ""
    return ", ".join(every[:_MOST_LISTED]) + rest


_OK = "OK"
_MAX_SHOWN = 60  # characters of an invalid value in an error


@dataclass(frozen=True)
class RecordedCurve:
    """The recorded training of a graph, the mean of several runs; values after each epoch."""

    values: tuple[float, ...]
    tests: tuple[float, ...] = ()  # empty: none are recorded
    seconds: float | None = None  # of one epoch
    error: str | None = None  # of a training that failed after its last epoch
    fields: Mapping[str, float] = field(default_factory=dict)  # further numbers

    def best(self, num_epochs: int, *, smaller_is_better: bool) -> int:
        """Return the epoch, from 0 on, of the best value in the first epochs: the model that early stopping keeps."""
        values = self.values[:num_epochs]
        return values.index(min(values) if smaller_is_better else max(values))


@dataclass(frozen=True)
class CurveFields:
    """The fields of a line with the recorded results; an empty name: none."""

    value: str
    test: str
    seconds: str
    status: str

    def read(self, lines: Sequence[ListedGraph], *, path: str) -> dict[str, RecordedCurve]:
        """Return the curve of every graph by its canonical key. Raises UserError for the first invalid line."""
        runs: dict[str, list[RecordedCurve]] = {}
        for each in lines:
            where = f"{path}, line {each.line}"
            if self.value not in each.fields:
                names = listed(map(str, each.fields))
                raise UserError(f"task_options.column: {where}: expected one of {names}, got {self.value!r}")
            runs.setdefault(each.graph.canonical_key(), []).append(self._run(each.fields, where))
        return {key: _mean(group) for key, group in runs.items()}

    def _run(self, fields: Mapping[str, Any], where: str) -> RecordedCurve:
        status = fields.get(self.status, _OK) if self.status else _OK
        error = None if str(status).upper() == _OK else str(status)
        values = _numbers(fields[self.value], f"task_options.column: {where}, {self.value}", may_end=error is not None)
        tests = _numbers(
            fields.get(self.test, []) if self.test else [],
            f"task_options.test_column: {where}, {self.test}",
            may_end=error is not None,
        )
        if self.test and len(tests) != len(values):
            key = "task_options.test_column"
            raise UserError(f"{key}: {where}: expected {len(values)} numbers in {self.test}, got {len(tests)}")
        if not values and error is None:
            raise UserError(f"task_options.column: {where}: expected numbers in {self.value}, got none")
        seconds = fields.get(self.seconds) if self.seconds else None
        if self.seconds and not (_is_number(seconds) and float(seconds or 0) > 0):
            key = "task_options.seconds_column"
            raise UserError(f"{key}: {where}: expected a positive number in {self.seconds}, got {seconds!r}")
        numbers = {str(name): float(value) for name, value in fields.items() if _is_number(value)}
        return RecordedCurve(values, tests, seconds, error, numbers)


def _mean(runs: Sequence[RecordedCurve]) -> RecordedCurve:
    """Return the mean of the runs of a graph, over the epochs that all successful runs have; failed if all are."""
    successful = [run for run in runs if run.error is None]
    if not successful:
        return max(runs, key=lambda run: len(run.values))
    if len(successful) == 1:
        return successful[0]
    names = set.intersection(*(set(run.fields) for run in successful))
    seconds = [run.seconds for run in successful if run.seconds is not None]
    return RecordedCurve(
        tuple(map(fmean, zip(*(run.values for run in successful), strict=False))),
        tuple(map(fmean, zip(*(run.tests for run in successful), strict=False))),
        fmean(seconds) if seconds else None,
        fields={name: fmean(run.fields[name] for run in successful) for name in sorted(names)},
    )


def _numbers(values: Any, where: str, *, may_end: bool) -> tuple[float, ...]:
    """Return a number or a curve of numbers; that of a failed training ends before the first missing value."""
    items = values if isinstance(values, list) else [values]
    invalid = next((place for place, each in enumerate(items) if not _is_number(each)), len(items))
    if invalid < len(items) and not may_end:
        shown = repr(items[invalid])
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:10]}..."
        raise UserError(f"{where}: expected finite numbers, got {shown}")
    return tuple(map(float, items[:invalid]))


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer above the largest float
        return False
