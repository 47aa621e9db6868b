"""Cells of tabular NAS benchmarks, scored by the measured accuracies of a table.

A table is a CSV file with a header, gzipped or not. NAS-Bench-201 and NAS-Bench-Macro have a column `code`, one digit
per position, and accuracies in percent; NAS-Bench-101 has `adjacency_rowmajor` and `op_labels`, and fractions. Other
columns are costs: objectives of a trade-off, or hard caps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from statistics import median
from typing import Any

import numpy as np

from gflownet.envs.cell_networks import Cell
from gflownet.envs.cells import CELLS, CIFAR_CLASSES, CIFAR_SHAPE, NB101_OPERATIONS, read_design
from gflownet.errors import UserError
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.recorded_tables import Table, limits_of, listed, means
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import TRAINING_SECONDS, Cost, GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.typed import graph_cost
from gflownet.options import option

ACCURACY = "accuracy"
_PERCENT = 100.0
_CODE, _ADJACENCY, _LABELS, _SPACE, _REPEAT = "code", "adjacency_rowmajor", "op_labels", "space", "repeat"
_IDENTITY = {_CODE, _ADJACENCY, _LABELS, _SPACE, _REPEAT, "index", "arch", "canon_index", "hash", "n_vertices"}
_SECONDS = "train_seconds"
# First letters of a part of a column's name, as in c10_val12 and test_acc_4ep: an accuracy, which is no cost.
_ACCURACIES = ("acc", "val", "test")
_TABLE = "task_options.table"
_ALIASES = {"parameters": "params"}
# The operations of NAS-Bench-101 as EC-NAS writes them.
_LABELLED = {"-1": "input", "-2": "output", **{str(i): operation for i, operation in enumerate(NB101_OPERATIONS)}}


@dataclass
class CellsConfig:
    """The table and its columns."""

    table: str = option("", "path of the table, a CSV file, gzipped or not")
    column: str = option("c10_val12", "column of the accuracies used as scores")
    test_column: str = option("", "column of the test accuracies in the final report; empty: none")
    max: Any = option({}, "hard caps by column, {edgegpu_latency: 5.0}; cells above or without a value are refused")
    seconds_column: str = option(
        "",
        "column of training seconds, the metric training_seconds of the store; empty: train_seconds, if there is one",
    )
    targets: Any = option({}, "values with utility 1/2 of columns chosen as objectives; others: the column's median")


@dataclass(frozen=True)
class _Column:
    """A column of costs under the name that an option uses."""

    name: str
    values: Mapping[str, float]  # by cell; cells without a value are left out


class CellsTask(GFNTask):
    """Scores a cell by its accuracy in a column of a table, in [0, 1]: the mean where it was trained repeatedly.

    Objectives: accuracy, and every column that is a cost; a value v has the utility 1 / (1 + v / target).
    """

    Config = CellsConfig
    environment = "cells"
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        self.cell: Cell | None = CELLS.get(config.env.cells.name)  # None: a cell is a graph
        self._name, options = config.env.cells.name, config.task_options
        self.options = options
        if config.env.name == self.environment:  # otherwise the next call raises
            self._table = Table(
                options.table, key=_TABLE, name=f"{config.env.cells.name}.csv.gz", page="tabular-benchmarks.md"
            )
            self._keys = self._identities()
            costs = [name for name in self._table.names if name not in _IDENTITY and not _is_accuracy(name)]
            self.objectives = (ACCURACY, *costs, *self._short_names(config))
            self.costs = dict.fromkeys(self.objectives[1:], 1.0)
        super().__init__(config)
        self.scores = self._accuracies("column")
        self.test_scores = self._accuracies("test_column") if options.test_column else {}
        targets = limits_of(options.targets, key="task_options.targets")
        costs = [name for name in self.measured_objectives if name != ACCURACY]
        self._objectives = {name: self._costs(name, _option_of(name, config)) for name in costs}
        self.costs = {name: median(each.values.values()) or 1.0 for name, each in self._objectives.items()} | targets
        unused = [name for name in targets if name not in costs]
        if unused:
            raise UserError(f"task_options.targets: expected some of {listed(costs) or 'none'}, got {unused[0]!r}")
        caps = limits_of(options.max, key="task_options.max")
        self._caps = [(self._costs(name, "task_options.max"), limit) for name, limit in caps.items()]
        self._sizes = self._optional("params"), self._optional("flops")
        seconds = options.seconds_column
        self._seconds = (
            self._costs(seconds, "task_options.seconds_column").values if seconds else self._optional(_SECONDS)
        )

    def fingerprint(self) -> str:
        """Return a digest of the columns of the table in use."""
        tables = [self.scores, self.test_scores, *(each.values for each in self._objectives.values())]
        return data_digest(x for table in tables for x in ("\0".join(table), np.array([*table.values()])))

    def evaluate(self, graph: Assignment | ColouredGraph, *, seed: int) -> Score:
        """Return the accuracy of a cell. Raises ValueError where the table has none."""
        key = self._identity(graph)
        accuracy = self._lookup(self.scores, key, self.options.column)
        metrics = {name: self._lookup(each.values, key, each.name) for name, each in self._objectives.items()}
        if self.measured_objectives:
            metrics[ACCURACY] = accuracy
        if key in self._seconds:
            metrics[TRAINING_SECONDS] = self._seconds[key]
        size = self._sizes[0].get(key)
        return Score(accuracy, None if size is None else round(size), metrics)

    def test(self, graph: Assignment | ColouredGraph, *, seed: int) -> float | None:
        """Return the accuracy in the test column, None if there is no such column. Raises ValueError as `evaluate`."""
        column = self.options.test_column
        return self._lookup(self.test_scores, self._identity(graph), column) if column else None

    def all_scores(self) -> Sequence[float]:
        """Return the accuracies of all cells, none with hard caps, which make some of them unreachable."""
        return () if self._caps else [*self.scores.values()]

    def all_test_scores(self) -> Sequence[float]:
        """Return the accuracies in the test column, as `all_scores`."""
        return () if self._caps else [*self.test_scores.values()]

    def refusal(self, graph: Assignment | ColouredGraph) -> str | None:
        """Return the cap that a cell exceeds, or the first value that the table does not have for it."""
        key = self._identity(graph)
        for column, limit in self._caps:
            value = column.values.get(key)
            if value is None:
                return f"expected a value of {column.name} for cell {key} with task_options.max, got none"
            if value > limit:
                return f"expected at most {limit:g} of {column.name} (task_options.max), got {value:g}"
        for name, column in self._objectives.items():
            if key not in column.values:
                option = "objectives" if name in self.chosen_objectives else "constraints"
                return f"expected a value of {column.name} for cell {key} with evaluation.{option}, got none"
        return None

    def cost(self, graph: Assignment | ColouredGraph) -> Cost:
        """Return the size in the columns params and flops (multiply-adds), or of the cell's network on CIFAR-10."""
        key = self._identity(graph)
        size, multiply_adds = (column.get(key) for column in self._sizes)
        if size is None or multiply_adds is None:
            cost = graph_cost(self._networks.graph(graph))
            size, multiply_adds = cost.num_parameters, cost.multiply_adds
        return Cost(round(size), 2 * round(multiply_adds))

    @cached_property
    def _networks(self) -> Any:
        return read_design(self.config.env.cells).networks(CIFAR_SHAPE, CIFAR_CLASSES)

    def _identity(self, graph: Assignment | ColouredGraph) -> str:
        """Return the key of a cell in the table."""
        if isinstance(graph, Assignment) and self.cell is not None:
            return self.cell.code(graph)
        return graph.canonical_key()

    def _lookup(self, values: Mapping[str, float], key: str, column: str) -> float:
        if key not in values:
            raise ValueError(f"{self.options.table}: expected a row of cell {key} with {column}, got none")
        return values[key]

    def _accuracies(self, option_name: str) -> dict[str, float]:
        """Return the mean accuracy in [0, 1] of every cell, from the column named by an option."""
        name, key = self.options[option_name], f"task_options.{option_name}"
        full = 1.0 if self.cell is None else _PERCENT
        column = self._table.numbers(name, key=key, high=full)
        if self.cell is not None and None in column:
            row = column.index(None)
            cell, line = self._keys[row], self._table.line_of(row)
            raise UserError(
                f"{key}: {self.options.table}, line {line}: expected a number in {name} of {cell}, got none"
            )
        return {cell: value / full for cell, value in means(self._keys, column).items()}

    def _costs(self, name: str, key: str) -> _Column:
        """Return a column of costs by its full or short name."""
        full_name = self._full_name(name, key)
        if _is_accuracy(full_name):
            raise UserError(f"{key}: expected a column of costs, which are minimised, got {full_name}, accuracies")
        values = means(self._keys, self._table.numbers(full_name, key=key))
        if not values:
            raise UserError(f"{key}: expected numbers in column {full_name}, got none")
        return _Column(full_name, values)

    def _optional(self, name: str) -> Mapping[str, float]:
        """Return a column by its short name, an empty one where the table has none, or several that fit."""
        try:
            full_name = self._full_name(name, _TABLE)
        except UserError:
            return {}
        return means(self._keys, self._table.numbers(full_name, key=_TABLE))

    def _short_names(self, config: TaskConfig) -> list[str]:
        """Return the objectives and limits of the config that are short names of columns."""
        measured = (*config.evaluation.objectives, *config.evaluation.constraints)
        names = [name for name in measured if name != ACCURACY and name not in self._table.names]
        return [name for name in names if self._full_name(name, _option_of(name, config))]

    def _full_name(self, name: str, key: str) -> str:
        name = name if name in self._table.names else _ALIASES.get(name, name)
        data_set = str(self.options.column).partition("_")[0]
        return self._table.named(name, prefix=data_set, key=key)

    def _identities(self) -> list[str]:
        """Return the key of the cell of every row, see `_identity`.

        Raises:
            UserError: a cell of another benchmark, a repeated row, or a missing cell.
        """
        table = self._table
        if self.cell is not None:
            codes = list(table.texts(_CODE))
            self._check_codes(codes, self.cell)
            return codes
        texts = [table.texts(name) for name in (_ADJACENCY, _LABELS)]
        runs = [table.texts(name) for name in (_SPACE, _REPEAT) if name in table.names]
        rows = list(zip(*texts, *runs, strict=True))
        if _REPEAT in table.names:
            self._check_distinct(rows)
        keys = {row[:2]: self._graph_key(*row[:2], line=table.line_of(place)) for place, row in enumerate(rows)}
        return [keys[row[:2]] for row in rows]

    def _graph_key(self, adjacency: str, labels: str, *, line: int) -> str:
        try:
            return graph_of(adjacency, labels).canonical_key()
        except ValueError as error:
            raise UserError(f"task_options.table: {self.options.table}, line {line}: {error}") from None

    def _check_codes(self, codes: list[str], cell: Cell) -> None:
        """Raise UserError unless every cell has one row."""
        num_places, digits = len(cell.places), "".join(map(str, range(len(cell.operations))))
        for row, code in enumerate(codes):
            if len(code) != num_places or not set(code) <= set(digits):
                raise UserError(
                    f"task_options.table: {self.options.table}, line {self._table.line_of(row)}: expected codes of "
                    f"{num_places} digits out of {digits} with env.cells.name={self._name}, got {code!r}"
                )
        self._check_distinct(codes)
        expected = len(digits) ** num_places
        if len(codes) < expected:
            known = set(codes)
            missing = ("".join(code) for code in product(digits, repeat=num_places) if "".join(code) not in known)
            raise UserError(
                f"task_options.table: expected a row for each of {expected:,} cells in {self.options.table}, got "
                f"{len(codes):,}; missing: {', '.join(islice(missing, 3))}"
            )

    def _check_distinct(self, rows: list[Any]) -> None:
        """Raise UserError for two rows of one training."""
        lines: dict[Any, int] = {}
        for row, identity in enumerate(rows):
            first = lines.setdefault(identity, row)
            if first != row:
                line, earlier = self._table.line_of(row), self._table.line_of(first)
                raise UserError(
                    f"task_options.table: {self.options.table}, line {line}: expected one row of {identity}, got "
                    f"another one in line {earlier}"
                )


