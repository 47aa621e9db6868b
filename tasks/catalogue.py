"""Listed architectures with recorded trainings, for example the recurrent cells of NAS-Bench-NLP.

The list of `env.catalogue.graphs` has a graph or recipe per line, and its results: a number, or a curve with a number
per epoch. A curve gives the evaluation a fidelity, so that successive halving applies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
from torch import nn

from gflownet.errors import UserError
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.recorded_tables import CurveFields, RecordedCurve, limits_of
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import TRAINING_SECONDS, CandidateTraining, GFNTask, Score
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from gflownet.options import POSITIVE, option
from tasks.catalogue_space import KEY

_MAX_NATS = 700.0  # its exponential is a finite float
SCORE = "score"


@dataclass
class CatalogueTaskConfig:
    """The recorded results of the list."""

    column: str = option("score", "field of the results: a number, or a list with a number per epoch")
    test_column: str = option("", "field of the test results; empty: none")
    kind: Literal["score", "cost", "nats"] = option(
        "score", "score (larger is better), cost (smaller is better), or nats: a mean log-loss, cost: its exponential"
    )
    target: float = option(
        100.0, "cost, nats: a cost c, such as a perplexity, has the score 1 / (1 + c / target)", POSITIVE
    )
    parameters_column: str = option("", "field of the number of parameters; empty: none")
    seconds_column: str = option("", "field of the seconds of an epoch; the store has those of a training; empty: none")
    status_column: str = option("status", "field of the status: other values than OK are failures; empty: none")
    max: Any = option({}, "hard caps by field, {num_params: 2.0e7}; graphs above or without a value are refused")
    targets: Any = option({}, "values with utility 1/2 of fields chosen as objectives; others: the field's median")


class CatalogueTask(GFNTask):
    """Scores a listed graph by its recorded training: the best epoch so far by validation, and the test at that epoch.

    Several lines with one graph are runs of it: values are means over the successful ones. A graph whose runs all
    failed fails, at full fidelity. Objectives: score, and every field that is a cost, with the utility
    1 / (1 + value / target).
    """

    Config = CatalogueTaskConfig
    environment = "catalogue"
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        options = self.options = config.task_options
        path = config.env.catalogue.graphs
        if config.env.name == self.environment:  # otherwise the next call raises
            fields = CurveFields(options.column, options.test_column, options.seconds_column, options.status_column)
            self.curves = fields.read(read_listed_graphs(path, key=KEY), path=path)
            self.objectives = (SCORE, *sorted({name for curve in self.curves.values() for name in curve.fields}))
        super().__init__(config)
        successful = [curve for curve in self.curves.values() if curve.error is None]
        if not successful:
            raise UserError(
                f"task_options.status_column: expected a successful training in {path}, got only failed ones"
            )
        num_epochs = max(len(curve.values) for curve in self.curves.values())
        short = [curve for curve in successful if len(curve.values) < num_epochs]
        if short:
            raise UserError(
                f"task_options.column: expected {num_epochs} epochs in {options.column} of every successful line of "
                f"{path}, got {len(short[0].values)}"
            )
        self.max_fidelity = num_epochs if num_epochs > 1 else 0
        self._num_epochs = num_epochs
        self._caps = limits_of(options.max, key="task_options.max")
        self._check_fields(path)
        self._targets = self._medians() | limits_of(options.targets, key="task_options.targets")

    def fingerprint(self) -> str:
        """Return a digest of the recorded results."""
        parts = (
            [key, np.array(curve.values), np.array(curve.tests), str(sorted(curve.fields.items()))]
            for key, curve in self.curves.items()
        )
        return data_digest(each for part in parts for each in part)

    def evaluate(self, graph: Graph, *, seed: int) -> Score:
        """Return the score of the whole training. Raises ValueError for a failed or an unknown graph."""
        return self._trained(graph, self._num_epochs).score()

    def train_many(
        self,
        graphs: Sequence[Graph],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterator[CandidateTraining | Exception]:
        """Yield the recorded training of each graph up to an epoch."""
        for graph, state in zip(graphs, states, strict=True):
            try:
                yield self._trained(graph, fidelity, first=0 if state is None else int(state["fidelity"]))
            except ValueError as error:
                yield error

    def test(self, graph: Graph, *, seed: int) -> float | None:
        """Return the test score at the best epoch, None without a test column."""
        return self._trained(graph, self._num_epochs).test()

    def refusal(self, graph: Graph) -> str | None:
        """Return the cap that a graph exceeds, or the first objective that its line does not have."""
        fields = self._curve(graph).fields
        for name, limit in self._caps.items():
            value = fields.get(name)
            if value is None or value > limit:
                shown = "none" if value is None else f"{value:g}"
                return f"expected at most {limit:g} of {name} (task_options.max), got {shown}"
        missing = [name for name in self._targets if name in self.chosen_objectives and name not in fields]
        return f"expected a value of {missing[0]} (evaluation.objectives), got none" if missing else None

    def utility(self, objective: str, value: float) -> float:
        """Return the score itself, or 1 / (1 + value / target) of a cost: 1/2 at its target."""
        return value if objective == SCORE else 1 / (1 + value / self._targets[objective])

    def score_of(self, value: float) -> float:
        """Return the score of a recorded value: itself, or 1 / (1 + cost / target)."""
        if self.options.kind == "score":
            return value
        cost = math.exp(min(value, _MAX_NATS)) if self.options.kind == "nats" else value
        return 1 / (1 + cost / self.options.target)

    def _trained(self, graph: Graph, num_epochs: int, *, first: int = 0) -> RecordedTraining:
        curve = self._curve(graph)
        is_full = num_epochs >= self._num_epochs
        if len(curve.values) < num_epochs or (is_full and curve.error is not None):
            raise ValueError(f"the recorded training failed after {len(curve.values)} epochs: {curve.error}")
        return RecordedTraining(self, curve, num_epochs, first)

    def _curve(self, graph: Graph) -> RecordedCurve:
        key = graph.canonical_key()
        if key not in self.curves:
            raise ValueError(f"{self.config.env.catalogue.graphs}: expected a line with this graph, got none")
        return self.curves[key]

    def _medians(self) -> dict[str, float]:
        """Return the median of every field that is an objective of this run."""
        names = [name for name in self.chosen_objectives if name != SCORE]
        values = {name: [c.fields[name] for c in self.curves.values() if name in c.fields] for name in names}
        return {name: median(each) or 1.0 for name, each in values.items()}

    def _check_fields(self, path: str) -> None:
        """Raise UserError for named fields that no line has, and for values outside of their range."""
        names = {name for curve in self.curves.values() for name in curve.fields}
        caps = [("task_options.max", name) for name in self._caps]
        caps += [("task_options.targets", name) for name in self.options.targets]
        parameters = self.options.parameters_column
        for key, name in [*caps, *([("task_options.parameters_column", parameters)] if parameters else [])]:
            if name not in names:
                raise UserError(f"{key}: expected one of {', '.join(sorted(names)) or 'none'} in {path}, got {name!r}")
        values = [value for curve in self.curves.values() for value in (*curve.values, *curve.tests)]
        if min(values) < 0 or (self.options.kind == "score" and max(values) > self.max_score):
            bound = f" and at most {self.max_score:g}" if self.options.kind == "score" else ""
            raise UserError(
                f"task_options.column: expected numbers >= 0{bound} in {path}, got {min(values):g} to {max(values):g}"
            )


@dataclass
class RecordedTraining(CandidateTraining):
    """A recorded training up to an epoch, from the epoch `first` on."""

    task: CatalogueTask
    recorded: RecordedCurve
    fidelity: int
    first: int = 0
    model: nn.Module = field(default_factory=nn.Identity)

    def __post_init__(self) -> None:
        """Compute the curve of scores: the best so far after each epoch."""
        self.is_cost = self.task.options.kind != "score"
        best = [self._best(epoch + 1) for epoch in range(self.fidelity)]
        self.curve = tuple(self.task.score_of(self.recorded.values[epoch]) for epoch in best)

    def score(self) -> Score:
        """Return the score of the best epoch so far."""
        name = self.task.options.parameters_column
        size = self.recorded.fields.get(name) if name else None
        value = self.recorded.values[self._best(self.fidelity)]
        metrics = {"perplexity": math.exp(min(value, _MAX_NATS))} if self.task.options.kind == "nats" else {}
        values = {**self.recorded.fields, SCORE: self.curve[-1]}
        metrics |= {name: values[name] for name in self.task.chosen_objectives if name in values}
        if self.recorded.seconds is not None:
            metrics[TRAINING_SECONDS] = self.recorded.seconds * (self.fidelity - self.first)
        return Score(self.curve[-1], None if size is None else round(size), metrics)

    def test(self) -> float | None:
        """Return the test score of the best epoch so far by validation."""
        tests = self.recorded.tests
        return self.task.score_of(tests[self._best(self.fidelity)]) if tests else None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of epochs done; there is no model."""
        return {"fidelity": self.fidelity, "model": {}}

    def _best(self, num_epochs: int) -> int:
        return self.recorded.best(num_epochs, smaller_is_better=self.is_cost)
