"""The final stage on stub candidates: seeds, ranking, resume, stop, failures, references."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.evaluation.candidates.sets import WeightFolder
from gflownet.evaluation.config import EvaluationConfig, FinalConfig
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.final import (
    Finalists,
    FinalStage,
    FinalTrainings,
    Sizes,
    TopArchitecture,
    check_final,
    ranked,
    with_test_scores,
)
from gflownet.evaluation.presentation import Reference, ReferenceMethod
from gflownet.evaluation.racing import RANDOM_REPEAT, NormalMeans
from gflownet.evaluation.store.claims import NoStore
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.evaluation.task import CandidateTraining, Score
from gflownet.files import write_whole
from gflownet.training.random_states import candidate_seed
from tests.evaluation.candidates import StubCandidate, StubTask, dispatcher_of, record

SEED = 3


class NoisyTask(StubTask):
    """Scores a base value plus noise of the seed; the test score is half of it."""

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        value = super().evaluate(graph, seed=seed).value
        return Score(value + seed % 100 / 10_000, num_parameters=7)

    def test(self, graph: StubCandidate, *, seed: int) -> float | None:
        return (self.outcomes[graph.key] + seed % 100 / 10_000) / 2

    def reference(self, *, seeds: Sequence[int]) -> Reference | None:
        return Reference("a standard method", [0.5 for _ in seeds], [0.25 for _ in seeds], 11)


class StubTraining(CandidateTraining):
    def __init__(self, task: NoisyTask, graph: StubCandidate, *, seed: int, fidelity: int) -> None:
        self.fidelity, self.curve, self.model = fidelity, (), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.model.weight, seed % 1_000)
        self._score = task.evaluate(graph, seed=seed)
        self._test = task.test(graph, seed=seed)

    def score(self) -> Score:
        return self._score

    def test(self) -> float | None:
        return self._test

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}


class TrainedTask(NoisyTask):
    """The same scores from trainings of 4 epochs."""

    max_fidelity = 4

    def train_many(self, graphs, *, seeds, fidelity, schedule, states) -> Iterator[CandidateTraining | Exception]:
        for graph, seed in zip(graphs, seeds, strict=True):
            try:
                yield StubTraining(self, graph, seed=seed, fidelity=fidelity)
            except Exception as error:
                yield error


class SeedsTask(TrainedTask):
    """Records the seeds of each call."""

    trains_seeds_together = True  # pyright: ignore[reportAssignmentType]

    def train_many(self, graphs, *, seeds, **options) -> Iterator[CandidateTraining | Exception]:
        self.sizes = [*getattr(self, "sizes", ()), len(seeds)]
        yield from super().train_many(graphs, seeds=seeds, **options)


def candidate_of(data: dict[str, Any]) -> StubCandidate:
    return StubCandidate(data["nodes"][0])


def row(key: str, **fields: Any):
    return record(key, graph=f'{{"nodes": ["{key}"]}}', num_parameters=7, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EvaluationStore]:
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        yield store


def folder_of(store: EvaluationStore) -> Path:
    return Path(store.location).with_name("weights")


def trainings(
    task: StubTask, store: EvaluationStore, *, stopped: Callable[[], bool] = lambda: False, **options: Any
) -> FinalTrainings:
    dispatcher = dispatcher_of(task, store, seed=SEED, stopped=stopped)
    if task.max_fidelity:
        folder, rows = folder_of(store), list(store)
        dispatcher.weights = WeightFolder(folder, 0, write=write_whole, keeps_all=False, records=rows)
    parts: dict[str, Any] = {"from_dict": candidate_of, "report_line": lambda _: None}
    references = dispatcher_of(task, NoStore(), dispatcher.executor, seed=SEED, stopped=stopped)
    return FinalTrainings(dispatcher, references, config=FinalConfig(**options), **parts)


def finalists(rows: Sequence[EvaluationRecord], num_trainings: int, *, num_before: int = 0, offset: int = 0):
    """Return finalists with a prior that says next to nothing."""
    means = np.array([row.score for row in rows])
    prior = NormalMeans(means, np.full(len(rows), 10.0))
    return Finalists(rows, lambda noise: prior, 0.01, num_trainings, num_trainings, num_before, offset)


def best_random(records: Sequence[EvaluationRecord]) -> list[Finalists]:
    best = sorted(records, key=lambda record: -record.score)[:1]
    return [finalists(best, 3, offset=RANDOM_REPEAT)] if best else []


def run_final(
    stage: FinalTrainings,
    rows: Sequence[EvaluationRecord],
    num: int,
    *,
    others: Sequence[str] = (),
    num_before: int = 0,
) -> FinalStage:
    """Race rows with `num` trainings, and the best one of some random candidates with 3."""

    stage.begin(lambda: [StubCandidate(key) for key in others], step=2)
    chosen = finalists(rows, num, num_before=num_before)
    return stage.run([chosen], step=9, random_finalists=best_random)


def expected_scores(key: str, base: float, num: int, *, offset: int = 0) -> list[float]:
    seeds = [candidate_seed(SEED, StubCandidate(key).canonical_hash(), offset + k) for k in range(1, num + 1)]
    return [base + seed % 100 / 10_000 for seed in seeds]


@pytest.mark.parametrize("kind", [NoisyTask, TrainedTask])
def test_final_stage_ranks_by_new_seeds(store, kind):
    task = kind({"lucky": 0.801, "good": 0.8, "random": 0.3, "worse": 0.2})
    rows = [row("lucky", score=0.9), row("good", score=0.85)]
    store.add(rows)
    final = run_final(trainings(task, store, num_seeds=3), rows, 6, others=["worse", "random"])
    values = {"good": expected_scores("good", 0.8, 3), "lucky": expected_scores("lucky", 0.801, 3)}
    order = sorted(values, key=lambda key: -sum(values[key]))
    assert [each.record.key for each in final.top] == order
    for each in final.top:
        assert list(each.scores) == pytest.approx(values[each.record.key])
        assert each.tests == pytest.approx([score / 2 for score in each.scores])
    (best_random,) = final.random_top
    assert list(best_random.scores) == pytest.approx(expected_scores("random", 0.3, 3, offset=RANDOM_REPEAT))
    assert (final.num_random, final.num_random_trainings) == (2, 5)
    assert final.is_complete
    assert final.references == (Reference("a standard method", (0.5,) * 3, (0.25,) * 3, 11),)
    assert [each.key for each in store.top(10)] == ["lucky", "good"]  # new seeds are no rows of the search
    if kind is TrainedTask:
        seed = candidate_seed(SEED, StubCandidate(order[0]).canonical_hash(), 1)
        assert cast(Any, final.top[0].weights)["weight"] == torch.tensor([[float(seed % 1_000)]])
        assert best_random.weights is not None
        assert len([*folder_of(store).iterdir()]) == 3, "only first new seeds"


def test_final_stage_trains_further_seeds_in_one_job(store):
    task = SeedsTask({"a": 0.5, "b": 0.5})
    rows = [row("a", score=0.5), row("b", score=0.5)]
    result = run_final(trainings(task, store, num_seeds=4), rows, 8)
    assert task.sizes[:2] == [1, 1]
    assert task.sizes[2:] in ([6], [3, 3])  # trainings of milliseconds share a job
    for architecture in result.top:
        key = architecture.record.graph[12]
        assert list(architecture.scores) == pytest.approx(expected_scores(key, 0.5, 4))


def test_final_stage_stops_seeds_out_of_reach(store):
    rows = [row(key, score=0.9) for key in ("bad", "good", "near")]
    task = TrainedTask({"bad": 0.3, "good": 0.8, "near": 0.799})
    final = run_final(trainings(task, store, num_seeds=5), rows, 9)
    assert [each.record.key for each in final.top][2] == "bad"
    assert len(final.top[2].scores) < 3
    assert len(task.calls) <= 9


def test_final_stage_resumes_from_store(store):
    rows = [row("a", score=0.9), row("b", score=0.85)]
    outcomes = {"a": 0.8, "b": 0.8, "c": 0.1}
    first = run_final(trainings(TrainedTask(outcomes), store, num_seeds=3), rows, 6, others=["c"])
    task = TrainedTask(outcomes)
    second = run_final(trainings(task, store, num_seeds=3), rows, 6, others=["c"], num_before=6)
    assert second == first
    assert all(each.weights for each in (*second.top, *second.random_top))
    assert task.calls == []
    more = TrainedTask(outcomes)
    final = run_final(trainings(more, store, num_seeds=4), rows, 7, others=["c"], num_before=6)
    assert sum(len(each.scores) for each in final.top) == 7  # one more than before
    assert len(more.calls) == 1


def test_stopped_final_stage_keeps_finished_trainings(store):
    rows = [row("a", score=0.9), row("b", score=0.85), row("c", score=0.8)]
    task = TrainedTask({"a": 0.6, "b": 0.7, "c": 0.5, "d": 0.1})
    stage = trainings(task, store, num_seeds=4, stopped=lambda: len(task.calls) >= 3)
    final = run_final(stage, rows, 12, others=["d"])
    num_before = sum(len(each.scores) for each in final.top)
    assert 0 < num_before < 12
    assert not final.is_complete
    assert (final.random_top, final.references) == ((), ())
    complete = run_final(trainings(TrainedTask(task.outcomes), store, num_seeds=4), rows, 12, others=["d"])
    assert complete.is_complete
    assert complete.random_top


def test_failed_trainings_count_as_floor_score(store):
    rows = [row("a", score=0.9), row("b", score=0.85)]
    final = run_final(trainings(NoisyTask({"a": RuntimeError("no"), "b": 0.3}), store, num_seeds=2), rows, 4)
    assert [each.record.key for each in final.top] == ["b", "a"]
    assert set(final.top[1].scores) == {EvaluationConfig().floor_score}
    assert {error.partition(" (")[0] for error in final.top[1].errors} == {"RuntimeError: no"}
    task = NoisyTask({"b": 0.3, "c": RuntimeError("no")})
    failed_random = run_final(trainings(task, store, num_seeds=2), rows[1:], 2, others=["c"])
    assert failed_random.random_top == ()
    assert failed_random.num_random == 1


def test_failing_reference_is_a_note(store):
    class Failing(NoisyTask):
        def reference_methods(self):
            def failing(seeds: Sequence[int]) -> Reference:
                raise RuntimeError("no data")

            return [ReferenceMethod("forest", failing), *super().reference_methods(), ReferenceMethod("none", len)]  # pyright: ignore[reportArgumentType]

    final = run_final(trainings(Failing({"a": 0.5}), store, num_seeds=2), [row("a")], 1)
    assert final.references == (Reference("a standard method", (0.5, 0.5), (0.25, 0.25), 11),)
    assert [note.partition(" (")[0] for note in final.notes] == [
        "no reference forest: RuntimeError: no data",
        "no reference none: Failing.evaluate: expected a Score, got int",
    ]


@pytest.mark.parametrize("num_kept", [0, 5, 14])
def test_winners_are_measured_on_seeds_after_their_choice(store, num_kept):
    """Two ranges of sizes; an earlier process has done the first trainings."""
    outcomes = {"small": 0.5, "worse": 0.4, "large": 0.8, "equal": 0.8, "c": 0.45, "d": 0.75}
    rows = {key: row(key, score=value, metrics={"cost": float(value > 0.6)}) for key, value in outcomes.items()}
    groups = [("small", "worse"), ("large", "equal")]

    def plan(keys: Sequence[str], num_before: int, offset: int = 0) -> Finalists:
        race = finalists([rows[key] for key in keys], 6, num_before=num_before, offset=offset)
        return replace(race, num_choice=2 if len(keys) > 1 else 0)

    def run(num_left: float) -> FinalStage:
        task = TrainedTask(outcomes)
        stage = trainings(task, store, num_seeds=3, stopped=lambda: len(task.calls) >= num_left)
        stage.begin(lambda: [StubCandidate("c"), StubCandidate("d")], step=2)
        done = [[each.key for each in store if 0 < each.seed < RANDOM_REPEAT and each.key in keys] for keys in groups]
        races = [plan(keys, len(each)) for keys, each in zip(groups, done, strict=True)]
        random = [replace(plan(key, 0, RANDOM_REPEAT), num_trainings=4) for key in "cd"]
        sizes = Sizes("cost", (0.5, 1.0))
        return stage.run(races, step=9, random_finalists=lambda _: random, num_planned=14, sizes=sizes)

    assert run(num_kept).is_complete == (num_kept > 14)
    final = run(math.inf)
    numbers = {each.record.key: (len(each.scores), each.num_choice, len(each.measured)) for each in final.top}
    chosen = final.top[0].record.key
    assert numbers == {key: (5, 1, 4) if key in (chosen, "small") else (1, 0, 1) for key in chain(*groups)}
    for each in final.top:
        scores = expected_scores(each.record.key, outcomes[each.record.key], len(each.scores))
        assert list(each.measured) == pytest.approx(scores[each.num_choice :])
        assert each.mean == pytest.approx(np.mean(each.measured))
    assert [len(each.measured) for each in final.random_top] == [4, 4], "as many as of the run"


def test_random_candidates_trained_before_the_races_give_the_same_result(tmp_path):
    rows, results = [row("a", score=0.9), row("b", score=0.85)], []
    for is_early in (False, True):
        with EvaluationStore(tmp_path / f"{is_early}.sqlite") as store:
            task = TrainedTask({"a": 0.8, "b": 0.8, "c": 0.1, "d": 0.2})
            stage = trainings(task, store, num_seeds=3)
            stage.begin(lambda: [StubCandidate("c"), StubCandidate("d")], step=2)
            while is_early and stage.dispatcher.num_in_flight + stage.references.num_in_flight:
                stage.advance()
            assert len(task.calls) == 2 * is_early
            result = stage.run([finalists(rows, 6)], step=9, random_finalists=best_random)
            assert [each.seed for each in store if each.key in "cd" and each.step == 2] == [RANDOM_REPEAT] * 2
            raced = [(each.record.key, each.scores, each.posterior) for each in (*result.top, *result.random_top)]
            results.append((raced, result.references, {each.identity: (each.score, each.step) for each in store}))
    assert results[0] == results[1]


def test_equal_means_rank_smaller_model_first():
    def architecture(key: str, scores: tuple[float, ...], size: int | None) -> TopArchitecture:
        return TopArchitecture(record(key, score=0.9, num_parameters=size), scores=scores)

    top = [
        architecture("unknown", (0.1, 0.2, 0.3), None),
        architecture("large", (0.2, 0.2, 0.2), 9),  # 0.20000000000000004 by rounding
        architecture("small", (0.2, 0.1, 0.3), 3),
        architecture("best", (0.5,), 99),
        architecture("no new seed", (), 1),
    ]
    assert [each.record.key for each in ranked(top)] == ["best", "small", "large", "unknown", "no new seed"]


def test_final_epochs_set_fidelity(store):
    fidelities = []

    class Records(TrainedTask):
        def train_many(self, graphs, *, fidelity, schedule, **arguments):
            fidelities.append((fidelity, schedule))
            return super().train_many(graphs, fidelity=fidelity, schedule=schedule, **arguments)

    task = Records({"a": 0.5, "b": 0.7})
    rows = [row("a", score=0.3), row("b", score=0.4)]
    final = run_final(trainings(task, store, num_seeds=2, epochs=9), rows, 4)
    assert final.fidelity == 9
    assert final.correlation == pytest.approx(1.0)
    assert set(fidelities) == {(9, 9)}
    check_final(FinalConfig(epochs=9), task)
    with pytest.raises(UserError, match=r"final\.epochs: expected null with NoisyTask, whose evaluations have no"):
        check_final(FinalConfig(epochs=9), NoisyTask({}))


@pytest.mark.parametrize("kind", [NoisyTask, TrainedTask])
def test_with_test_scores_uses_seed_of_search(kind):
    task = kind({"a": 0.5, "b": RuntimeError("no")})
    dispatcher = dispatcher_of(task, NoStore(), seed=SEED)
    with closing(dispatcher):
        first, second = with_test_scores([row("a"), row("b")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    seed = candidate_seed(SEED, StubCandidate("a").canonical_hash())
    assert first.tests == pytest.approx([(0.5 + seed % 100 / 10_000) / 2])
    assert first.scores == ()
    assert second.test is None
    assert "RuntimeError: no" in str(second.test_error)


def test_with_test_scores_of_failing_executor():
    class Broken(InlineExecutor):
        def wait(self, handles, *, timeout):
            raise OSError("no processes")

    task = NoisyTask({"a": 0.5})
    dispatcher = dispatcher_of(task, NoStore(), Broken(task), seed=SEED)
    with closing(dispatcher):
        (architecture,) = with_test_scores([row("a")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    assert str(architecture.test_error).startswith("OSError: no processes")
    stopped = dispatcher_of(task, NoStore(), seed=SEED, stopped=lambda: True)
    with closing(stopped), pytest.raises(EvaluationStoppedError):
        with_test_scores([row("a")], dispatcher=stopped, from_dict=candidate_of, step=9)


def test_with_test_scores_without_test_data():
    task = StubTask({"a": 0.5})
    dispatcher = dispatcher_of(task, NoStore(), seed=SEED)
    (architecture,) = with_test_scores([row("a")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    assert architecture.test is None
    assert task.calls == []