def graph_of(adjacency: str, labels: str) -> ColouredGraph:
    """Return the graph of a cell of NAS-Bench-101: n * n digits row by row, and n labels separated by spaces.

    Raises:
        ValueError: an unknown label, or a number of digits that does not fit.
    """
    names = labels.split()
    unknown = [name for name in names if name not in _LABELLED]
    if unknown:
        raise ValueError(f"{_LABELS}: expected labels out of {', '.join(_LABELLED)}, got {unknown[0]!r}")
    num_nodes = len(names)
    if len(adjacency) != num_nodes**2 or not set(adjacency) <= {"0", "1"}:
        raise ValueError(f"{_ADJACENCY}: expected {num_nodes**2} digits 0 or 1, got {adjacency!r}")
    edges = {divmod(place, num_nodes): "edge" for place, digit in enumerate(adjacency) if digit == "1"}
    return ColouredGraph(tuple(_LABELLED[name] for name in names), edges)


def _is_accuracy(column: str) -> bool:
    return any(part.startswith(_ACCURACIES) for part in column.split("_"))


def _option_of(metric: str, config: TaskConfig) -> str:
    """Return the option that names a metric, with a limit or as an objective."""
    is_objective = metric in config.evaluation.objectives
    return "evaluation.objectives" if is_objective else f"evaluation.constraints.{metric}"


def graph_of_row(row: Mapping[str, str]) -> ColouredGraph:
    """Return the graph of a row of NAS-Bench-101."""
    return graph_of(row[_ADJACENCY], row[_LABELS])
