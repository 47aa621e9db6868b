"""Searches over 81 settings of four places, with scores computed from the values; no evaluator, no run folder."""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from gflownet.config import load_config
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation
from gflownet.evaluation.job import EvaluationFuture, Outcome, Request, record_of
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.states import GraphStates
from gflownet.run.trainer import GFNTrainer
from gflownet.search.history import History
from gflownet.search.loop import SearchLoop, SearchStep
from gflownet.search.method import Candidates, Results, SearchMethod

RIDGE = "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression"
PLACES = (
    *("task=tests.search.searches:ScoresPlaces", "env.name=choices"),
    *("env.choices.places={a: [0, 1, 2], b: [0, 1, 2], c: [0, 1, 2], d: [0, 1, 2]}", "algo.num_from_policy=4"),
    *("num_training_steps=4", "model.name=mlp", "model.num_layers=1", "model.num_emb=8", "replay.use=false"),
    *("evaluation.floor_score=0.01", "final.top=0", "wandb.mode=disabled", "search.batch_size=1"),
    *("search.sampler.num_updates=3", "search.sampler.num_verified=0"),
)


class ScoresPlaces(GFNTask):
    """Scores between 0.05 and 0.95 with several local optima."""

    is_cheap = True

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        return Score(score_of(graph), num_parameters=1)


class TrainsPlaces(ScoresPlaces):
    """The same scores, as of trainings."""

    is_cheap = False


class ScoresAlike(ScoresPlaces):
    """One score for all settings: none is better than the first."""

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        return Score(0.5, num_parameters=1)


class FailsOrRefuses(ScoresPlaces):
    """Settings with a=0 fail, settings with d=2 are refused."""

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        if graph.values[0] == 0:
            raise RuntimeError("a is 0")
        return super().evaluate(graph, seed=seed)

    def refusal(self, graph: Assignment) -> str | None:
        return "d is 2" if graph.values[3] == 2 else None


def cost(setting: Mapping[str, int]) -> tuple[int, int]:
    """Return parameters and multiply-adds of a setting."""
    return 1 + sum(setting.values()), 1


def score_of(graph: Any) -> float:
    """Return a smooth part and a part that differs between all settings."""
    noise = zlib.crc32(repr(graph.values).encode()) / 2**32
    return 0.05 + 0.06 * sum(int(value) for value in graph.values) + 0.42 * noise


def build(method: str, *overrides: str) -> GFNTrainer:
    return GFNTrainer(load_config(None, [*PLACES, f"search.method={method}", "log_dir=unused", *overrides]))


def method_of(trainer: GFNTrainer) -> tuple[SearchMethod, History]:
    return trainer.search.method, trainer.search.history


def proposals(trainer: GFNTrainer, num_calls: int, *, batch_size: int = 1) -> Iterator[GraphStates]:
    """Yield the proposals of each call after their results are in the history and observed."""
    method, history = method_of(trainer)
    for call in range(1, num_calls + 1):
        states = Candidates.of(method.propose(call, batch_size)).states
        if not len(states):
            return
        history.start(states)
        results = results_of(trainer, call, states)
        history.add(states, results.evaluations)
        method.observe(results)
        deque(method.work(call), maxlen=0)
        yield states


def results_of(trainer: GFNTrainer, round: int, states: GraphStates) -> Results:
    graphs = [trainer.env.terminal(states, index) for index in range(len(states))]
    return Results(round, states, graphs, evaluations(trainer, states))


def evaluations(trainer: GFNTrainer, states: GraphStates) -> list[Evaluation]:
    history, results = method_of(trainer)[1], []
    for index, code in enumerate(trainer.env.identify(states).tolist()):
        graph = trainer.env.terminal(states, index)
        score, status = outcome(trainer.task, graph)
        cached = history.position(code) is not None
        results.append(Evaluation(score, status, 0.0, None, 1, {}, cached, hash=graph.canonical_key()))
    return results


def outcome(task: Any, candidate: Any) -> tuple[float, EvaluationStatus]:
    if task.refusal(candidate):
        return 0.01, EvaluationStatus.REFUSED
    try:
        return task.evaluate(candidate, seed=0).value, EvaluationStatus.OK
    except RuntimeError:
        return 0.01, EvaluationStatus.FAILED


class UnorderedEvaluator(AsynchronousEvaluator):
    """Finishes candidates in random order, without a store, and is stopped after a number of them."""

    run = "test"

    def __init__(self, task: Any, *, seed: int = 0, num_until_stop: int = 10**6) -> None:
        self.task, self.num_until_stop = task, num_until_stop
        self._random, self._unfinished, self._futures = (
            Random(seed),
            list[EvaluationFuture](),
            dict[str, EvaluationFuture](),
        )

    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        futures = []
        for request in requests:
            key = request.candidate.canonical_key()
            if key not in self._futures:
                self._futures[key] = EvaluationFuture(request, step)
                self._unfinished.append(self._futures[key])
            futures.append(self._futures[key])
        return futures

    def advance(self, *, timeout: float | None) -> int:
        if not self.num_until_stop:
            raise EvaluationStoppedError("test")
        if not self._unfinished or (timeout == 0 and self._random.random() < 0.5):
            return 0
        self._finish(self._unfinished.pop(self._random.randrange(len(self._unfinished))))
        self.num_until_stop -= 1
        return 1

    def flush(self) -> None:
        """Do nothing: there is no store."""

    @property
    def num_in_flight(self) -> int:
        return len(self._unfinished)

    def _finish(self, future: EvaluationFuture) -> None:
        score, status = outcome(self.task, future.request.candidate)
        result = Outcome(status, 1.0, score=Score(score), error=None if status is EvaluationStatus.OK else "test")
        future.record = record_of(future, result, run=self.run, floor_score=0.01)


class DirectEvaluator(UnorderedEvaluator):
    """Scores candidates at once."""

    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        futures = super().submit(requests, step=step)
        while self._unfinished:
            self._finish(self._unfinished.pop())
        return futures


def run_search(
    components: GFNTrainer, evaluator: UnorderedEvaluator | None = None
) -> tuple[SearchLoop, list[SearchStep]]:
    return components.search, list(components.search.steps(evaluator or DirectEvaluator(components.task)))


def values_of(trainer: GFNTrainer, states: GraphStates) -> list[tuple]:
    return [assignment(trainer, states, index).values for index in range(len(states))]


def assignment(trainer: GFNTrainer, states: GraphStates, index: int) -> Assignment:
    graph = trainer.env.terminal(states, index)
    assert isinstance(graph, Assignment)
    return graph


@contextmanager
def dispatcher(trainer: GFNTrainer, folder: Path) -> Iterator[Dispatcher]:
    """Yield the evaluator of a search, whose store is a file in a folder."""
    with (
        EvaluationStore(folder / "evaluations.sqlite", context=context_of(trainer.task)) as store,
        trainer.build_executor() as executor,
    ):
        evaluator = trainer.build_evaluator(store, executor, num_evaluated=store.num_evaluations(run=trainer.run_id))
        yield evaluator
        evaluator.close()
