"""Listed architectures with recorded trainings, for example the recurrent cells of NAS-Bench-NLP: space and task.

The list of `env.catalogue.graphs` has a graph or recipe per line, and its results: a number, or a curve with a number
per epoch. A curve gives the evaluation a fidelity, so that successive halving applies.

The graphs are ordered by similarity and get evenly spread codes of digits, so that graphs with a common prefix are
similar. The choices write a code from left to right; each graph has one trajectory.

Letters: B states, M graphs, N nodes of the largest graph, G graphs, F features.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gflownet.envs.choice_limits import ListedSettings
from gflownet.envs.choice_places import Place, Places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.config import EnvConfig
from gflownet.errors import UserError
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.recorded_tables import CurveFields, RecordedCurve, limits_of
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import TRAINING_SECONDS, CandidateTraining, GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs
from gflownet.options import POSITIVE, option

KEY = "env.catalogue.graphs"


class CatalogueEnv(ChoicesEnv):
    """Listed graphs, isomorphic ones once, as codes of digits; a digit may be chosen once the one before it is."""

    def __init__(self, graphs: Sequence[Graph], *, branching: int = 8) -> None:
        """Order the graphs, of one class, and give them codes of digits below `branching`."""
        unique = {graph.canonical_key(): graph for graph in graphs}
        ordered = [unique[key] for key in sorted(unique)]
        order = similarity_order([label_counts(graph.to_dict()) for graph in ordered])
        self.graphs = [ordered[index] for index in order]  # in the order of their codes
        num, self.num_digits = len(self.graphs), 1
        while branching**self.num_digits < num:
            self.num_digits += 1
        digits, names = tuple(range(branching)), [f"choice{place}" for place in range(self.num_digits)]
        before = [(), *(((name, digits),) for name in names)]
        places = Places(tuple(Place(name, digits, only_if) for name, only_if in zip(names, before, strict=False)))
        codes = [index * branching**self.num_digits // num for index in range(num)]
        weights = [branching**place for place in reversed(range(self.num_digits))]
        settings = ({n: code // weight % branching for n, weight in zip(names, weights, strict=True)} for code in codes)
        self._listed = ListedSettings(places, tuple(settings))
        super().__init__(places, self._listed, attribute="branch")
        self.terminal_type = type(self.graphs[0])
        self._position = {graph.canonical_key(): position for position, graph in enumerate(self.graphs)}

    def terminal(self, states: GraphStates, index: int) -> Any:
        return self.graphs[int(self.positions(states[index : index + 1])[0])]

    def positions(self, states: GraphStates) -> Tensor:
        """Return the position of the graph of each complete code, [B] int64, -1 for an incomplete one."""
        agrees = self._listed.agrees(states.node_attr[:, :, 0]).view(torch.uint8).argmax(1)
        return torch.where(self.filled(states).all(1), agrees, -1)

    def describe(self, candidate: Any) -> GraphDescription:
        position = self._position.get(candidate.canonical_key())
        if position is None:
            raise ValueError(f"expected one of {len(self.graphs)} listed graphs, got another one")
        return super().describe(Assignment.of(self._listed.settings[position]))

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the listed graphs of complete codes, and graphs without nodes for the others."""
        positions = self.positions(states)
        labels, edges = self._arrays
        is_incomplete = (positions < 0)[:, None, None]
        return LabelledGraphs(
            labels[positions].long().masked_fill(is_incomplete, UNSET),
            edges[positions].long().masked_fill(is_incomplete, NO_EDGE),
            torch.empty(len(states), 0, dtype=torch.int64),
        )

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Return the labels [M, N, 1] and the edges [M, N, N] of the listed graphs as numbers, int16."""
        texts = [label_texts(graph.to_dict()) for graph in self.graphs]
        node_texts = sorted({text for nodes, _ in texts for text in nodes.values()})
        edge_texts = sorted({text for _, edges in texts for text in edges.values()})
        label = {text: number for number, text in enumerate(node_texts)}
        code = {text: number for number, text in enumerate(edge_texts, start=NO_EDGE + 1)}
        num_nodes = max(len(nodes) for nodes, _ in texts)
        labels = torch.full((len(texts), num_nodes, 1), UNSET, dtype=torch.int16)
        edges = torch.full((len(texts), num_nodes, num_nodes), NO_EDGE, dtype=torch.int16)
        for index, (of_nodes, of_edges) in enumerate(texts):
            place = {node: position for position, node in enumerate(of_nodes)}
            for node, text in of_nodes.items():
                labels[index, place[node], 0] = label[text]
            for (source, target), text in of_edges.items():
                edges[index, place[source], place[target]] = code[text]
        return labels, edges


class CatalogueContext(GraphBuildingEnvContext):
    """Context of a list of graphs, from the options under `env.catalogue`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> CatalogueEnv:
        catalogue = config.catalogue
        listed = read_listed_graphs(catalogue.graphs, key=KEY)
        return CatalogueEnv([each.graph for each in listed])


