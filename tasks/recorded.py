"""Candidates of any environment, scored by a table of recorded evaluations, such as one of scripts/record_space.py.

A table is a CSV file with a header, gzipped or not. Its column `hash` has the canonical hashes of the candidates, or as
many first characters of each; the other columns are numbers, empty where an evaluation failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.recorded_tables import Table
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import TRAINING_SECONDS, Cost, GFNTask, Score
from gflownet.graphs.canonical import Candidate
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.operations.tensor_shape import Shape
from gflownet.options import AT_LEAST_ONE, option

# Characters of a hash: its version and 36 bits.
MIN_HASH_LENGTH = 12
_HASH, _PARAMETERS, _FLOPS = "hash", "num_parameters", "flops"
_NUM_CHECKED = 16  # random candidates of the space that are looked up when a table is read
_KEY = "task_options.table"


@dataclass
class RecordedConfig:
    """The table, its columns, and the ends of the recorded networks."""

    table: str = option("", "path of the table, a CSV file, gzipped or not")
    column: str = option("score", "column of the scores")
    test_column: str = option("test_score", "column of the test scores in the final report; empty: none")
    seconds_column: str = option(
        "seconds", "column of training seconds, the metric training_seconds of the store; empty: none"
    )
    seed_columns: list[str] = option(
        [],
        "columns of the scores of single trainings: an evaluation has one of them, chosen by its seed; "
        "empty: that of column, whatever the seed",
    )
    input_sizes: list[Any] = option([], "widths or shapes of the inputs, such as [64] or [[1, 40]], where needed")
    input_layout: str = option("", "meaning of their axes: sequence, signal, image or volume; empty: by their number")
    output_sizes: list[int] = option([], "widths of the outputs", AT_LEAST_ONE)


@dataclass(frozen=True)
class Recording:
    """The rows of a table, R, by hash; None: an empty cell."""

    path: str
    row_of: dict[str, int]  # by hash or the first characters of a hash
    scores: list[float | None] = field(default_factory=list)  # [R]
    by_seed: list[list[float | None]] = field(default_factory=list)  # of [R]
    tests: list[float | None] = field(default_factory=list)  # [R], empty without such a column, as all below
    seconds: list[float | None] = field(default_factory=list)  # [R]
    num_parameters: list[float | None] = field(default_factory=list)  # [R]
    flops: list[float | None] = field(default_factory=list)  # [R]

    def row(self, candidate: Candidate) -> int | None:
        """Return the row of a candidate, None if there is none."""
        length = len(next(iter(self.row_of)))
        return self.row_of.get(candidate.canonical_hash()[:length])


class RecordedTask(GFNTask):
    """Scores a candidate by its row in a table; its parameters, FLOPs, seconds and test score are in other columns."""

    Config = RecordedConfig
    is_cheap = True
    objectives = ("score", "parameters", "flops")

    def __init__(self, config: TaskConfig) -> None:
        """Read the table. Raises UserError for a table that is damaged, incomplete or of another space."""
        evaluation = config.evaluation
        self.costs = {"parameters": evaluation.target_parameters, "flops": evaluation.target_flops}
        super().__init__(config)
        options = config.task_options
        self.input_sizes, self.output_sizes = _input_sizes(options), tuple(options.output_sizes)
        self.recording = read_recording(options)
        self._check_space()

    @property
    def is_noisy(self) -> bool:
        """Whether a score depends on the seed."""
        return bool(self.recording.by_seed)

    def evaluate(self, graph: Candidate, *, seed: int) -> Score:
        """Return the recorded score, that of one training with `seed_columns`.

        Raises:
            ValueError: a candidate without a score.
        """
        row, columns = self._row(graph), self.recording.by_seed
        score = (columns[seed % len(columns)] if columns else self.recording.scores)[row]
        if score is None:
            raise ValueError(f"{self.recording.path}: expected a score of {graph.canonical_hash()}, got an empty cell")
        recording = self.recording
        size, seconds = _cell(recording.num_parameters, row), _cell(recording.seconds, row)
        values = {TRAINING_SECONDS: seconds, "score": score, "parameters": size, "flops": _cell(recording.flops, row)}
        names = (TRAINING_SECONDS, *self.measured_objectives)
        metrics = {name: value for name in names if (value := values[name]) is not None}
        return Score(score, None if size is None else round(size), metrics)

    def test(self, graph: Candidate, *, seed: int) -> float | None:
        """Return the recorded test score, None without one. Raises ValueError for a candidate without a row."""
        return _cell(self.recording.tests, self._row(graph))

    def all_scores(self) -> Sequence[float]:
        """Return the recorded scores."""
        return [score for score in self.recording.scores if score is not None]

    def all_test_scores(self) -> Sequence[float]:
        """Return the recorded test scores."""
        return [score for score in self.recording.tests if score is not None]

    def cost(self, graph: Candidate) -> Cost | None:
        """Return the recorded size, None for a candidate without one."""
        row = self.recording.row(graph)
        sizes = [None if row is None else _cell(x, row) for x in (self.recording.num_parameters, self.recording.flops)]
        return None if sizes[0] is None or sizes[1] is None else Cost(round(sizes[0]), round(sizes[1]))

    def fingerprint(self) -> str:
        """Return a digest of the columns in use."""
        recording = self.recording
        columns = (recording.scores, recording.tests, recording.seconds, recording.num_parameters, recording.flops)
        columns += tuple(recording.by_seed)
        return data_digest(["\0".join(recording.row_of), *(np.array(column, dtype=float) for column in columns)])

    def _row(self, graph: Candidate) -> int:
        row = self.recording.row(graph)
        if row is None:
            raise ValueError(f"{self.recording.path}: expected a row of {graph.canonical_hash()}, got none")
        return row

    def _check_space(self) -> None:
        """Raise UserError if the table has none of some random candidates of the environment."""
        env = self.config.env
        context = ENVIRONMENTS.load(env.name)
        built = context.build_env(env, input_sizes=self.input_sizes, output_sizes=self.output_sizes)
        candidates = random_candidates(built, _NUM_CHECKED, generator=torch.Generator().manual_seed(0))
        if all(self.recording.row(candidate) is None for candidate in candidates):
            raise UserError(
                f"{_KEY}: expected candidates of env.name={env.name} in {self.recording.path}, got none of "
                f"{len(candidates)} random ones; other options under env, input_sizes or output_sizes change the space"
            )


def read_recording(options: RecordedConfig) -> Recording:
    """Return the table that the options of the task name. Raises UserError for an invalid one."""
    table = Table(options.table, key=_KEY, name="of recorded evaluations", page="recorded-spaces.md")
    scores = table.numbers(options.column, key="task_options.column")
    if all(score is None for score in scores):
        raise UserError(f"task_options.column: expected scores in {table.path}, got the empty column {options.column}")
    by_seed = [table.numbers(name, key="task_options.seed_columns") for name in options.seed_columns]
    tests, seconds = (_optional_numbers(table, options, key) for key in ("test_column", "seconds_column"))
    sizes = [table.numbers(name, key=_KEY) if name in table.names else [] for name in (_PARAMETERS, _FLOPS)]
    return Recording(table.path, rows_by_hash(table), scores, by_seed, tests, seconds, *sizes)


def _input_sizes(options: RecordedConfig) -> tuple[Any, ...]:
    """Return widths and shapes. Raises UserError for others."""
    try:
        return tuple(
            size if isinstance(size, int) else Shape.of(tuple(size), options.input_layout or None)
            for size in options.input_sizes
        )
    except (TypeError, ValueError) as error:
        raise UserError(
            f"task_options.input_sizes: expected widths or shapes, such as [64] or [[1, 40]], with an input_layout "
            f"that fits, got {list(options.input_sizes)} and {options.input_layout!r}: {error}"
        ) from error


def _optional_numbers(table: Table, options: RecordedConfig, key: str) -> list[float | None]:
    """Return the column of an option, empty for an empty name, and for the default name where the table has none."""
    name = getattr(options, key)
    is_absent = name == getattr(RecordedConfig, key) and name not in table.names
    return table.numbers(name, key=f"task_options.{key}") if name and not is_absent else []


def rows_by_hash(table: Table) -> dict[str, int]:
    """Return the row of each hash. Raises UserError for a hash twice, or hashes of several lengths."""
    hashes = table.texts(_HASH)
    row_of: dict[str, int] = {}
    for row, text in enumerate(hashes):
        where = f"{_KEY}: {table.path}, line {table.line_of(row)}"
        if len(text) != len(hashes[0]) or len(text) < MIN_HASH_LENGTH:
            raise UserError(
                f"{where}: expected hashes of one length of at least {MIN_HASH_LENGTH} characters, got {text!r}"
            )
        if row_of.setdefault(text, row) != row:
            raise UserError(f"{where}: expected each hash once, got {text!r} again")
    return row_of


def random_candidates(env: Environment, num: int, *, generator: torch.Generator) -> Sequence[Candidate]:
    """Return the terminal objects of trajectories of uniformly random actions."""
    states, candidates = env.initial_states(num), []
    while len(states):
        actions = env.forward_masks(states).sample_uniform(generator)
        is_stop = actions.kind == int(GraphActionType.Stop)
        candidates += [env.terminal(states, index) for index in is_stop.nonzero().squeeze(1).tolist()]
        moves = (~is_stop).nonzero().squeeze(1)
        states = env.apply(states[moves], actions[moves])
    return candidates


def _cell(column: Sequence[float | None], row: int) -> float | None:
    return column[row] if column else None
