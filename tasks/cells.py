"""Cells of tabular NAS benchmarks, scored by the measured accuracies of a table.

A table is a CSV file with a header, gzipped or not. NAS-Bench-201 and NAS-Bench-Macro have a column `code`, one digit
per position, and accuracies in percent; NAS-Bench-101 has `adjacency_rowmajor` and `op_labels`, and fractions.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gflownet.envs.cell_design import CELLS, NB101_OPERATIONS
from gflownet.envs.cell_networks import Cell
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.digest import data_digest
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.options import option

_PERCENT = 100.0
_CODE, _ADJACENCY, _LABELS = "code", "adjacency_rowmajor", "op_labels"
# The operations of NAS-Bench-101 as EC-NAS writes them.
_LABELLED = {"-1": "input", "-2": "output", **{str(i): operation for i, operation in enumerate(NB101_OPERATIONS)}}


@dataclass
class CellsConfig:
    """The table and its columns."""

    table: str = option("", "path of the table, a CSV file, gzipped or not")
    column: str = option("c10_val12", "column of the accuracies used as scores")
    test_column: str = option("", "column of the test accuracies in the final report; empty: none")


class CellsTask(GFNTask):
    """Scores a cell by its accuracy in a column of a table, in [0, 1]: the mean where it was trained repeatedly."""

    Config = CellsConfig
    environment = "cells"
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self.cell: Cell | None = CELLS.get(config.env.cells.name)  # None: a cell is a graph
        options = config.task_options
        rows = read_rows(options.table, key=_ADJACENCY if self.cell is None else _CODE)
        self.scores = self._means(rows, "column")
        self.test_scores = self._means(rows, "test_column") if options.test_column else {}

    def fingerprint(self) -> str:
        """Return a digest of the columns of the table in use."""
        tables = (self.scores, self.test_scores)
        return data_digest(x for table in tables for x in ("\0".join(table), np.array([*table.values()])))

    def evaluate(self, graph: Assignment | ColouredGraph, *, seed: int) -> Score:
        """Return the accuracy of a cell. Raises ValueError where the table has none."""
        return Score(self._lookup(self.scores, graph, self.config.task_options.column))

    def test(self, graph: Assignment | ColouredGraph, *, seed: int) -> float | None:
        """Return the accuracy in the test column, None if there is no such column. Raises ValueError as `evaluate`."""
        column = self.config.task_options.test_column
        return self._lookup(self.test_scores, graph, column) if column else None

    def _lookup(self, scores: Mapping[str, float], graph: Assignment | ColouredGraph, column: str) -> float:
        if isinstance(graph, Assignment) and self.cell is not None:
            key = self.cell.code(graph)
        else:
            key = graph.canonical_key()
        if key not in scores:
            raise ValueError(f"{self.config.task_options.table}: expected a row of cell {key} with {column}, got none")
        return scores[key]

    def _means(self, rows: list[dict[str, str]], option_name: str) -> dict[str, float]:
        """Return the mean accuracy in [0, 1] of every cell, from the column named by an option."""
        column = self.config.task_options[option_name]
        if column not in rows[0]:
            raise ValueError(f"task_options.{option_name}: expected one of {', '.join(rows[0])}, got {column!r}")
        full = 1.0 if self.cell is None else _PERCENT
        accuracies: dict[str, list[float]] = {}
        for row in rows:
            if row[column]:
                accuracy = _accuracy(row[column], full, f"task_options.{option_name}")
                accuracies.setdefault(self._key(row), []).append(accuracy)
        return {key: math.fsum(values) / len(values) for key, values in accuracies.items()}

    def _key(self, row: Mapping[str, str]) -> str:
        """Return the identity of a row's cell. Raises ValueError for a cell of another benchmark."""
        if self.cell is None:
            return graph_of_row(row).canonical_key()
        code, num_places = row[_CODE], len(self.cell.places)
        if len(code) != num_places:
            raise ValueError(
                f"task_options.table: expected codes of {num_places} digits with "
                f"env.cells.name={self.config.env.cells.name}, got {code!r}"
            )
        return code


def read_rows(table: str, *, key: str) -> list[dict[str, str]]:
    """Return the rows of the table at a path.

    Raises:
        ValueError: a missing or unreadable file, or one without rows or without the column `key`.
    """
    path = Path(table)
    if not path.is_file():
        raise ValueError(f"task_options.table: expected the path of a table of cells, got {table!r}, no file")
    open_table = gzip.open if path.suffix == ".gz" else open
    try:
        with open_table(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"task_options.table: expected a CSV file, got {path}: {error}") from error
    if not rows or key not in rows[0]:
        columns = ", ".join(rows[0]) if rows else "no rows"
        raise ValueError(f"task_options.table: expected a column {key} in {path}, got {columns}")
    return rows


def graph_of_row(row: Mapping[str, str]) -> ColouredGraph:
    """Return the graph of a row of NAS-Bench-101."""
    colours = tuple(_LABELLED[label] for label in row[_LABELS].split())
    num_nodes, adjacency = len(colours), row[_ADJACENCY]
    edges = {divmod(place, num_nodes): "edge" for place, digit in enumerate(adjacency) if digit == "1"}
    return ColouredGraph(colours, edges)


def _accuracy(text: str, full: float, option: str) -> float:
    """Return an accuracy from 0 to `full` scaled to [0, 1]."""
    try:
        value = float(text) / full
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"{option}: expected accuracies from 0 to {full:g}, got {text!r}")
    return value
