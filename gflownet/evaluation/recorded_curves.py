"""Recorded trainings of listed graphs: curves of validation and test values over epochs, checked when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.tables import listed
from gflownet.graphs.listed_graphs import ListedGraph

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
        """Return the recorded training in a line."""
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
