"""Ask-and-tell: the search methods for a program with its own loop and its own evaluations.

    search = Search(env="cells", seed=0)
    for graph in search.ask(4):
        search.tell(graph, score_of(graph))

`ask` and `tell` call the same proposing and learning as a run (`gflownet.search.loop.SearchLoop`): equal scores lead to
equal proposals.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, SupportsFloat

import torch

from gflownet.config import Config, config_of, load_config, to_mapping
from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluation, evaluation_of
from gflownet.evaluation.execution import outcome_of
from gflownet.evaluation.job import EvaluationFuture, EvaluationStatus, Outcome, Request, record_of
from gflownet.evaluation.task import GFNTask, Score
from gflownet.files import parse_json, save_whole
from gflownet.graphs.canonical import Candidate
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.mdp.states import GraphStates
from gflownet.operations.tensor_shape import Shape
from gflownet.run.trainer import build_trainer
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS
from gflownet.search.loop import NO_PROPOSALS
from gflownet.search.method import Results
from gflownet.training.random_states import get_random_state, set_random_state

# Format of a saved search; another number is another format.
_FORMAT = 2


@dataclass
class ScoredElsewhereConfig:
    """Shapes of the data, for environments that need them."""

    input_sizes: list[Any] = field(default_factory=list)
    output_sizes: list[Any] = field(default_factory=list)


class ScoredElsewhere(GFNTask):
    """The task of a search whose scores come from `Search.tell`."""

    Config = ScoredElsewhereConfig
    is_cheap = True

    def __init__(self, config: Any) -> None:
        self.objectives = tuple(config.evaluation.objectives)
        super().__init__(config)
        self.input_sizes = tuple(map(_size, config.task_options.input_sizes))
        self.output_sizes = tuple(map(_size, config.task_options.output_sizes))

    def utility(self, objective: str, value: float) -> float:
        """Return the value that was told, of which larger is better."""
        return value

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Raise: there is nothing to compute."""
        raise RuntimeError("scores come from Search.tell")


@dataclass(frozen=True)
class Result:
    """A graph with what was told about it."""

    graph: Any
    score: float  # the floor score of a failed evaluation
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Entry:
    """A proposal, in the order of the proposals, and its evaluation once it is known."""

    state: GraphStates  # one state
    key: str  # canonical key
    evaluation: Evaluation | None = None


# Where neither the call nor the config names one.
DEFAULT_METHOD = "surrogate"