def label_texts(graph: Mapping[str, Any]) -> tuple[dict[Any, str], dict[tuple[Any, Any], str]]:
    """Return the labels of the nodes and edges of a graph in node-link form: their fields as text."""
    nodes = {node["id"]: _text(node, {"id"}) for node in graph["nodes"]}
    edges: dict[tuple[Any, Any], str] = {}
    for edge in graph["edges"]:
        ends = edge["source"], edge["target"]
        edges[ends] = "+".join(filter(None, (edges.get(ends), _text(edge, {"source", "target", "key"}))))
        if not graph.get("directed", True):
            edges[ends[::-1]] = edges[ends]
    return nodes, edges


def label_counts(graph: Mapping[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each label of a node, and each label of an edge with its ends, occurs in a node-link graph."""
    nodes, edges = label_texts(graph)
    ends = Counter(f"{nodes[source]}>{label}>{nodes[target]}" for (source, target), label in edges.items())
    return Counter(nodes.values()), ends


def similarity_order(counts: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]) -> list[int]:
    """Return the order of G graphs by their label counts, ties in the given order.

    The list is split by the count with the largest variance, near its median and between different values, and so is
    each part: by labels of nodes, then among graphs with equal nodes by those of edges. Computed in integers: the same
    on every machine.
    """
    levels = [_matrix([each[level] for each in counts]) for level in (0, 1)]
    order, parts = list[int](), [np.arange(len(counts))]
    while parts:
        rows = parts.pop()
        split = _split(rows, levels)
        if split is None:
            order += rows.tolist()
        else:
            parts += reversed(split)
    return order


def _matrix(counts: Sequence[Mapping[str, int]]) -> np.ndarray:
    """Return counts by label, [G, F] int64."""
    names = sorted({name for each in counts for name in each})
    column = {name: place for place, name in enumerate(names)}
    matrix = np.zeros((len(counts), len(names)), dtype=np.int64)
    for row, each in enumerate(counts):
        for name, count in each.items():
            matrix[row, column[name]] = count
    return matrix


def _split(rows: np.ndarray, levels: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return two parts of some rows by the first matrix in which they differ, None if they differ in none."""
    for matrix in levels:
        values = matrix[rows]
        spread = len(rows) * (values**2).sum(0) - values.sum(0) ** 2  # the variance times the squared number of rows
        if spread.any():
            column = values[:, spread.argmax()]
            place = np.argsort(column, kind="stable")
            ends = np.flatnonzero(np.diff(column[place])) + 1
            end = ends[np.abs(2 * ends - len(rows)).argmin()]
            return rows[place[:end]], rows[place[end:]]
    return None


def _text(fields: Mapping[str, Any], without: set[str]) -> str:
    return json.dumps({name: value for name, value in fields.items() if name not in without}, sort_keys=True)


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
            self.costs = dict.fromkeys(self.objectives[1:], 1.0)
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
        measured = [name for name in self.chosen_objectives if name != SCORE]
        values = {name: [c.fields[name] for c in self.curves.values() if name in c.fields] for name in measured}
        self.costs = {name: median(each) or 1.0 for name, each in values.items()}
        self.costs |= limits_of(options.targets, key="task_options.targets")

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
        missing = [name for name in self.chosen_objectives if name != SCORE and name not in fields]
        return f"expected a value of {missing[0]} (evaluation.objectives), got none" if missing else None

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