class Search:
    """A search method without evaluations: `ask` for graphs, `tell` their scores.

    Scores are numbers in [0, 1e6], larger is better, best within [0, 1]. Graphs may be asked for before earlier ones
    have their scores.
    """

    def __init__(
        self,
        config: str | None = None,
        *,
        env: str | None = None,
        method: str | None = None,
        seed: int | None = None,
        objectives: Sequence[str] = (),
        input_sizes: Sequence[Any] = (),
        output_sizes: Sequence[Any] = (),
        options: Sequence[str] = (),
    ) -> None:
        """Build the search space and the method.

        Args:
            config: name or path of a config, whose task gives the sizes of the data; it is not asked for scores.
            env: environment (`env.name`) of a search without a task.
            method: a search method, see docs/search-methods.md; default: the config's, else surrogate.
            seed: of all random numbers of the search; default: the config's, else 0.
            objectives: names of several values of a graph, for a search of their Pareto front.
            input_sizes: without a task: width or shape of each input of the networks, for environments of networks.
            output_sizes: without a task: width of each output.
            options: further options of the config, `a.b=c`.

        Raises:
            UserError: neither a config nor an environment, or an invalid option.
        """
        if (config is None) == (env is None):
            raise UserError(f"Search: expected a config or env=..., got {'none' if config is None else 'both'}")
        overrides = []
        if env is not None:
            overrides += [f"env.name={env}", f"task={__name__}:{ScoredElsewhere.__name__}"]
            overrides += [f"task_options.input_sizes={_texts(input_sizes)}"] if input_sizes else []
            overrides += [f"task_options.output_sizes={_texts(output_sizes)}"] if output_sizes else []
        overrides += [] if method is None else [f"search.method={method}"]
        overrides += [] if seed is None else [f"seed={seed}"]
        if objectives:
            overrides.append(f"evaluation.objectives=[{','.join(objectives)}]")
        overrides += options
        loaded = load_config(config, overrides)
        names_method = method is not None or any(option.startswith("search.method=") for option in options)
        if loaded.search.method in (AUTO, GFLOWNET) and not names_method:
            loaded = load_config(config, [*overrides, f"search.method={DEFAULT_METHOD}"])
        self._start(loaded)

    def _start(self, config: Config) -> None:
        if config.search.method in (AUTO, GFLOWNET):
            names = ", ".join(name for name in SEARCH_METHODS if name != GFLOWNET)
            raise UserError(f"search.method: expected one of {names} or module:Class, got {config.search.method}")
        random_state, num_threads = get_random_state(), torch.get_num_threads()
        try:
            components = build_trainer(config)
        finally:  # of the program that uses the search
            set_random_state(random_state)
            torch.set_num_threads(num_threads)
        self.config, self.task, self.env = components.config, components.task, components.env
        self._loop = components.search
        self._entries: list[_Entry] = []  # not in the history yet
        self._results: dict[str, tuple[Candidate, Evaluation]] = {}  # canonical key -> graph and evaluation

    @property
    def end(self) -> str:
        """The reason for which the method has no further proposals; empty before."""
        return self._loop.end

    def __len__(self) -> int:
        """Return the number of graphs with a score or an error."""
        return len(self._results)

    def ask(self, num: int = 1) -> list[Any]:
        """Return up to `num` new graphs to evaluate; none where the method has no more, see `end`.

        A proposal with a known score takes that score and is not returned, as in a run.

        Raises:
            UserError: `num` is not a positive integer.
        """
        if type(num) is not int or num < 1:
            raise UserError(f"ask: expected a number of graphs >= 1, got {num!r}")
        while True:
            self._learn()
            states = self.env.initial_states(0) if self._loop.end else self._loop.propose(num).states
            if not len(states):
                if not self._loop.history.in_flight:  # whose results may lead to others
                    self._loop.end = self._loop.end or NO_PROPOSALS
                return []
            new = self._enter(states)
            if new or not any(each.evaluation for each in self._entries):  # only graphs that are asked for already
                return new
            self._loop.end_at_repeats()

    def tell(
        self,
        graph: Any,
        score: SupportsFloat | Mapping[str, float] | None = None,
        *,
        error: str | None = None,
        metrics: Mapping[str, float] | None = None,
        num_parameters: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Give the result of a graph; one that was not asked for is prior knowledge, such as an earlier experiment.

        Args:
            graph: of `ask`, or another one of this search space; also as the dict of its `to_dict`.
            score: larger is better; one value per objective for a search with `objectives`.
            error: why the evaluation failed, in place of a score.
            metrics: further values, for example those of `evaluation.constraints`.
            num_parameters: of the model.
            seconds: of the evaluation.

        Raises:
            UserError: an invalid score, a graph of another space, or one that has a result already.
        """
        graph = self.env.terminal_type.from_dict(graph) if isinstance(graph, Mapping) else graph
        if not isinstance(graph, self.env.terminal_type):
            expected = self.env.terminal_type.__name__
            raise UserError(f"tell: expected a {expected} or its to_dict, got {type(graph).__name__}")
        key = graph.canonical_key()
        if key in self._results:
            known = self._results[key][1]
            result = f"the score {known.score:g}" if known.status is EvaluationStatus.OK else "an error"
            raise UserError(f"tell: expected a graph without a result, got one with {result}")
        if (score is None) == (error is None):
            raise UserError(f"tell: expected a score or error=..., got {'none' if score is None else 'both'}")
        outcome = self._outcome(score, error, Score(0.0, num_parameters, dict(metrics or {})), seconds)
        waiting = [each for each in self._entries if each.key == key and each.evaluation is None]
        future = EvaluationFuture(Request(graph), step=self._loop.round + 1)
        record = record_of(future, outcome, run="", floor_score=self.config.evaluation.floor_score)
        evaluation = evaluation_of(record, task=self.task, cached=not waiting)
        for entry in waiting or self._prior(graph):
            entry.evaluation = evaluation
            evaluation = replace(evaluation, cached=True)  # for the same graph asked for twice
        self._results[key] = graph, evaluation

    def best(self, num: int = 1) -> list[Result]:
        """Return the `num` graphs with the best scores, best first, without failures."""
        rows = [row for row in self._results.values() if row[1].status is EvaluationStatus.OK]
        ordered = sorted(rows, key=lambda row: row[1].score, reverse=True)[:num]
        return [_result(graph, evaluation) for graph, evaluation in ordered]

    def results(self) -> list[Result]:
        """Return all results in the order in which they were told."""
        return [_result(graph, evaluation) for graph, evaluation in self._results.values()]

    def waiting(self) -> list[Any]:
        """Return the graphs without a result, in the order in which they were asked for."""
        unfinished = [each for each in self._entries if each.evaluation is None]
        return [self.env.terminal(each.state, 0) for each in {each.key: each for each in unfinished}.values()]

    def network(self, graph: Any) -> ComputationGraph | None:
        """Return the network of a graph, for `gflownet.to_pytorch_model`; None where the task builds none."""
        return self.task.network(graph)

    def save(self, path: str | Path) -> None:
        """Write options, results and unfinished graphs to a file of JSON, from which `Search.load` continues."""
        state = {
            "format": _FORMAT,
            "config": to_mapping(self.config),
            "num_calls": self._loop.num_calls,
            "results": [_told(graph, evaluation) for graph, evaluation in self._results.values()],
            "waiting": [graph.to_dict() for graph in self.waiting()],
        }
        save_whole(Path(path), json.dumps(state))

    @classmethod
    def load(cls, path: str | Path) -> Search:
        """Return a search with the options, results and unfinished graphs of a file of `save`.

        The method learns from all results at the next `ask`; its proposals may differ from those without a break.

        Raises:
            UserError: no such file, or not one of `save`.
        """
        try:
            state = parse_json(Path(path).read_bytes())
        except FileNotFoundError:
            raise UserError(f"Search.load: no such file: {path}") from None
        except (OSError, ValueError):
            state = None
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise UserError(f"Search.load: expected a file of Search.save, got {path}")
        search = cls.__new__(cls)
        search._start(config_of(state["config"], where=f"{path}: "))
        search._loop.num_calls = state["num_calls"]
        for row in state["results"]:
            search.tell(**row)
        for entry in search._entries:  # evaluations of this search, not prior knowledge
            entry.evaluation = entry.evaluation and replace(entry.evaluation, cached=False)
        for graph in state["waiting"]:
            states = search.env.states_of([search.env.terminal_type.from_dict(graph)])
            search._loop.history.start(states)
            search._append(states)
        return search

    def _learn(self) -> None:
        """Pass the results since the last call to the method, in the order of the proposals."""
        finished = [each for each in self._entries if each.evaluation is not None]
        if not finished:
            return
        self._entries = [each for each in self._entries if each.evaluation is None]
        states = GraphStates.cat([each.state for each in finished])
        graphs = [self.env.terminal(each.state, 0) for each in finished]
        evaluations = [each.evaluation for each in finished if each.evaluation is not None]
        self._loop.learn(Results(self._loop.round + 1, states, graphs, evaluations))
        deque(self._loop.work(), maxlen=0)

    def _enter(self, states: GraphStates) -> list[Any]:
        """Remember proposals, and return the graphs that have neither a result nor are asked for already."""
        new = []
        known = {each.key for each in self._entries}
        for index in range(len(states)):
            entry = self._append(states[index : index + 1])
            if entry.key in self._results:
                entry.evaluation = replace(self._results[entry.key][1], cached=True)
            elif entry.key not in known:
                new.append(self.env.terminal(entry.state, 0))
            known.add(entry.key)
        return new

    def _append(self, state: GraphStates) -> _Entry:
        entry = _Entry(state, self.env.terminal(state, 0).canonical_key())
        self._entries.append(entry)
        return entry

    def _prior(self, graph: Any) -> list[_Entry]:
        """Return the entry of a graph that was not asked for. Raises UserError for one of another space."""
        try:
            states = self.env.states_of([graph])
        except (ValueError, NotImplementedError) as error:
            reason = str(error).removeprefix("graph 0: ")
            raise UserError(f"tell: expected a graph of this search space: {reason}") from None
        return [self._append(states)]

    def _outcome(
        self, score: SupportsFloat | Mapping[str, float] | None, error: str | None, extras: Score, seconds: float
    ) -> Outcome:
        """Return the outcome of a told result. Raises UserError for an invalid score."""
        if error is not None:
            return Outcome(EvaluationStatus.FAILED, seconds, error=" ".join(str(error).split()))
        metrics, value = dict(extras.metrics), score
        names = self.task.chosen_objectives
        if isinstance(score, Mapping):
            if not names:
                raise UserError(f"tell: expected one score of a search without objectives, got {dict(score)}")
            metrics |= score
            # The one score of a graph, for methods and orders that use one.
            value = math.fsum(float(score[name]) for name in names if name in score) / len(names)
        outcome = outcome_of(self.task, replace(extras, value=value, metrics=metrics), seconds)
        if outcome.status is not EvaluationStatus.OK:
            raise UserError(f"tell: {outcome.error}")
        return outcome


def _size(size: Any) -> Any:
    """Return a width as an integer and other sizes as a Shape."""
    return size if isinstance(size, int) else Shape.of(tuple(size))


def _texts(sizes: Sequence[Any]) -> str:
    return str([size if isinstance(size, int) else list(getattr(size, "sizes", size)) for size in sizes])


def _told(graph: Any, evaluation: Evaluation) -> dict[str, Any]:
    """Return arguments of `Search.tell` that give the same evaluation, as plain values."""
    measured = evaluation.score if evaluation.infeasible_score is None else evaluation.infeasible_score
    return {
        "graph": graph.to_dict(),
        "score": measured if evaluation.status is EvaluationStatus.OK else None,
        "error": evaluation.error,
        "metrics": dict(evaluation.metrics),
        "num_parameters": evaluation.num_parameters,
        "seconds": evaluation.seconds,
    }


def _result(graph: Any, evaluation: Evaluation) -> Result:
    return Result(graph, evaluation.score, evaluation.error, dict(evaluation.metrics))
